"""A table of all runs under a folder, for `headway list runs` and `headway compare`.

`runs.sqlite` is a cache: the folders are the truth, and a missing, stale or broken table is made anew; `looking.py`
says what is stale. It has a column for each key of a row, so that a question reads no file of a run. Where it cannot be
written, or another process keeps it, the same is done in memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headway.compare.describing import KEYS, Row
from headway.compare.looking import Look, Seen, holds_a_run, look
from headway.compare.where import FALSE, TRUE, Where, parse_where, quoted
from headway.errors import HeadwayError
from headway.runs.folder import RunFolder

NAME = "runs.sqlite"
VERSION = 1
"""of the table and of what a row says: a table of another is made anew"""
PATIENCE = 20.0
"""seconds that a process waits for another one's writing"""
MOST_KEYS = 1_500
"""columns that SQLite can have, with some to spare"""
TOGETHER = 5_000
"""rows that are written at once, where they are of several folders"""
OWN = ("path", "parent", "stamp")
"""columns that are no keys of a row"""
BUSY = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOLFS,
}  # fmt: skip
"""failures that another table at the same place would meet as well"""
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Found:
    """Runs that a question found, and among how many."""

    rows: list[Row]
    runs: int
    keys: frozenset[str]
    """that runs of this folder can have"""


def list_runs(root: Path, where: str | None = None, rebuild: bool = False) -> list[Row]:
    """One row a run, in the order of their paths; of those that `where` asks for. `rebuild` reads every file anew."""
    asked = None if where is None else parse_where(where)
    found = find_runs(root, asked, rebuild)
    if asked is not None:
        asked.check(found.keys)
    return found.rows


def find_runs(root: Path, where: Where | None = None, rebuild: bool = False) -> Found:
    """As `list_runs`; what a key is that no run has is left to the caller."""
    if not root.is_dir():
        raise HeadwayError(f"there is no folder {root}; name one that holds runs")
    return _answered(root, rebuild, lambda table: table.find(where))


def _answered(root: Path, rebuild: bool, question: Callable[[_Table], Answer]) -> Answer:
    """What the table says, once it says what the folders hold."""
    home = root / NAME
    if RunFolder.is_run(root) or not (home.exists() or holds_a_run(os.fsencode(root))):
        return _in_memory(root, None, question)  # a run keeps its own files alone, a folder without runs none
    try:
        return _asked(root, home, rebuild, question)
    except sqlite3.Error as error:
        if _code(error) not in BUSY:
            for file in (home, home.with_name(f"{NAME}-journal")):
                with contextlib.suppress(OSError):
                    file.unlink()
            with contextlib.suppress(sqlite3.Error):
                return _asked(root, home, rebuild, question)
    return _in_memory(root, None if rebuild else home, question)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF


def _asked(root: Path, home: Path, rebuild: bool, question: Callable[[_Table], Answer]) -> Answer:
    with contextlib.closing(sqlite3.connect(home, timeout=PATIENCE, isolation_level=None)) as connection:
        # the journal stays where it is: a file that comes and goes would make the folder look changed each time
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        table = _Table(connection)
        table.prepare(rebuild)
        table.refresh(root)
        return question(table)


