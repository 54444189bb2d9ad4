"""What there is, for `headway list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import HeadwayError

FIRST = ("run", "task", "positions", "seed", "state", "steps", "seconds", "final_loss", "examples", "exact_match")
"""of a run, in a table that people read; then what was asked for, and what is amiss"""


def listing(
    what: str, root: Path | None = None, where: str | None = None, rebuild: bool = False
) -> list[dict[str, Any]]:
    """Runs are those under `root` that `where` asks for; where no root is named, under runs/, if there is one."""
    if what == "runs":
        from headway.compare.index import list_runs
        from headway.compare.where import parse_where

        if root is None and not Path("runs").is_dir():
            if where is not None:
                parse_where(where)
            return []
        return list_runs(root or Path("runs"), where, rebuild)
    for flag, given in (("where", where is not None), ("rebuild", rebuild)):
        if given:
            raise HeadwayError(f"--{flag} is about runs; leave it out, or say 'headway list runs'")
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

    return [{"name": name, "about": check.about} for name, check in CHECKS.items()]


def shown(what: str, items: list[dict[str, Any]], where: str | None = None) -> list[dict[str, Any]]:
    """What a table shows of them: of runs what most people ask for, and what was asked for."""
    if what != "runs":
        return items
    from headway.compare.where import parse_where

    asked = [] if where is None else [key for key in parse_where(where).keys if key not in (*FIRST, "error")]
    return [{key: item.get(key) for key in (*FIRST, *asked, "error")} for item in items]
