"""The commands as Python functions, with the same names for options."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from headway.api.caching import cache as cache
from headway.api.certifying import add as add
from headway.api.certifying import certify_run as certify_run
from headway.api.certifying import show_certificate as show_certificate
from headway.api.certifying_digits import certify_digits as certify_digits
from headway.api.certifying_digits import show_digits as show_digits
from headway.api.curing import cured as cured
from headway.api.evaluating import evaluate as evaluate
from headway.api.evaluating import evaluate_runs as evaluate_runs
from headway.api.examining import examine as examine
from headway.api.heads import prune as prune
from headway.api.heads import screen_heads as screen_heads
from headway.api.heads import study_heads as study_heads
from headway.api.heads import study_members as study_members
from headway.api.lengths import study_lengths as study_lengths
from headway.api.training import shortfalls as shortfalls
from headway.api.training import train as train
from headway.api.training import train_seeds as train_seeds
from headway.doctor.examination import CHECKS
from headway.positions import POSITIONS
from headway.runs.folder import RunFolder, runs_in
from headway.runs.seal import CERTIFICATE
from headway.subjects.naming import PRETRAINED
from headway.subjects.own import Run, open_one
from headway.tasks import TASKS


def pretrained(name: str) -> Run:
    """Opens a trained model that ships with the package: `headway.pretrained("adder")`."""
    return open_one(f"pretrained:{name}")


def open(path: str | Path) -> Run:
    """Opens a finished run from its folder."""
    return open_one(path, torch.device("cpu"))


def list_items(what: str) -> list[dict[str, Any]]:
    """Lists tasks, positions, checks or pretrained models."""
    if what == "pretrained":
        return [_describe_shipped(run) for run in runs_in(PRETRAINED)]
    if what == "positions":
        items = []
        for name, kind in POSITIONS.items():
            text = vars(kind).get("__doc__") or sys.modules[kind.__module__].__doc__ or ""
            items.append({"name": name, "about": text.split(". ")[0].split("\n\n")[0].replace("\n", " ")})
        return items
    if what == "checks":
        return [{"name": name, "about": check.about} for name, check in CHECKS.items()]
    return [
        {
            "name": name,
            "about": (task.__doc__ or "").splitlines()[0],
            "options": [f"{entry.name}={entry.default}" for entry in fields(task)],  # pyright: ignore[reportArgumentType]
            "probes": list(task.probes),
        }
        for name, task in TASKS.items()
    ]


def _describe_shipped(run: RunFolder) -> dict[str, str | int]:
    """Describes a model that ships with the package."""
    config = run.config()
    return {
        "name": run.path.name,
        "task": config.task,
        "model": config.model.kind,
        "positions": config.model.positions,
        "parameters": run.training().parameters,
        "certified": (run.path / CERTIFICATE).exists(),
    }
