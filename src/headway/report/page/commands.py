"""The commands that a page names: those that made what is there, and those that make what is missing. They can be run
as they stand, where the report was written."""

import shlex
from pathlib import Path

from headway.report.page.sources import Sources
from headway.report.studies import ComparisonFile, Environment, HeadsFile, LengthsFile, read_study
from headway.runs.folder import RunFolder

EXAMPLES, EXAMPLES_OF_LENGTH, MAX_DROP = 10_000, 2_000, 0.01
"""what the commands take where nothing is said"""


def headway(*words: str | Path) -> str:
    """A command line."""
    return shlex.join(["headway", *map(str, words)])


def command_of_heads(sources: Sources, home: Path, study: HeadsFile) -> str:
    run = sources.run_at(home)
    words = ["heads", "SUBJECT" if run is None else str(run.path)]
    if study["ablation"] != "zero":
        words += ["--ablation", study["ablation"]]
    if study["confidence_of_each_interval"] is None:
        words += ["--all"]
    elif study["examples"] != EXAMPLES:
        words += ["--examples", str(study["examples"])]
    if study["max_loss_increase"] is not None:
        words += ["--max-loss-increase", f"{study['max_loss_increase']:g}"]
    elif study["max_drop"] != MAX_DROP:
        words += ["--max-drop", f"{study['max_drop']:g}"]
    return headway(*words, *(["--out", home] if run is None else []))


def command_of_lengths(sources: Sources, path: Path, study: LengthsFile) -> str:
    if study["track"] == "lab":
        return command_of_lab(sources, path.parent.parent)
    rows, (shortest, longest) = study["rows"], study["train_lengths"]
    index = list(dict.fromkeys(row["index"] for row in rows))
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    asked = {
        "positions": dict.fromkeys(row["positions"] for row in rows),
        "index": [] if index == ["sequential"] else index,
        "pooling": dict.fromkeys(pooling for row in rows if (pooling := row.get("pooling")) is not None),
        "track": [study["track"]],
        "train-lengths": [f"{shortest}-{longest}"],
        "seeds": [len(seeds)] if seeds == list(range(len(seeds))) else [*seeds, *([""] if len(seeds) == 1 else [])],
        "lengths": sorted({row["length"] for row in rows if row["length"] > longest}),
        "probes": dict.fromkeys(row["probe"] for row in rows),
        "examples": [] if study["examples"] == EXAMPLES_OF_LENGTH else [study["examples"]],
        "out": [path.parent],
    }
    words = [word for name, values in asked.items() if values for word in (f"--{name}", ",".join(map(str, values)))]
    return headway("lengths", study["task"], *words)


def command_of_lab(sources: Sources, folder: Path) -> str:
    full = any("--preset full" in (recorded_command(run) or "") for run in sources.runs)
    return headway("lab", *(["--preset", "full"] if full else []), "--out", folder)


def command_of_comparison(path: Path, study: ComparisonFile) -> str:
    words = [*study["folders"], "--by", ",".join(study["by"])]
    words += ["--metric", ",".join(study["metrics"])] if study["metrics"] else []
    words += [] if study["where"] is None else ["--where", study["where"]]
    return headway("compare", *words, "--out", path.parent)


def recorded_command(run: RunFolder) -> str | None:
    """The command that began a run."""
    return read_study(run.path / "environment.json", Environment).get("command")


def resuming_command(run: RunFolder) -> str:
    """The command that ends a run which was interrupted."""
    command = recorded_command(run) or ""
    if command.startswith(("headway lab", "headway lengths")):
        return command
    if not command.startswith("headway train"):
        command = headway("train", run.config().task, "--out", run.path)
    return command if "--resume" in command else f"{command} --resume"


def missing_parts(sources: Sources) -> list[dict[str, str]]:
    """What the page lacks, and the commands that make it; nothing where it only compares runs that lie elsewhere."""
    if not sources.runs and [kind for kind, paths in sources.studies.items() if paths] == ["compare"]:
        return []
    resuming = [resuming_command(run) for run in sources.runs if not run.complete]
    parts = [
        ("the end of an unfinished run" if count == 1 else f"the end of {count} unfinished runs", command)
        for command, count in {command: resuming.count(command) for command in resuming}.items()
    ]
    if not sources.studies["heads"] and not sources.studies["heads-population"]:
        parts.append(("heads", _command_for_heads(sources)))
    if not sources.studies["lengths"]:
        parts.append(("lengths", headway("lengths", "sortedness", "--out", sources.folders[0] / "lengths")))
    return [{"what": what, "command": command} for what, command in parts]


def _command_for_heads(sources: Sources) -> str:
    adders = [run for run in sources.runs if run.config().task == "addition"]
    if not adders:
        adder = sources.folders[0] / "adder"
        return f"{headway('train', 'addition', '--out', adder)} && {headway('heads', adder)}"
    run = next((run for run in adders if run.complete), adders[0])
    study = headway("heads", run.path)
    return study if run.complete else f"{resuming_command(run)} && {study}"
