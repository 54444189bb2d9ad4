"""What a page shows, read from the files of runs and studies: nothing is computed here."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.folder import RunFolder

IN_PAGE = ("learned",)
"""encodings that the forward pass in the page knows"""
FIRST = 2
"""sentences about heads that are told first: what can go alone, and together"""
MOST_FILE = 600_000
"""bytes of a file that is put into the page"""


@dataclass
class Found:
    """What lies in the folders of a report."""

    root: Path
    runs: list[RunFolder] = field(default_factory=list)
    heads: Path | None = None
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
        case "heads.json" if found.heads is None and "members" not in disk.read_json(path):
            found.heads = path
        case "lengths.json" if "reach" in disk.read_json(path):  # in a run's folder it holds that run's rows
            found.lengths.append(path)
        case "certificate.json":
            found.certificates.append(path)
        case "lab.json":
            found.lab = path
        case name if not name.endswith((".svg", ".csv")):
            return
    if path.stat().st_size <= MOST_FILE:
        found.files.append(path)


def content_of(found: Found) -> dict[str, Any]:
    heads = None if found.heads is None else {"findings": [], "withheld": [], **disk.read_json(found.heads)}
    lengths = [{"name": _name(found, path), **disk.read_json(path)} for path in found.lengths]
    adder = next((run for run in found.runs if _runs_in_page(run)), None)
    told_of_each = [*_of_heads(found, heads), *_of_lengths(lengths), *_of_lab(found)]
    return {
        "title": f"Headway: {found.root.name}",
        "findings": [{"more": False, **told} for told in told_of_each],
        "model": None if adder is None else packed(adder),
        "heads": heads,
        "lengths": lengths,
        "certificates": [{**_certificate(path), "run": _name(found, path.parent)} for path in found.certificates],
        "made": {
            "facts": _facts(found),
            "commands": _commands(found),
            "runs": [_row(found, run) for run in found.runs],
        },
        "missing": _missing(found, heads, lengths),
        "files": [{"name": _name(found, path).replace("/", "-"), "text": path.read_text()} for path in found.files],
    }  # fmt: skip


def _name(found: Found, path: Path) -> str:
    here = path.resolve()
    return str(here.relative_to(found.root)) if found.root in here.parents else here.name


def _of_heads(found: Found, heads: dict[str, Any] | None) -> list[dict[str, Any]]:
    if heads is None or found.heads is None:
        return []
    details = {
        "problems": f"{heads['examples']:,}",
        "right with all heads": f"{heads['baseline']:.4f}",
        "ablation": heads["ablation"],
        "command": f"headway heads {_name(found, found.heads.parent)}",
    }
    withheld = "; ".join(f"{each['check']}: {each['reason']}" for each in heads.get("withheld", ()))
    told = enumerate(heads.get("findings", ()))
    return [
        {"text": text, "details": details, "withheld": withheld or None, "more": place >= FIRST} for place, text in told
    ]


def _of_lengths(lengths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = []
    for study in lengths:
        details = {
            "task": study["task"],
            "track": study["track"],
            "trained on lengths": f"{study['train_lengths'][0]} to {study['train_lengths'][1]}",
            "problems at each length": f"{study['examples']:,}",
            "seeds": str(len({row["seed"] for row in study["rows"]})),
            "command": _command_of(study),
        }
        told += [{"text": text, "details": details, "withheld": None} for text in study["findings"]]
    return told


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
            "command": "headway lab",
        }  # fmt: skip
        told.append({"text": row["finding"], "details": details, "withheld": None})
    for each in lab.get("withheld", ()):
        run = _name(found, Path(each["run"]))
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
    named = {"headway": "Headway", "python": "Python", "torch": "PyTorch", "system": "system", "device": "device"}
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
        "vocabulary": [*map(str, range(10)), "+", "−", "start", "end"],
        "digits": digits,
        "weights": weights,
    }
