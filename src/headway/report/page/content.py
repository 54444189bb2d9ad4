"""What a page shows, read from the files of runs and studies: nothing is computed here."""

from __future__ import annotations

import base64
import gzip
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.folder import RunFolder

IN_PAGE = ("learned", "sinusoidal", "none", "rope", "alibi")
"""encodings that the forward pass in the page knows"""
FIRST = 2
"""sentences about heads that are told first: what can go alone, and together"""
MOST_FILES = 1_000_000
"""bytes that all files may take in the page, packed; the largest stay outside"""
NOTHING_FORBIDDEN = "the doctor's checks forbid nothing here"
SHOWN = 3
"""decimals of an attention weight"""


@dataclass
class Found:
    """What lies in the folders of a report."""

    root: Path
    runs: list[RunFolder] = field(default_factory=list)
    heads: list[Path] = field(default_factory=list)
    """of one subject each"""
    population: Path | None = None
    """of many runs"""
    lengths: list[Path] = field(default_factory=list)
    certificates: list[Path] = field(default_factory=list)
    lab: Path | None = None
    files: list[Path] = field(default_factory=list)


def find(folders: list[Path]) -> Found:
    found = Found(Path(os.path.commonpath([folder.resolve() for folder in folders])))
    for folder in folders:
        if not folder.is_dir():
            raise HeadwayError(f"there is no folder {folder}; name folders that train, heads, lengths or lab wrote")
        for home, names, files in os.walk(folder):
            names[:] = sorted(name for name in names if name != "checkpoint")
            here = Path(home)
            if RunFolder.is_run(here):
                found.runs.append(RunFolder(here))
            for name in sorted(files):
                _take(found, here / name)
    if not (found.runs or found.heads or found.lengths or found.lab):
        raise HeadwayError(f"{folders[0]} holds no run and no study; 'headway lab' makes one")
    return found


def _take(found: Found, path: Path) -> None:
    match path.name:
        case "heads.json" if "members" in disk.read_json(path):
            found.population = found.population or path
        case "heads.json":
            found.heads.append(path)
        case "maps.json":
            pass
        case "lengths.json" if "reach" in disk.read_json(path):  # in a run's folder it holds that run's rows
            found.lengths.append(path)
        case "certificate.json":
            found.certificates.append(path)
        case "lab.json":
            found.lab = path
        case name if not name.endswith((".svg", ".csv")):
            return
    found.files.append(path)


def content_of(found: Found) -> dict[str, Any]:
    heads = None if not found.heads else {"findings": [], "withheld": [], **disk.read_json(found.heads[0])}
    lengths = [{"name": _name(found, path), **disk.read_json(path)} for path in found.lengths]
    adder = next((run for run in found.runs if _runs_in_page(run)), None)
    told_of_each = [*_of_heads(found, heads), *_of_lengths(lengths), *_of_lab(found)]
    return {
        "title": f"Headway: {found.root.name}",
        "headlines": [*_headline_of_heads(heads), *_headline_of_lengths(lengths)],
        "findings": [{"more": False, **told} for told in told_of_each],
        "model": None if adder is None else packed(adder),
        "only": None,
        "heads": heads,
        "maps": _average_maps(found),
        "examples": [] if adder is not None else _examples(found),
        "seeds": _seeds(found),
        "lengths": lengths,
        "certificates": [{**_certificate(path), "run": _name(found, path.parent)} for path in found.certificates],
        "made": {
            "facts": _facts(found),
            "commands": _commands(found),
            "runs": [_row(found, run) for run in found.runs],
        },
        "missing": _missing(found, heads, lengths),
        "files": _files(found),
    }  # fmt: skip


def _files(found: Found) -> list[dict[str, str]]:
    """What lies in the folders, packed; where that is too much, without the largest."""
    packed = {path: gzip.compress(path.read_bytes(), mtime=0) for path in found.files}
    taken, room = set(), MOST_FILES
    for path in sorted(packed, key=lambda path: len(packed[path])):
        room -= len(packed[path])
        if room >= 0:
            taken.add(path)
    return [
        {"name": _name(found, path).replace("/", "-"), "data": base64.b64encode(packed[path]).decode()}
        for path in found.files
        if path in taken
    ]


def _beside(study: Path) -> dict[str, Any]:
    """The maps that a study of heads keeps beside its numbers."""
    path = study.with_name("maps.json")
    return disk.read_json(path) if path.exists() else {}


def _average_maps(found: Found) -> list[dict[str, Any]] | None:
    kept = _beside(found.heads[0]).get("average") if found.heads else None
    return None if kept is None else _shortened(kept["all"]["maps"])


def _examples(found: Found) -> list[dict[str, Any]]:
    """Problems worked out beforehand, for a page that has no model inside."""
    kept = _beside(found.heads[0]).get("examples", []) if found.heads else []
    return [{**example, "maps": _shortened(example["maps"])} for example in kept]


