"""Headway: which attention heads does a transformer need, and how far past its training length does it work?

import headway

run = headway.train("addition", seed=0)
headway.evaluate(run, all=True).errors
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.threads import sleep_soon

sleep_soon()

if TYPE_CHECKING:
    from headway.api import evaluate, examine, open, pretrained, prune, study_heads, study_lengths, train
    from headway.attach.from_transformers import subject_from_transformers as huggingface
    from headway.attach.module import candidates
    from headway.errors import HeadwayError
    from headway.models import Head, Site
    from headway.positions import Positions, Relative, Shape
    from headway.subjects.subject import Subject
    from headway.tasks import Problems, Task

__all__ = [
    "Head",
    "HeadwayError",
    "Positions",
    "Problems",
    "Relative",
    "Shape",
    "Site",
    "Subject",
    "Task",
    "candidates",
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
    "Head": "headway.models",
    "Site": "headway.models",
    "Subject": "headway.subjects.subject",
    "HeadwayError": "headway.errors",
    "Positions": "headway.positions",
    "Relative": "headway.positions",
    "Shape": "headway.positions",
    "Problems": "headway.tasks",
    "Task": "headway.tasks",
    "candidates": "headway.attach.module",
    "huggingface": "headway.attach.from_transformers",
}
_CALLED = {"huggingface": "subject_from_transformers"}
"""names that are others at home"""


def __getattr__(name: str) -> Any:
    """Names are fetched when first used, so that `headway --help` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "headway.api")), _CALLED.get(name, name))
