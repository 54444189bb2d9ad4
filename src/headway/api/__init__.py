"""The commands as Python functions, with the same words."""

from pathlib import Path

import torch

from headway.api.certifying import add, certify_run
from headway.api.evaluating import evaluate, evaluate_runs
from headway.api.examining import examine
from headway.api.heads import prune, study_heads, study_members
from headway.api.lengths import study_lengths
from headway.api.training import shortfalls, train, train_seeds
from headway.subjects.own import Run, open_one

__all__ = [
    "add",
    "certify_run",
    "evaluate",
    "evaluate_runs",
    "examine",
    "open",
    "pretrained",
    "prune",
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
