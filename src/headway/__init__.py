"""Headway: which attention heads does a transformer need, and how far past its training length does it work?

import headway

run = headway.train("addition", seed=0)
headway.evaluate(run, all=True).errors
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Idle threads must sleep soon: if they spin, small training steps slow down many times beside other work. GNU OpenMP
# reads this once, when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from headway import api as api
    from headway.api import cache, cured, evaluate, examine, open, pretrained, prune, study_heads, study_lengths, train
    from headway.attach.from_transformers import subject_from_transformers as huggingface
    from headway.attach.module import candidates
    from headway.errors import HeadwayError
    from headway.models import Head, Site
    from headway.positions import Positions, Relative, Shape
    from headway.subjects.subject import Subject
    from headway.tasks import Problems, Task
    from headway.windows.budget import Budget

__all__ = [
    "Budget",
    "Head",
    "HeadwayError",
    "Positions",
    "Problems",
    "Relative",
    "Shape",
    "Site",
    "Subject",
    "Task",
    "cache",
    "candidates",
    "cured",
    "evaluate",
    "examine",
    "huggingface",
    "open",
    "pretrained",
    "prune",
    "study_heads",
    "study_lengths",
    "train",
]

_HOMES = {
    "attach.from_transformers": ["huggingface"],
    "attach.module": ["candidates"],
    "errors": ["HeadwayError"],
    "models": ["Head", "Site"],
    "positions": ["Positions", "Relative", "Shape"],
    "subjects.subject": ["Subject"],
    "tasks": ["Problems", "Task"],
    "windows.budget": ["Budget"],
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `headway --help` need not wait for torch."""
    import importlib

    if name == "api":
        return importlib.import_module("headway.api")
    if name not in __all__:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "api")
    attribute = "subject_from_transformers" if name == "huggingface" else name
    return getattr(importlib.import_module(f"headway.{home}"), attribute)
