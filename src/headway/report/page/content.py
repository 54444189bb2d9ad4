"""What a page shows, read from the files of runs and studies: nothing is computed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import BrokenRun, HeadwayError
from headway.report.comparing import drawn
from headway.report.page import told
from headway.report.page.commands import command_of_comparison, missing, recorded
from headway.report.page.found import Found
from headway.report.page.packing import packed, packed_files
from headway.report.page.reading import (
    CERTIFICATE,
    COMPARISON,
    HEADS,
    LENGTHS,
    MAPS,
    MEMBER,
    POPULATION,
    SPREAD_OF_METRIC,
    check,
    read,
)
from headway.runs.certificate import find_fault
from headway.runs.folder import RunFolder

SHOWN = 3
"""decimals of an attention weight"""


def content_of(found: Found) -> dict[str, Any]:
    heads = completed(read(found.heads[0], HEADS)) if found.heads else None
    population = None if found.population is None else _population(found.population)
    lengths = [
        {"signals": [], "diagnosis": [], "findings": [], "name": found.name(path), **read(path, LENGTHS)}
        for path in found.lengths
    ]
    comparisons = [_comparison(found, path) for path in found.comparisons]
    adder, seeds, (files, left_out) = found.adder, _seeds(found, population), packed_files(found)
    told_of_each = [
        *told.of_heads(found, heads, len(seeds)),
        *told.of_population(found, population),
        *told.of_lengths(found, lengths),
        *told.of_comparisons(found, comparisons),
        *told.of_lab(found),
    ]
    return {
        "title": f"Headway: {found.root.name or found.root}",
        "headlines": [*told.headline_of_heads(heads, population), *told.headline_of_lengths(lengths)],
        "findings": [{"more": False, **each} for each in told_of_each],
        "model": None if adder is None else {"run": found.name(adder.path), **packed(adder)},
        "only": None,
        "heads": heads,
        "studies": [found.name(path.parent) for path in found.heads],
        "maps": _average_maps(found),
        "examples": [] if adder is not None else _examples(found),
        "seeds": seeds,
        "lengths": lengths,
        "comparisons": comparisons,
        "certificates": [_certificate(found, path) for path in found.certificates],
        "made": {
            "facts": _facts(found),
            "commands": _commands(found, comparisons),
            "runs": [_row(found, run) for run in found.runs],
        },
        "missing": missing(found),
        "files": files,
        "left_out": left_out,
    }


def completed(study: dict[str, Any]) -> dict[str, Any]:
    """A study of heads with what older files do not say, and what its costs are counted in where that is a loss."""
    counted = told.counted_in(study) if told.by_loss(study) else None
    return {"findings": [], "withheld": [], "roles": None, "counted": counted, **study}


def _population(path: Path) -> dict[str, Any]:
    content = read(path, POPULATION)
    for place, member in enumerate(content["members"]):
        if "refused" not in member:
            check(path, member, MEMBER, f"members[{place}]")
    return content


def _beside(found: Found) -> dict[str, Any]:
    """The maps that the study of heads keeps beside its numbers."""
    path = found.heads[0].with_name("maps.json") if found.heads else None
    return read(path, MAPS) if path is not None and path.exists() else {}


def _average_maps(found: Found) -> list[dict[str, Any]] | None:
    kept = _beside(found).get("average")
    return None if kept is None else _shortened(kept["all"]["maps"])


def _examples(found: Found) -> list[dict[str, Any]]:
    """Problems worked out beforehand, for a page that has no model inside."""
    kept = _beside(found).get("examples", [])
    return [{**example, "maps": _shortened(example["maps"])} for example in kept]


def _shortened(maps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def short(values: Any) -> Any:
        return [short(each) for each in values] if isinstance(values, list) else round(values or 0.0, SHOWN)

    return [{**site, "heads": short(site["heads"])} for site in maps]


def _seeds(found: Found, population: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What differs from seed to seed: of a population, or of every study there is."""
    if population is not None:
        return [{key: member[key] for key in MEMBER} for member in population["members"] if "refused" not in member]
    rows = []
    for study in (read(path, HEADS) for path in found.heads):
        if study["alone"] is not None and study["together"] is not None:
            critical = [row["head"] for row in study["heads"] if row["verdict"] == "critical"]
            left = {"alone_removed_together": study["alone_removed_together"]["accuracy"]}
            counts = {"alone": study["alone"]["count"], "together": study["together"]["count"], **left}
            whole = {"together_accuracy": study["together"]["accuracy"], "critical": critical}
            rows.append({"subject": study["subject"], **counts, **whole})
    return rows


