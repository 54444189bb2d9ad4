"""A run as one flat row: what it is, how far it came, and what studies found of it.

A row has text, numbers and truth values under short keys, and lacks what is not known. A study that is broken or
ill-typed is left out and named under `error`; it makes no run broken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.certificate import CERTIFICATE, find_fault
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder, Training

Value = str | int | float | bool
Row = dict[str, Value]

OF_MODEL = (
    "positions", "index", "pooling", "kind", "d_model", "heads", "d_ff", "layers", "decoder_layers", "segments",
    "pruned",
)  # fmt: skip
OF_TRAINING = (
    "batch", "optimizer", "learning_rate", "muon_rate", "momentum", "weight_decay", "warmup", "hard", "until",
    "recovered",
)  # fmt: skip
SETTINGS = ("task", *OF_MODEL, "steps_asked", *OF_TRAINING, "data")
"""what a run was asked to be, besides its seed and its task's options"""
FOUND = (
    "steps", "seconds", "final_loss", "perfect", "parameters", "exact_match", "examples", "errors", "reach", "in_range",
    "converged", "tested_to", "heads_alone", "heads_together", "together_accuracy", "baseline", "ablation", "max_drop",
    "certified", "healthy",
)  # fmt: skip
"""what came of it"""
KEYS = ("run", "state", "seed", *SETTINGS, *FOUND, "digest", "error")
"""of every row, besides `option.NAME` and `reach.PROBE`"""
OPEN = ("option.", "reach.")
"""how keys begin that only some runs have"""

MOST_NAMES = 100
"""options, or probes, of one run"""
LONGEST = 1_000
"""letters of a value"""
MOST = 2**63 - 1
_NAME = re.compile(r"[a-z0-9_][a-z0-9_+-]{0,59}")


def describe(folder: RunFolder) -> Row:
    """A run in one row; `error` says what could not be read."""
    row: dict[str, Any] = {"state": "unfinished"}
    amiss: list[str] = []

    def attempt(part: Callable[[], dict[str, Any]], breaks: bool = False) -> None:
        try:
            row.update(part())
        except (HeadwayError, OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            if breaks:
                row["state"] = "broken"
            shown = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            amiss.append(shown.replace(f"{folder.path}/", ""))

    attempt(lambda: _of_config(folder.config()), breaks=True)
    if folder.complete and row["state"] != "broken":
        attempt(lambda: {"state": "complete", **_of_training(folder.training())}, breaks=True)
    for study, part in STUDIES.items():
        if (folder.path / f"{study}.json").exists():
            attempt(lambda study=study, part=part: part(folder, _object(folder, study)))
    if amiss:
        row["error"] = "; ".join(dict.fromkeys(amiss))
    return {key: kept for key, value in row.items() if (kept := plain(value)) is not None}


def plain(value: Any) -> Value | None:
    """A value that a row can hold; None where it is none."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= MOST else float(value) if abs(value) < 10**300 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode(errors="replace").decode()[:LONGEST]
    return None


def _object(folder: RunFolder, study: str) -> dict[str, Any]:
    content = disk.read_json(folder.path / f"{study}.json")
    if not isinstance(content, dict):
        raise HeadwayError(f"{study}.json is not what Headway writes; make it again")
    return content


def _of_config(config: RunConfig) -> dict[str, Any]:
    model, training = config.model, config.training
    return {
        "task": config.task,
        "seed": config.seed,
        **{key: getattr(model, key) for key in OF_MODEL if key != "pruned" or model.pruned},
        "steps_asked": training.steps,
        **{key: getattr(training, key) for key in OF_TRAINING},
        "data": config.data,
        "digest": config.digest,
        **_named("option", config.options.items()),
    }


def _of_training(training: Training) -> dict[str, Any]:
    return {
        "steps": _number(training.steps),
        "seconds": _number(training.seconds),
        "parameters": _number(training.parameters),
        "final_loss": _number(training.final_loss),
        "perfect": _truth(training.perfect),
    }


def _of_evaluation(folder: RunFolder, found: dict[str, Any]) -> dict[str, Any]:
    return {key: _number(found.get(key)) for key in ("exact_match", "examples", "errors")}


def _of_lengths(folder: RunFolder, found: dict[str, Any]) -> dict[str, Any]:
    """The reach of a run that has not learned its task in range says nothing, and is left out."""
    told: dict[str, Any] = {"in_range": _number(found.get("in_range")), "converged": _truth(found.get("converged"))}
    asked, reach = found.get("asked"), found.get("reach")
    if isinstance(asked, dict) and isinstance(asked.get("lengths"), list):
        told["tested_to"] = max((n for n in map(_number, asked["lengths"]) if n is not None), default=None)
    if isinstance(reach, dict) and told["converged"] is not False:
        told |= {"reach": _number(reach.get("default")), **_named("reach", _numbers(reach))}
    return told


def _of_heads(folder: RunFolder, found: dict[str, Any]) -> dict[str, Any]:
    alone, together = (part if isinstance(part := found.get(key), dict) else {} for key in ("alone", "together"))
    return {
        "heads_alone": _number(alone.get("count")),
        "heads_together": _number(together.get("count")),
        "together_accuracy": _number(together.get("accuracy")),
        "baseline": _number(found.get("baseline")),
        "max_drop": _number(found.get("max_drop")),
        "ablation": found["ablation"] if isinstance(found.get("ablation"), str) else None,
    }


def _of_certificate(folder: RunFolder, found: dict[str, Any]) -> dict[str, Any]:
    """A certificate counts for the weights it was granted to, as it was written."""
    if (fault := find_fault(found, folder.training().weights_sha256)) is not None:
        raise HeadwayError(f"{CERTIFICATE} {fault}; remove it and certify again")
    return {"certified": _truth(found.get("certified"))}


def _of_doctor(folder: RunFolder, found: dict[str, Any]) -> dict[str, Any]:
    return {"healthy": _truth(found.get("healthy"))}


STUDIES: dict[str, Callable[[RunFolder, dict[str, Any]], dict[str, Any]]] = {
    "evaluation-sample": _of_evaluation,
    "evaluation": _of_evaluation,  # of all problems, it takes the place of a sample's
    "lengths": _of_lengths,  # of runs measured before measured.json had its name
    "measured": _of_lengths,
    "heads": _of_heads,
    "certificate": _of_certificate,
    "doctor": _of_doctor,
}


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _numbers(found: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return [(name, value) for name, value in found.items() if _number(value) is not None]


def _named(kind: str, values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Under keys of their own; small letters alone, for a table tells no others apart."""
    told: dict[str, Any] = {}
    for name, value in values:
        if value is not None and len(told) < MOST_NAMES and _NAME.fullmatch(name.lower()):
            told.setdefault(f"{kind}.{name.lower()}", value if isinstance(value, Value) else str(value)[:LONGEST])
    return told