def _shortened(maps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def short(values: Any) -> Any:
        return [short(each) for each in values] if isinstance(values, list) else round(values, SHOWN)

    return [{**site, "heads": short(site["heads"])} for site in maps]


def _seeds(found: Found) -> list[dict[str, Any]]:
    """What differs from seed to seed: of a population, or of every study there is."""
    if found.population is not None:
        members = disk.read_json(found.population)["members"]
        kept = ("subject", "alone", "alone_removed_together", "together", "together_accuracy", "critical")
        return [{key: member[key] for key in kept} for member in members if "refused" not in member]
    rows = []
    for study in map(disk.read_json, found.heads):
        if study["alone"] is not None and study["together"] is not None:
            critical = [row["head"] for row in study["heads"] if row["verdict"] == "critical"]
            left = {"alone_removed_together": study["alone_removed_together"]["accuracy"]}
            counts = {"alone": study["alone"]["count"], "together": study["together"]["count"], **left}
            whole = {"together_accuracy": study["together"]["accuracy"], "critical": critical}
            rows.append({"subject": study["subject"], **counts, **whole})
    return rows


def _name(found: Found, path: Path) -> str:
    here = path.resolve()
    return str(here.relative_to(found.root)) if found.root in here.parents else here.name


def _within(found: Found, path: Path) -> str:
    """A path that was written down when the lab was made, from the folder of the report on."""
    parts = path.parts
    return "/".join(parts[parts.index(found.root.name) + 1 :]) if found.root.name in parts else _name(found, path)


def _headline_of_heads(heads: dict[str, Any] | None) -> list[dict[str, str]]:
    """The answer to the first question, in a few words."""
    if heads is None or heads["together"] is None:
        return []
    total, gone, alone = len(heads["heads"]), heads["together"], heads["alone"]["count"]
    left = heads["alone_removed_together"]["accuracy"]
    return [
        {
            "question": "Which heads does it need?",
            "answer": f"{gone['count']} of {total} heads can go together",
            "rest": f"{gone['accuracy']:.1%} right without them. The {alone} that look harmless one at a time leave "
            f"{left:.1%} when all of them go.",
        }
    ]


def _headline_of_lengths(lengths: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The answer to the second: of the first study, on its first probe."""
    if not lengths or not lengths[0]["reach"]:
        return []
    study = lengths[0]
    probe, trained = study["reach"][0]["probe"], study["train_lengths"][1]
    rows = [row for row in study["reach"] if row["probe"] == probe]
    told = [f"{row['positions']} {'not learned' if row['worst'] is None else row['worst']}" for row in rows]
    far = max((row["worst"] or 0 for row in rows), default=0)
    past = f"right up to length {far}" if far > trained else "not past its training length"
    return [
        {
            "question": "How far past its training length does it work?",
            "answer": f"{study['task'].capitalize()}, trained to {trained}: {past}",
            "rest": f"Reach of the worst seed on the probe {probe}: {', '.join(told)}.",
        }
    ]


def _of_heads(found: Found, heads: dict[str, Any] | None) -> list[dict[str, Any]]:
    if heads is None:
        return []
    details = {
        "problems": f"{heads['examples']:,}",
        "right with all heads": f"{heads['baseline']:.4f}",
        "ablation": heads["ablation"],
        "model": heads["subject"],
        "seeds": str(len(found.heads)),
        "check": NOTHING_FORBIDDEN if not heads.get("withheld") else "failed",
        "command": f"headway heads {_name(found, found.heads[0].parent)}",
    }
    sets = (heads["alone_removed_together"], heads["together"])
    intervals = [
        {"interval of what is left (95%)": "{:.4f} to {:.4f}".format(*each["interval"])}
        if each and each.get("interval")
        else {}
        for each in sets
    ]
    withheld = "; ".join(f"{each['check']}: {each['reason']}" for each in heads.get("withheld", ()))
    told = []
    for place, text in enumerate(heads.get("findings", ())):
        own = {**(intervals[place] if place < FIRST else {}), **details}
        told.append({"text": text, "details": own, "withheld": withheld or None, "more": place >= FIRST})
    return told


def _of_lengths(lengths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = []
    for study in lengths:
        details = {
            "task": study["task"],
            "track": study["track"],
            "trained on lengths": f"{study['train_lengths'][0]} to {study['train_lengths'][1]}",
            "problems at each length": f"{study['examples']:,}",
            "seeds": str(len({row["seed"] for row in study["rows"]})),
            "interval": "of every point, 95%, in the curves below",
            "check": _checked(study),
            "command": _command_of(study),
        }
        told += [{"text": text, "details": details, "withheld": None} for text in study["findings"]]
    return told


def _checked(study: dict[str, Any]) -> str:
    """What was looked at before anything was concluded."""
    forbidden = study.get("withheld") or []
    if forbidden:
        return "; ".join(f"{each['check']}: {each['reason']}" for each in forbidden)
    learned = [row["converged"] for row in study.get("converged", ())]
    return (
        f"{sum(learned)} of {len(learned)} runs learned the task in range; the others are not told" if learned else ""
    )


def _command_of(study: dict[str, Any]) -> str:
    return "headway lab" if study["track"] == "lab" else f"headway lengths {study['task']} --track {study['track']}"


def _of_lab(found: Found) -> list[dict[str, Any]]:
    if found.lab is None:
        return []
    lab, told = disk.read_json(found.lab), []
    for row in lab["runs"]:
        low_high = row["interval"]
        details = {
            "problems": f"{row['examples']:,}" + (" (all there are)" if low_high is None else ""),
            "wrong": f"{row['errors']:,}",
            "95% interval": "none: all were tried" if low_high is None else "{:.4f} to {:.4f}".format(*low_high),
            "seed": str(row["seed"]),
            "check": ", ".join(f"{each['check']} failed" for each in row.get("withheld", ())) or NOTHING_FORBIDDEN,
            "command": "headway lab",
        }  # fmt: skip
        told.append({"text": row["finding"], "details": details, "withheld": None})
    for each in lab.get("withheld", ()):
        run = _within(found, Path(each["run"]))
        details = {"run": run, "check": each["check"], "command": f"headway doctor {run}"}
        text = f"What {run} says about {each['about']}"
        told.append({"text": text, "details": details, "withheld": each["reason"]})
    return told


def _certificate(path: Path) -> dict[str, Any]:
    content = disk.read_json(path)
    return {"contexts": content["contexts"], "smallest_margin": content["smallest_margin"]}


def _facts(found: Found) -> dict[str, str]:
    if not found.runs:
        return {}
    made = disk.read_json(found.runs[0].path / "environment.json")
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


def _commands(found: Found) -> list[str]:
    told = [disk.read_json(run.path / "environment.json").get("command") for run in found.runs]
    return list(dict.fromkeys(str(each) for each in told if each))


def _row(found: Found, run: RunFolder) -> dict[str, Any]:
    config, training = run.config(), run.training() if run.complete else None
    return {
        "run": _name(found, run.path),
        "task": config.task,
        "positions": config.model.positions,
        "config": config.digest[:8],
        "seed": config.seed,
        "steps": None if training is None else training.steps,
        "seconds": None if training is None else round(training.seconds, 1),
        "parameters": None if training is None else training.parameters,
        "weights": "unfinished" if training is None else training.weights_sha256[:12],
    }


def _missing(found: Found, heads: dict[str, Any] | None, lengths: list[dict[str, Any]]) -> list[dict[str, str]]:
    missing = []
    adder = next((run for run in found.runs if run.config().task == "addition"), None)
    if heads is None:
        where = "pretrained:adder --out study" if adder is None else str(_name(found, adder.path))
        missing.append({"what": "heads", "command": f"headway heads {where}"})
    if not lengths:
        missing.append({"what": "lengths", "command": f"headway lengths sortedness --out {found.root.name}/lengths"})
    return missing


def _runs_in_page(run: RunFolder) -> bool:
    """Whether the forward pass in the page is written for this run."""
    config = run.config()
    model, options = config.model, config.options
    usual = {"base": 10, "operators": "+", "first": "most", "natural": False}
    return (
        run.complete
        and config.task == "addition"
        and model.kind == "encoder-decoder"
        and model.positions in IN_PAGE
        and model.index == "sequential"
        and not model.pruned
        and all(options.get(name, value) == value for name, value in usual.items())
    )


def packed(run: RunFolder) -> dict[str, Any]:
    """A model as half floats. Of position tables only the rows that a sum of these digits uses."""
    import numpy
    from safetensors.numpy import load_file

    config = run.config()
    model, digits = config.model, config.options.get("digits", 3)
    rows = {"source_positions.table": 2 * digits + 1, "answer_positions.table": digits + 1}
    weights = {}
    for name, weight in load_file(run.weights).items():
        half = weight[: rows.get(name, len(weight))].astype(numpy.float16)
        data = base64.b64encode(half.astype("<f2").tobytes()).decode()
        weights[name] = {"shape": list(half.shape), "data": data}
    return {
        "d_model": model.d_model,
        "heads": model.heads,
        "layers": model.layers,
        "decoder_layers": model.decoder_layers,
        "start": model.start,
        "positions": model.positions,
        "vocabulary": [*map(str, range(10)), "+", "−", "start", "end"],
        "digits": digits,
        "weights": weights,
    }