def _comparison(found: Found, path: Path) -> dict[str, Any]:
    """A comparison with its runs as dots: by metric and group, the value and the run of each."""
    content = read(path, COMPARISON)
    metrics = dict.fromkeys(content["metrics"], SPREAD_OF_METRIC)
    for place, row in enumerate(content["rows"]):
        for key in content["by"]:
            if isinstance(value := row.get(key, []), dict | list):
                check(path, value, str, f"rows[{place}].{key}")
        check(path, row["metrics"], metrics, f"rows[{place}].metrics")
    dots: dict[str, list[list[Any]]] = {metric: [[] for _ in content["rows"]] for metric in metrics}
    for place, run in enumerate(content["runs"]):
        if not 0 <= run["group"] < len(content["rows"]):
            raise BrokenRun(f"{path} is not what Headway writes: runs[{place}] is of no group; make it again")
        for metric in metrics if run["state"] == "complete" else ():
            if isinstance(value := run.get(metric), int | float):
                dots[metric][run["group"]].append((float(value), run["run"]))
    shown = {metric: [drawn(each) for each in groups] for metric, groups in dots.items()}
    return {**{key: value for key, value in content.items() if key != "runs"}, "name": found.name(path), "dots": shown}


def _certificate(found: Found, path: Path) -> dict[str, Any]:
    """What was proved; where the certificate is not of the run beside it, why it does not count."""
    content = read(path, CERTIFICATE)
    shown = {"contexts": content["contexts"], "smallest_margin": content["smallest_margin"]}
    return {**shown, "run": found.name(path.parent), "refused": _refused(content, RunFolder(path.parent))}


def _refused(content: dict[str, Any], run: RunFolder) -> str | None:
    if not run.complete:
        return "no finished run lies beside it"
    try:
        run.verified()
    except HeadwayError as error:
        return str(error)
    if (fault := find_fault(content, run.training().weights_sha256)) is not None:
        return f"it {fault}"
    return None if content.get("certified") is True and content.get("wrong") == 0 else "it was not granted"


def _commands(found: Found, comparisons: list[dict[str, Any]]) -> list[str]:
    """That made the runs, and put them side by side."""
    begun = [command for command in map(recorded, found.runs) if command]
    compared = [command_of_comparison(*each) for each in zip(found.comparisons, comparisons, strict=True)]
    return list(dict.fromkeys([*begun, *compared]))


def _facts(found: Found) -> dict[str, str]:
    if not found.runs:
        return {}
    made = read(found.runs[0].path / "environment.json")
    named = {
        "headway": "Headway",
        "python": "Python",
        "torch": "PyTorch",
        "system": "system",
        "device": "device",
        "threads": "threads",
        "started": "started",
    }
    return {title: str(made[key]) for key, title in named.items() if made.get(key) is not None}


def _row(found: Found, run: RunFolder) -> dict[str, Any]:
    config, training = run.config(), run.training() if run.complete else None
    return {
        "run": found.name(run.path),
        "task": config.task,
        "positions": config.model.positions,
        "config": config.digest[:8],
        "seed": config.seed,
        "steps": None if training is None else training.steps,
        "seconds": None if training is None else round(training.seconds, 1),
        "parameters": None if training is None else training.parameters,
        "weights": "unfinished" if training is None else training.weights_sha256[:12],
    }
