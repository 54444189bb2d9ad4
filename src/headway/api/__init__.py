"""The commands as Python functions, with the same words."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from headway.api.certifying import add, certify_run
from headway.api.evaluating import evaluate, evaluate_runs
from headway.api.examining import examine
from headway.api.heads import prune, screen_heads, study_heads, study_members
from headway.api.lengths import study_lengths
from headway.api.training import shortfalls, train, train_seeds
from headway.doctor.examination import CHECKS
from headway.positions import POSITIONS
from headway.subjects.own import Run, open_one
from headway.tasks import TASKS

__all__ = [
    "add",
    "certify_run",
    "evaluate",
    "evaluate_runs",
    "examine",
    "list_items",
    "open",
    "pretrained",
    "prune",
    "screen_heads",
    "shortfalls",
    "study_heads",
    "study_lengths",
    "study_members",
    "train",
    "train_seeds",
]


def pretrained(name: str) -> Run:
    """A trained model that ships with the package: `headway.pretrained("adder")`."""
    return open_one(f"pretrained:{name}")


def open(path: str | Path) -> Run:
    """A finished run, from its folder."""
    return open_one(path, torch.device("cpu"))


def list_items(what: str) -> list[dict[str, Any]]:
    """Lists tasks, positions or checks."""
    if what == "positions":
        return [{"name": name, "about": _about(kind)} for name, kind in POSITIONS.items()]
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


def _about(kind: type) -> str:
    text = kind.__doc__ if "__doc__" in vars(kind) and kind.__doc__ else sys.modules[kind.__module__].__doc__
    return (text or "").split(". ")[0].split("\n\n")[0].replace("\n", " ")
