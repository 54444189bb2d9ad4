"""Writes the findings of a page with their evidence, each for the part that it explains; and
the commands that made what is there, and those that make what is missing. They can be run as they are, in the folder
where the report was written."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from headway.report import studies
from headway.report.page.sources import Sources
from headway.runs.folder import RunFolder

NOTHING_FORBIDDEN = "the doctor's checks forbid nothing here"
FindingJson = TypedDict(  # noqa: UP013
    "FindingJson", {"text": str, "details": dict[str, str], "withheld": str | None, "about": str, "study": str | None}
)
"""a sentence with its evidence, why it is withheld, the part of the page that it explains, and the study it is from"""
EXAMPLES, EXAMPLES_OF_LENGTH, MAX_DROP = 10_000, 2_000, 0.01  # the defaults of the commands


def _findings(
    about: str, sentences: Iterable[str], details: dict[str, str], withheld: str | None = None, study: str | None = None
) -> list[FindingJson]:
    return [
        {"text": text, "details": details, "withheld": withheld, "about": about, "study": study} for text in sentences
    ]


def join_reasons(withheld: list[studies.WithheldJson]) -> str:
    return "; ".join(f"{each['check']}: {each['reason'].rstrip('.')}" for each in withheld)


def details_of_heads(sources: Sources, path: Path, heads: studies.HeadsFile, seeds: int) -> dict[str, str]:
    cost = heads.get("counted")
    return {
        "problems": f"{heads['examples']:,}",
        **({} if cost is None else {"judged by": cost}),
        **({} if heads["metric"] != "exact" else {"right with all heads": f"{heads['baseline']:.4f}"}),
        **_describe_held_out(heads["held_out"]),
        "ablation": heads.get("words", heads["ablation"]),
        "model": heads["subject"],
        "seeds": "1" if seeds <= 1 else "1 (others: see Over seeds)",
        "check": "failed" if heads["withheld"] else NOTHING_FORBIDDEN,
        "command": command_of_heads(sources, path.parent, heads),
    }


def findings_of_heads(sources: Sources, path: Path, heads: studies.HeadsFile, seeds: int) -> list[FindingJson]:
    cost, details = heads.get("counted"), details_of_heads(sources, path, heads, seeds)
    if heads["withheld"]:
        return _findings("heads", ["Which heads it needs"], details, join_reasons(heads["withheld"]))
    found = _findings("heads", heads["findings"], details)
    asked = heads.get("asked", heads["ablation"])  # of several windows the smallest
    others = [each["ablation"] for each in heads["sets"] or () if each["ablation"] != asked]
    alike = ["zero, mean and resample"] if others and "asked" not in heads else []
    kinds = [heads.get("words", asked)] * 2 + [*others, *alike]
    if "asked" in heads:  # of windows there is more to say
        kinds += [details["ablation"]] * (len(found) - len(kinds) - len((heads["roles"] or {}).get("explained", ())))
    for finding, kind in zip(found, kinds, strict=False):  # alone, together under each kind, where the kinds agree
        finding["details"] = {**details, "ablation": kind}
    for finding, removed in zip(found, (heads["alone_removed_together"], heads["together"]), strict=False):
        bounds = removed.get("interval") if removed is not None and cost is None else None
        if bounds and None not in bounds:
            span = "{:.4f} to {:.4f}".format(*bounds)
            finding["details"] = {"95% interval of the accuracy left": span, **finding["details"]}
    return [{**each, "about": "heads" if place < len(kinds) else "roles"} for place, each in enumerate(found)]


def _describe_held_out(held_out: studies.HeldOutJson | None) -> dict[str, str]:
    if held_out is None:
        return {}
    return {"held out, with all heads": f"{held_out['errors']:,} wrong of {held_out['examples']:,}"}


def details_of_population(path: Path, population: studies.PopulationFile) -> dict[str, str]:
    return {
        "seeds": f"{len(population['members']):,}",
        "check": f"{population['distribution']['refused']:,} refused: accuracy too low",
        "command": headway("heads", path.parent),
    }


def findings_of_population(path: Path, population: studies.PopulationFile) -> list[FindingJson]:
    return _findings("seeds", population["findings"], details_of_population(path, population))


def details_of_lengths(sources: Sources, path: Path, study: studies.LengthsFile) -> dict[str, str]:
    if "subject" in study:
        return _details_of_subject(path, study)
    learned = [row["converged"] for row in study["converged"]]
    summary = f"{sum(learned)} of {len(learned)} runs learned the task in range; the others are left out"
    return {
        "task": study["task"],
        "track": study["track"],
        "trained on lengths": "{} to {}".format(*study["train_lengths"]),
        "problems at each length": f"{study['examples']:,}",
        "seeds": str(len({row["seed"] for row in study["rows"]})),
        "interval": "95% for every point, in the curves below; reach at 95% for all points together",
        "check": join_reasons(study["withheld"]) or (summary if learned else ""),
        "command": command_of_lengths(sources, path, study),
    }


def findings_of_lengths(sources: Sources, path: Path, study: studies.LengthsFile) -> list[FindingJson]:
    details, name = details_of_lengths(sources, path, study), sources.name(path)
    if "subject" in study and study["withheld"]:
        return _findings("length", ["How far it works"], details, join_reasons(study["withheld"]), study=name)
    return _findings("length", study["findings"], details, study=name)


def _details_of_subject(path: Path, study: studies.LengthsFile) -> dict[str, str]:
    """Returns the evidence of a study of a user's model."""
    (in_range,) = study["converged"]
    bounds = "{:.4f} to {:.4f}".format(*in_range.get("interval", (0.0, 1.0)))
    return {
        "model": study.get("subject", ""),
        "problems of": study["task"] if study["task"] != "problems" else "the subject's own function",
        "trained on lengths": "{} to {}".format(*study["train_lengths"]),
        "problems at each length": f"{study['examples']:,}",
        "accuracy over the training lengths": f"{in_range.get('in_range', 0.0):.4f} (95% interval {bounds})",
        "interval": "95% for every point, in the curves below; reach at 95% for all points together",
        "check": join_reasons(study["withheld"]) or NOTHING_FORBIDDEN,
        "command": command_of_lengths_of_subject(path, study),
    }


