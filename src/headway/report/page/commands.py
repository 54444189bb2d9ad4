"""The commands that a page names: those that made what is there, and those that make what is missing. They can be run
as they stand, where the report was written."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from headway.report.page.found import Found
from headway.report.page.reading import read
from headway.runs.folder import RunFolder

EXAMPLES, EXAMPLES_OF_LENGTH, MAX_DROP = 10_000, 2_000, 0.01
"""what the commands take where nothing is said"""


def command_of_heads(found: Found, path: Path, study: dict[str, Any]) -> str:
    run = found.run_at(path.parent)
    words = ["headway", "heads", "SUBJECT" if run is None else str(run.path)]
    if study["ablation"] != "zero":
        words += ["--ablation", study["ablation"]]
    if study.get("confidence_of_each_interval", 0) is None:
        words += ["--all"]
    elif study["examples"] != EXAMPLES:
        words += ["--examples", str(study["examples"])]
    if study.get("max_loss_increase") is not None:
        words += ["--max-loss-increase", f"{study['max_loss_increase']:g}"]
    elif study["max_drop"] != MAX_DROP:
        words += ["--max-drop", f"{study['max_drop']:g}"]
    return shlex.join([*words, *(["--out", str(path.parent)] if run is None else [])])


def command_of_population(path: Path) -> str:
    return shlex.join(["headway", "heads", str(path.parent)])


def command_of_lengths(found: Found, path: Path, study: dict[str, Any]) -> str:
    if study["track"] == "lab":
        return command_of_lab(found, path.parent.parent)
    rows = study["rows"]

    def among(key: str) -> list[Any]:
        return list(dict.fromkeys(row[key] for row in rows if row.get(key) is not None))

    seeds, (shortest, longest) = among("seed"), study["train_lengths"]
    asked = {
        "positions": among("positions"),
        "index": [] if among("index") == ["sequential"] else among("index"),
        "pooling": among("pooling"),
        "track": [study["track"]],
        "train-lengths": [f"{shortest}-{longest}"],
        "seeds": [len(seeds)] if seeds == list(range(len(seeds))) else [*seeds, *([""] if len(seeds) == 1 else [])],
        "lengths": [length for length in sorted(among("length")) if length > longest],
        "probes": among("probe"),
        "examples": [] if study["examples"] == EXAMPLES_OF_LENGTH else [study["examples"]],
        "out": [path.parent],
    }
    words = ["headway", "lengths", study["task"]]
    for name, values in asked.items():
        words += [f"--{name}", ",".join(map(str, values))] if values else []
    return shlex.join(words)


def command_of_lab(found: Found, folder: Path) -> str:
    full = any("--preset full" in (recorded(run) or "") for run in found.runs)
    return shlex.join(["headway", "lab", *(["--preset", "full"] if full else []), "--out", str(folder)])


def command_of_comparison(path: Path, found: dict[str, Any]) -> str:
    words = ["headway", "compare", *found["folders"], "--by", ",".join(found["by"])]
    words += ["--metric", ",".join(found["metrics"])] if found["metrics"] else []
    words += [] if found.get("where") is None else ["--where", found["where"]]
    return shlex.join([*words, "--out", str(path.parent)])


def command_of_doctor(run: Path) -> str:
    return shlex.join(["headway", "doctor", str(run)])


def recorded(run: RunFolder) -> str | None:
    """The command that began a run."""
    command = read(run.path / "environment.json").get("command")
    return command if isinstance(command, str) else None


def going_on(run: RunFolder) -> str:
    """The command that ends a run which was interrupted."""
    command = recorded(run) or ""
    if command.startswith(("headway lab", "headway lengths")):
        return command
    if not command.startswith("headway train"):
        command = shlex.join(["headway", "train", run.config().task, "--out", str(run.path)])
    return command if "--resume" in command else f"{command} --resume"


def missing(found: Found) -> list[dict[str, str]]:
    if found.only_compares:
        return []
    told = []
    unfinished = [run for run in found.runs if not run.complete]
    for command in dict.fromkeys(going_on(run) for run in unfinished):
        count = sum(going_on(run) == command for run in unfinished)
        told.append({"what": "the end of an unfinished run" if count == 1 else f"the end of {count} unfinished runs",
                     "command": command})  # fmt: skip
    if not found.heads and found.population is None:
        told.append({"what": "heads", "command": _to_study(found)})
    if not found.lengths:
        out = str(found.folders[0] / "lengths")
        told.append({"what": "lengths", "command": shlex.join(["headway", "lengths", "sortedness", "--out", out])})
    return told


def _to_study(found: Found) -> str:
    adders = [run for run in found.runs if run.config().task == "addition"]
    if adders:
        run = next((run for run in adders if run.complete), adders[0])
        study = shlex.join(["headway", "heads", str(run.path)])
        return study if run.complete else f"{going_on(run)} && {study}"
    adder = str(found.folders[0] / "adder")
    train = ["headway", "train", "addition", "--out", adder]
    return f"{shlex.join(train)} && {shlex.join(['headway', 'heads', adder])}"
