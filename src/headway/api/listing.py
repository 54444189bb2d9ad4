"""What there is besides runs, for `headway list`."""

import sys
from dataclasses import fields
from typing import Any

from headway.doctor.examination import CHECKS
from headway.positions import POSITIONS
from headway.tasks import TASKS


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