def _in_memory(root: Path, home: Path | None, question: Callable[[_Table], Answer]) -> Answer:
    """Without a file, but from where the file stands, if it can be read."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        if home is not None and home.is_file():
            with contextlib.suppress(sqlite3.Error):
                there = sqlite3.connect(f"{home.resolve().as_uri()}?mode=ro", uri=True, timeout=0.1)
                with contextlib.closing(there):
                    there.execute("BEGIN")
                    there.execute("SELECT 1 FROM runs LIMIT 1").fetchall()  # nobody else writes from here on
                    there.backup(connection)
        table = _Table(connection)
        try:
            table.prepare(rebuild=False)
            table.refresh(root)
        except sqlite3.Error:  # what stood there is no table of ours
            table.prepare(rebuild=True)
            table.refresh(root)
        return question(table)


class _Table:
    """The cache itself: a table of runs, and one of the folders that hold them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def prepare(self, rebuild: bool) -> None:
        """Makes the tables where there are none, or those of another version."""
        there = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if there == VERSION and not rebuild:
            return
        with self._writing():
            for kind, name in self.connection.execute(
                "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND name IN ('runs', 'folders')"
            ).fetchall():
                self.connection.execute(f"DROP {kind} {name}")
            columns = ", ".join(quoted(key) for key in KEYS)
            self.connection.execute(f"CREATE TABLE runs (path BLOB PRIMARY KEY, parent BLOB, stamp TEXT, {columns})")
            self.connection.execute("CREATE INDEX by_parent ON runs (parent)")
            self.connection.execute("CREATE TABLE folders (path BLOB PRIMARY KEY, stamp TEXT)")
            self.connection.execute(f"PRAGMA user_version = {VERSION}")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def columns(self) -> list[str]:
        return [row[1] for row in self.connection.execute("PRAGMA table_info(runs)")]

    def refresh(self, root: Path) -> None:
        """Looks what has changed in the folders, and writes it down."""
        waiting: list[Look] = []
        for found in look(os.fsencode(root), self.folders(), self.runs_in):
            waiting.append(found)
            if sum(len(each.rows) for each in waiting) >= TOGETHER:
                self._write(waiting)
                waiting = []
        if waiting:
            self._write(waiting)

    def folders(self) -> dict[bytes, str]:
        return self._stamps("SELECT path, stamp FROM folders")

    def runs_in(self, parent: bytes) -> dict[bytes, str]:
        return self._stamps("SELECT path, stamp FROM runs WHERE parent = ?", parent)

    def _stamps(self, question: str, *values: bytes) -> dict[bytes, str]:
        """Stamps by path; what SQLite can read may still be no table of ours."""
        found = self.connection.execute(question, values).fetchall()
        if not all(isinstance(path, bytes) and isinstance(stamp, str) for path, stamp in found):
            raise sqlite3.DatabaseError("paths and stamps of other kinds")
        return dict(found)

    def _write(self, looks: Sequence[Look]) -> None:
        """A folder's rows and its stamp go together: whoever writes last, a stamp never speaks for older rows."""
        with self._writing():
            columns = self._grown(self.columns(), (key for each in looks for seen in each.rows for key in seen.row))
            places = ", ".join("?" * len(columns))
            names = ", ".join(map(quoted, columns))
            for each in looks:
                self._forget(each.gone)
                self.connection.executemany("DELETE FROM runs WHERE path = ?", ((path,) for path in each.ended))
                self.connection.executemany(
                    f"INSERT OR REPLACE INTO runs ({names}) VALUES ({places})",
                    (_cells(columns, seen) for seen in each.rows),
                )
                if each.stamp is None:
                    self.connection.execute("DELETE FROM folders WHERE path = ?", (each.folder,))
                else:
                    self.connection.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (each.folder, each.stamp))

    def _forget(self, gone: Iterable[bytes]) -> None:
        """Runs and folders that are there no more, with all that was in them."""
        for path in gone:
            inside = (path, path + b"/", path + b"0")  # the sign after a slash: all that begins with it
            for name in ("runs", "folders"):
                self.connection.execute(f"DELETE FROM {name} WHERE path = ? OR (path >= ? AND path < ?)", inside)

    def _grown(self, columns: list[str], keys: Iterable[str]) -> list[str]:
        for key in dict.fromkeys(keys):
            if key not in columns:
                if len(columns) >= MOST_KEYS:
                    raise HeadwayError(f"these runs have more than {MOST_KEYS:,} different keys; list a smaller folder")
                self.connection.execute(f"ALTER TABLE runs ADD COLUMN {quoted(key)}")
                columns.append(key)
        return columns

    def find(self, where: Where | None) -> Found:
        keys = [name for name in self.columns() if name not in OWN]
        condition, values = ("1", []) if where is None else where.sql(keys)
        asked = f"SELECT {', '.join(map(quoted, keys))} FROM runs WHERE {condition} ORDER BY +path"
        rows = [_row(keys, cells) for cells in self.connection.execute(asked, values)]
        runs = self.connection.execute("SELECT count(*) FROM runs").fetchone()[0]
        return Found(rows, runs, frozenset(keys))


def _cells(columns: list[str], seen: Seen) -> list[Any]:
    own = {"path": seen.path, "parent": seen.parent, "stamp": seen.stamp, "run": seen.name, **seen.row}
    return [TRUE if (value := own.get(name)) is True else FALSE if value is False else value for name in columns]


def _row(keys: list[str], cells: Sequence[Any]) -> Row:
    return {
        key: value == TRUE if type(value) is bytes else value
        for key, value in zip(keys, cells, strict=True)
        if value is not None
    }
