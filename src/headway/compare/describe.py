"""A run as one flat row: its settings, its state, and the results of its studies.

A row holds text, numbers and booleans under short keys; unknown values are absent. A study that is broken or
ill-typed is left out and named under `error`; the run itself does not count as broken.
"""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.config import RunConfig, TrainingConfig
from headway.runs.folder import RunFolder
from headway.runs.seal import find_certificate_fault
from headway.runs.shapes import fits, schema_of

Value = str | int | float | bool
Row = dict[str, Value]
Values = dict[str, Value | None]

SETTINGS = (
    "task", "positions", "index", "pooling", "kind", "d_model", "heads", "d_ff", "layers", "decoder_layers", "segments",
    "pruned", "norm", "steps_asked", *(entry.name for entry in fields(TrainingConfig) if entry.name != "steps"), "data",
)  # fmt: skip
"""settings of a run, besides its seed and its task's options"""
FOUND = (
    "steps", "seconds", "final_loss", "perfect", "parameters", "exact_match", "examples", "errors", "reach", "in_range",
    "converged", "tested_to", "heads_alone", "heads_together", "together_accuracy", "baseline", "ablation", "max_drop",
    "certified", "healthy",
)  # fmt: skip
"""results of a run"""
KINDS = {**dict.fromkeys(("perfect", "converged", "certified", "healthy"), bool), "ablation": str}
"""types of these results; all others are numbers"""
NUMBER = int | float
FILES = ("evaluation-sample", "evaluation", "lengths", "measured", "heads", "certificate", "doctor")
"""files of studies; a later one overrides an earlier one"""
KEYS = ("run", "state", "seed", *SETTINGS, *FOUND, "digest", "error")
"""keys of every row, besides `option.NAME` and `reach.PROBE`"""
OPEN = ("option.", "reach.")  # prefixes of keys that only some runs have

MOST_NAMES = 100  # options or probes per run
_NAME = re.compile(r"[a-z0-9_][a-z0-9_+-]{0,59}")


def describe(folder: RunFolder) -> Row:
    """Describes a run in one row; `error` says what could not be read."""
    row: Values = {"state": "unfinished"}
    errors: list[str] = []

    def add(part: Callable[[], Values], breaks: bool = False) -> None:
        try:
            row.update(part())
        except (HeadwayError, OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            if breaks:
                row["state"] = "broken"
            shown = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            errors.append(shown.replace(f"{folder.path}/", ""))

    add(lambda: _read_config(folder.config()), breaks=True)
    if folder.complete and row["state"] != "broken":
        ended = ("steps", "seconds", "parameters", "final_loss", "perfect")
        add(lambda: {"state": "complete", **_entries(vars(folder.training()), *ended)}, breaks=True)
    for name in FILES:
        if (path := folder.path / f"{name}.json").exists():
            add(partial(_read_study, folder, path))
    if errors:
        row["error"] = "; ".join(dict.fromkeys(errors))
    return {key: stored for key, value in row.items() if (stored := to_storable(value)) is not None}


def to_storable(value: Value | None) -> Value | None:
    """Converts a value to one that a row can hold; None if there is none."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else float(value) if abs(value) < 10**300 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.encode(errors="replace").decode()[:1_000]


def _read_config(config: RunConfig) -> Values:
    known = {**vars(config), **vars(config.model), **vars(config.training), "digest": config.digest}
    known |= {"steps_asked": config.training.steps, "pruned": config.model.pruned or None}
    return {**{key: known[key] for key in ("seed", "digest", *SETTINGS)}, **_prefix_keys("option", config.options)}


def _read_study(folder: RunFolder, path: Path) -> Values:
    study = disk.read_json(path)
    if not isinstance(study, dict):
        raise HeadwayError(f"{path.name} was not written by Headway; make it again")
    match schema_of(path, study, in_run=True):
        case "evaluation":
            return _entries(study, "exact_match", "examples", "errors")
        case "measured":
            return _read_lengths(study)
        case "heads":
            return _read_heads(study)
        case "doctor":
            return _entries(study, "healthy")
        case "certificate":
            if fault := find_certificate_fault(study, folder.training().weights_sha256):
                raise HeadwayError(f"{path.name} {fault}; remove it and certify again")
            return _entries(study, "certified")
    return {}


def _read_lengths(study: Any) -> Values:
    """Reads a length study, without the reach of a run that did not learn in range, which means nothing."""
    values = _entries(study, "in_range", "converged")
    asked, reach = study.get("asked"), study.get("reach")
    if isinstance(asked, dict) and isinstance(asked.get("lengths"), list):
        values["tested_to"] = max((length for length in asked["lengths"] if fits(length, NUMBER)), default=None)
    if isinstance(reach, dict) and values["converged"] is not False:
        measured = {name: value for name, value in reach.items() if fits(value, NUMBER)}
        values |= {"reach": measured.get("default"), **_prefix_keys("reach", measured)}
    return values


def _read_heads(study: Any) -> Values:
    alone, together = (part if isinstance(part := study.get(key), dict) else {} for key in ("alone", "together"))
    sets = {"heads_alone": alone.get("count"), "heads_together": together.get("count")}
    sets |= {"together_accuracy": together.get("accuracy")}
    return _entries({**study, **sets}, *sets, "baseline", "max_drop", "ablation")


def _entries(study: Any, *keys: str) -> Values:
    """Takes these entries of a study; one that is missing or ill-typed is None."""
    return {key: value if fits(value := study.get(key), KINDS.get(key, NUMBER)) else None for key in keys}


def _prefix_keys(kind: str, values: dict[str, Any]) -> Values:
    """Prefixes the keys, in lower case because the columns of a table are case-insensitive."""
    prefixed: Values = {}
    for name, value in values.items():
        if value is not None and len(prefixed) < MOST_NAMES and _NAME.fullmatch(name.lower()):
            prefixed.setdefault(f"{kind}.{name.lower()}", value if isinstance(value, Value) else str(value))
    return prefixed