def findings_of_comparison(path: Path, study: studies.ComparisonFile) -> list[FindingJson]:
    runs, complete = (sum(row[key] for row in study["rows"]) for key in ("runs", "complete"))
    details = {
        "runs": f"{runs:,}, {complete:,} of them complete",
        "groups": f"{len(study['rows']):,}, by {', '.join(study['by'])}",
        "seeds": ", ".join(dict.fromkeys(str(row["seeds"]) for row in study["rows"])) + " per group",
        "interval": "95% for the mean over runs, in the table below",
        "command": command_of_comparison(path, study),
    }
    return _findings("comparison", study["findings"], details)


def findings_of_lab(sources: Sources, path: Path, lab: studies.LabFile) -> list[FindingJson]:
    found, command = [], command_of_lab(sources, path.parent)
    for row in lab["runs"]:
        bounds = row["interval"]
        failed = ", ".join(f"{each['check']} failed" for each in row.get("withheld", ()))
        details = {
            "problems": f"{row['examples']:,}" + (" (all possible ones)" if bounds is None else ""),
            "wrong": f"{row['errors']:,}",
            "95% interval": "none: all were tested" if bounds is None else "{:.4f} to {:.4f}".format(*bounds),
            "seed": str(row["seed"]),
            "check": failed or NOTHING_FORBIDDEN,
            "command": command,
        }
        found += _findings("lab", [row["finding"]], details)
    for each in lab["withheld"]:
        run = sources.find_moved_run(each["run"])
        if "heads" in each["about"] and sources.heads is not None and run == sources.heads.parent:
            continue  # the study itself says so
        details = {"run": sources.name(run), "check": each["check"], "command": headway("doctor", run)}
        text = f"{sources.name(run)}: {each['about']}"
        found += _findings("lab", [text], details, each["reason"].rstrip("."))
    return found


def headway(*words: str | Path) -> str:
    """Returns a command line."""
    return shlex.join(["headway", *map(str, words)])


