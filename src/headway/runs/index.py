"""A table of all runs under a folder, for `headway list runs`.

`runs.sqlite` is a cache: the folders are the truth, and a missing, stale or broken index is made anew.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs.folder import RunFolder

_COLUMNS = "path TEXT PRIMARY KEY, stamp REAL, row TEXT"


def list_runs(root: Path) -> list[dict[str, Any]]:
    """One row a run, in the order of their paths."""
    if not root.is_dir():
        raise HeadwayError(f"there is no folder {root}; name one that holds runs")
    try:
        return _refreshed(root, root / "runs.sqlite")
    except sqlite3.DatabaseError:
        with contextlib.suppress(OSError):
            (root / "runs.sqlite").unlink()
        try:
            return _refreshed(root, root / "runs.sqlite")
        except sqlite3.DatabaseError:  # a folder that cannot be written to
            return _refreshed(root, Path(":memory:"))


def _refreshed(root: Path, index: Path) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(index)) as table, table:
        table.execute(f"CREATE TABLE IF NOT EXISTS runs ({_COLUMNS})")
        known = dict(table.execute("SELECT path, stamp FROM runs"))
        found = {str(config.parent.relative_to(root)): config.parent for config in sorted(root.rglob("config.json"))}
        for gone in set(known) - set(found):
            table.execute("DELETE FROM runs WHERE path = ?", (gone,))
        for name, folder in found.items():
            if known.get(name) != (stamp := _stamp(folder)):
                row = json.dumps(describe(RunFolder(folder)))
                table.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (name, stamp, row))
        rows = table.execute("SELECT path, row FROM runs ORDER BY path").fetchall()
    return [{"run": name, **json.loads(row)} for name, row in rows]


def _stamp(folder: Path) -> float:
    """Changes whenever a file of the run is replaced."""
    return sum(file.lstat().st_mtime for file in folder.glob("*.json"))


def describe(folder: RunFolder) -> dict[str, Any]:
    """A run in one row: what it is and how far it came."""
    try:
        config = folder.config()
        row: dict[str, Any] = {
            "task": config.task,
            "positions": config.model.positions,
            "seed": config.seed,
            "state": "complete" if folder.complete else "unfinished",
        }
        if folder.complete:
            training = folder.training()
            row |= {"steps": training.steps, "seconds": training.seconds, "final_loss": training.final_loss}
        evaluation = folder.path / "evaluation.json"
        if evaluation.exists():
            found = json.loads(evaluation.read_text())
            row |= {"examples": found["examples"], "exact_match": found["exact_match"]}
        return row
    except (HeadwayError, OSError, ValueError, KeyError, TypeError) as error:
        return {"state": "broken", "error": str(error)}
