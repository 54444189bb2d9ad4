"""The files of a report as they must be: what is amiss is told in a sentence, with the file and the place in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import BrokenRun, HeadwayError
from headway.runs import disk


@dataclass(frozen=True)
class Maybe:
    """This shape, or nothing."""

    shape: Any


REAL = Maybe(float)
"""a number, or nothing where it was none"""
SITE = {"site": str, "queries": [str], "keys": [str], "heads": [[[REAL]]]}
MOMENT = {"table?": Maybe([[REAL]]), "bias?": Maybe([[REAL]])}
SPREAD = {"least": float, "median": float, "most": float}
WITHHELD = [{"check": str, "reason": str}]

# A key with a question mark may be missing.
HEADS: dict[str, Any] = {
    "subject": str,
    "baseline": float,
    "examples": int,
    "ablation": str,
    "metric?": str,
    "max_drop": float,
    "max_loss_increase?": REAL,
    "interval_of?": str,
    "heads": [
        {
            "head": str,
            "accuracy": float,
            "drop": float,
            "interval": Maybe((REAL, REAL)),
            "loss_increase": REAL,
            "verdict": str,
            "pattern?": Maybe(str),
            "pattern_scores?": Maybe({"label": str, "stable": float}),
            "by_stratum": [{"stratum": str, "examples": int, "errors": int}],
        }
    ],
    "alone": Maybe({"count": int, "heads": [str]}),
    "alone_removed_together": Maybe({"accuracy": float, "loss_increase?": REAL, "interval?": Maybe((REAL, REAL))}),
    "together": Maybe(
        {
            "count": int,
            "heads": [str],
            "accuracy": float,
            "loss_increase?": REAL,
            "interval?": Maybe((REAL, REAL)),
            "optimal?": bool,
        }
    ),
    "curves": [{"order": str, "accuracy": [float], "loss?": [REAL], "heads": [[str]]}],
    "pairs": [{"heads": (str, str), "drop": float, "sum_of_drops": float, "backup": float}],
    "roles?": Maybe(
        {
            "table": [
                {"part": str, "contrast": str, "at_answer": bool, "flips": REAL, "pairs": int, "named": bool},
            ],
            "explained": [{"contrast": str, "heads": [str], "flips": REAL, "sound": bool}],
            "mean_explained": REAL,
        }
    ),
    "findings?": [str],
    "withheld?": WITHHELD,
}
MEMBER = {
    "subject": str,
    "alone": int,
    "alone_removed_together": float,
    "together": int,
    "together_accuracy": float,
    "critical": [str],
}
POPULATION = {"members": [{"subject": str}], "distribution?": {"members": int, "refused": int}, "findings?": [str]}
DISTRIBUTION = {"heads": int, "proved?": int, "alone": SPREAD, "alone_removed_together": SPREAD, "together": SPREAD}
MAPS = {
    "average?": Maybe({"all": {"maps": [SITE]}}),
    "examples?": [{"read": [str], "wanted": [str], "answers": dict, "maps": [SITE]}],
}
LENGTHS = {
    "task": str,
    "track": str,
    "train_lengths": (int, int),
    "examples": int,
    "rows": [{"positions": str, "index": str, "seed": int, "probe": str, "length": int, "accuracy": float}],
    "reach": [{"positions": str, "index": str, "probe": str, "by_seed": dict, "median": REAL, "worst": REAL}],
    "converged?": [{"converged": bool}],
    "diagnosis?": [{"positions": str, "index": str, "probe": str, "length": int, "sentence": str, "causes": [str]}],
    "signals?": [
        {"positions": str, "index": str, "trained": int, "tokens": int, "before": MOMENT, "after": MOMENT},
    ],
    "findings?": [str],
    "withheld?": WITHHELD,
}
COMPARISON = {
    "folders": [str],
    "by": [str],
    "metrics": [str],
    "where?": Maybe(str),
    "among": int,
    "rows": [{"runs": int, "complete": int, "unfinished": int, "broken": int, "seeds": int, "metrics": dict}],
    "runs": [{"run": str, "group": int, "state": str}],
    "findings": [str],
}
SPREAD_OF_METRIC = {
    "n": int,
    "missing": int,
    "unlearned": int,
    **dict.fromkeys(("median", "mean", "best", "worst", "least", "most"), REAL),
    "interval": Maybe((REAL, REAL)),
}
CERTIFICATE = {"contexts": int, "smallest_margin": REAL}
LAB = {
    "runs": [{"finding": str, "examples": int, "errors": int, "seed": int, "interval": Maybe((float, float))}],
    "withheld?": [{"run": str, "about": str, "check": str, "reason": str}],
}
DEEPEST = 100
"""levels of lists and objects in one another"""
LARGEST = 10**300
KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}


def read(path: Path, shape: Any = dict) -> dict[str, Any]:
    """The object in this file, which must have this shape; numbers that are none become nothing."""
    try:
        content = finite(disk.read_json(path))
    except RecursionError as error:
        raise BrokenRun(f"{path} is nested too deeply to be Headway's; restore it, or make it again") from error
    check(path, content, shape)
    return content


def check(path: Path, content: Any, shape: Any, place: str = "it") -> None:
    amiss = fault(content, shape, place)
    if amiss:
        raise BrokenRun(f"{path} is not what Headway writes: {amiss}; restore it, or make it again")


def bytes_of(path: Path) -> bytes:
    try:
        with disk.open_file(path) as file:
            return file.read()
    except OSError as error:
        raise HeadwayError(f"cannot read {path}: {error.strerror or error}; mend it or take it away") from error


def finite(value: Any, deep: int = 0) -> Any:
    """Without NaN and infinity, which JSON does not have, and numbers that no float holds."""
    if deep > DEEPEST:
        raise RecursionError(f"more than {DEEPEST} levels")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not -LARGEST < value < LARGEST:
        return None
    if isinstance(value, dict):
        return {key: finite(each, deep + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each, deep + 1) for each in value]
    return value


def fault(value: Any, shape: Any, place: str = "it") -> str | None:
    """What is wrong with a value, and where; None where it has this shape."""
    if isinstance(shape, Maybe):
        return None if value is None else fault(value, shape.shape, place)
    if isinstance(shape, type):
        return None if _is(value, shape) else f"{place} is {_short(value)}, not {KINDS[shape]}"
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{place} is {_short(value)}, not an object"
        for name, inner in shape.items():
            key = name.removesuffix("?")
            if key in value:
                wrong = fault(value[key], inner, key if place == "it" else f"{place}.{key}")
                if wrong:
                    return wrong
            elif key == name:
                return f"{place} has no {key!r}"
        return None
    if not isinstance(value, list) or (isinstance(shape, tuple) and len(value) != len(shape)):
        return f"{place} is {_short(value)}, not a list" + (f" of {len(shape)}" if isinstance(shape, tuple) else "")
    inners = shape if isinstance(shape, tuple) else shape * len(value)
    found = (fault(each, inner, f"{place}[{n}]") for n, (each, inner) in enumerate(zip(value, inners, strict=True)))
    return next((wrong for wrong in found if wrong), None)


def _is(value: Any, kind: type) -> bool:
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)


def _short(value: Any) -> str:
    shown = "nothing" if value is None else repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}…"