def command_of_heads(sources: Sources, home: Path, study: studies.HeadsFile) -> str:
    run = sources.run_at(home)
    words = ["heads", "SUBJECT" if run is None else str(run.path)]
    if study["ablation"] != "zero":
        words += ["--ablation", study["ablation"]]
    if (recent := study.get("recent")) is not None:
        words += ["--sink", str(study.get("sink", 0)), "--recent", ",".join(map(str, recent))]
    if study.get("units", "heads") != "heads":
        words += ["--units", "groups"]
    if study["confidence_of_each_interval"] is None:
        words += ["--all"]
    elif study["examples"] != EXAMPLES:
        words += ["--examples", str(study["examples"])]
    if (share := study["max_loss_increase_share"]) is not None:
        words += ["--max-loss-increase", f"{100 * share:g}%"]
    elif study["max_loss_increase"] is not None:
        words += ["--max-loss-increase", f"{study['max_loss_increase']:g}"]
    elif study["max_drop"] != MAX_DROP:
        words += ["--max-drop", f"{study['max_drop']:g}"]
    return headway(*words, *(["--out", home] if run is None else []))


def command_of_lengths(sources: Sources, path: Path, study: studies.LengthsFile) -> str:
    if study["track"] == "lab":
        return command_of_lab(sources, path.parent.parent)
    rows, (shortest, longest) = study["rows"], study["train_lengths"]
    index = list(dict.fromkeys(row["index"] for row in rows))
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    flags = {
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
    words = [word for name, values in flags.items() if values for word in (f"--{name}", ",".join(map(str, values)))]
    return headway("lengths", study["task"], *words)


def command_of_lengths_of_subject(path: Path, study: studies.LengthsFile) -> str:
    longest, tested = study["train_lengths"][1], {row["length"] for row in study["rows"]}
    tested = tested.union(*(each["lengths"] for each in study.get("remarks", ())))
    flags = {
        "lengths": sorted(tested - {longest}),
        "probes": dict.fromkeys(row["probe"] for row in study["reach"]),
        "examples": [] if study["examples"] == EXAMPLES_OF_LENGTH else [study["examples"]],
        "out": [path.parent],
    }
    words = [word for name, values in flags.items() if values for word in (f"--{name}", ",".join(map(str, values)))]
    return headway("lengths", study.get("asked", "SUBJECT"), *words)


def command_of_lab(sources: Sources, folder: Path) -> str:
    full = any("--preset full" in (recorded_command(run) or "") for run in sources.runs)
    return headway("lab", *(["--preset", "full"] if full else []), "--out", folder)


def command_of_comparison(path: Path, study: studies.ComparisonFile) -> str:
    words = [*study["folders"], "--by", ",".join(study["by"])]
    words += ["--metric", ",".join(study["metrics"])] if study["metrics"] else []
    words += [] if study["where"] is None else ["--where", study["where"]]
    return headway("compare", *words, "--out", path.parent)


def recorded_command(run: RunFolder) -> str | None:
    """Returns the command that started a run."""
    return studies.read_study(run.path / "environment.json", studies.Environment).get("command")


def resuming_command(run: RunFolder) -> str:
    """Returns the command that finishes an interrupted run."""
    command = recorded_command(run) or ""
    if command.startswith(("headway lab", "headway lengths")):
        return command
    if not command.startswith("headway train"):
        command = headway("train", run.config().task, "--out", run.path)
    return command if "--resume" in command else f"{command} --resume"


def missing_parts(sources: Sources) -> list[dict[str, str]]:
    """Lists what the page lacks, with the commands that make it; nothing where it only compares runs elsewhere."""
    if not sources.runs and [kind for kind, paths in sources.studies.items() if paths] == ["compare"]:
        return []
    resuming = [resuming_command(run) for run in sources.runs if not run.complete]
    parts = [
        ("the end of an unfinished run" if count == 1 else f"the end of {count} unfinished runs", command)
        for command, count in {command: resuming.count(command) for command in resuming}.items()
    ]
    own = bool(sources.studies["lengths-of-subject"] or sources.studies["lengths-of-language"])
    only_own = own and not sources.runs
    if not sources.studies["heads"] and not sources.studies["heads-population"] and not only_own:
        parts.append(("heads", _command_for_heads(sources)))
    if not sources.studies["lengths"] and not own:
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
