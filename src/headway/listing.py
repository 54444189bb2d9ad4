"""What there is, for `headway list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def listing(what: str, root: Path | None = None) -> list[dict[str, Any]]:
    """Runs are those under `root`; where none is named, under runs/, if there is one."""
    if what == "runs":
        from headway.runs.index import list_runs

        if root is None and not Path("runs").is_dir():
            return []
        return list_runs(root or Path("runs"))
    if what == "tasks":
        from dataclasses import fields

        from headway.tasks import TASKS

        return [
            {
                "name": name,
                "about": (task.__doc__ or "").splitlines()[0],
                "options": [f"{entry.name}={entry.default}" for entry in fields(task)],  # pyright: ignore[reportArgumentType]
                "probes": list(task.probes),
            }
            for name, task in TASKS.items()
        ]
    if what == "positions":
        import sys

        from headway.positions import POSITIONS

        def about(kind: type) -> str:
            text = kind.__doc__ if "__doc__" in vars(kind) and kind.__doc__ else sys.modules[kind.__module__].__doc__
            return (text or "").split(". ")[0].split("\n\n")[0].replace("\n", " ")

        return [{"name": name, "about": about(kind)} for name, kind in POSITIONS.items()]
    from headway.doctor.examination import CHECKS

    return [{"name": name, "about": (check.__doc__ or "").splitlines()[0]} for name, check in CHECKS.items()]
