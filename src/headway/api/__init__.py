"""The commands as Python functions, with the same names for options."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from headway.api.caching import cache as cache
from headway.api.certifying import add as add
from headway.api.certifying import certify_run as certify_run
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
from headway.subjects.own import Run, open_one
from headway.tasks import TASKS


def pretrained(name: str) -> Run:
    """Opens a trained model that ships with the package: `headway.pretrained("adder")`."""
    return open_one(f"pretrained:{name}")


def open(path: str | Path) -> Run:
    """Opens a finished run from its folder."""
    return open_one(path, torch.device("cpu"))


def list_items(what: str) -> list[dict[str, Any]]:
    """Lists tasks, positions or checks."""
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
