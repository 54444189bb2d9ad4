"""A table of all runs under a folder, for `headway list runs` and `headway compare`.

`runs.sqlite` is a cache: the folders are the truth, and a missing, stale or broken table is rebuilt; `scan.py` finds
what is stale. It has a column for each key of a row, so that a query reads no file of a run. If it cannot be written,
or another process has locked it, the same is done in memory.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headway.compare.describe import KEYS, Row
from headway.compare.scan import FolderChanges, ScannedRun, holds_a_run, scan
from headway.compare.where import FALSE, TRUE, Where, parse_where, quote
from headway.errors import HeadwayError
from headway.runs.folder import RunFolder

NAME = "runs.sqlite"
VERSION = 3  # of the table and the rows: a table of another version is rebuilt
PATIENCE = 20.0  # seconds to wait while another process writes
MOST_KEYS = 1_500  # columns; SQLite allows a few more
FIRST = ("run", "task", "positions", "seed", "state", "steps", "seconds", "final_loss", "examples", "exact_match")
"""columns of the table for people"""
OWN = ("path", "parent", "stamp")  # columns that are not keys of a row
BUSY = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOLFS,
}  # fmt: skip
"""errors that a new table in the same place would also meet"""


@dataclass(frozen=True)
class RunQuery:
    """The runs that a query found, and the number of runs it searched."""

    rows: list[Row]
    runs: int
    keys: frozenset[str]  # keys that runs of this folder can have


def list_runs(root: Path, where: str | None = None, rebuild: bool = False) -> list[Row]:
    """Lists the runs that match `where`, a row each, ordered by path. `rebuild` reads every file again."""
    chosen = parse_where(where)
    found = find_runs(root, chosen, rebuild)
    chosen.check(found.keys)
    return found.rows


def shown_keys(where: str | None) -> list[str]:
    """Lists the columns to show to people: the usual ones, those that `where` uses, and errors."""
    return list(dict.fromkeys([*FIRST, *parse_where(where).keys, "error"]))


def find_runs(root: Path, where: Where, rebuild: bool = False) -> RunQuery:
    """Does the same as `list_runs`, but leaves unknown keys to the caller."""
    if not root.is_dir():
        raise HeadwayError(f"there is no folder {root}; name one that holds runs")
    home = root / NAME
    if RunFolder.is_run(root) or not (home.exists() or holds_a_run(os.fsencode(root))):
        return _find_in_memory(root, None, where)  # a run folder or a folder without runs gets no table
    try:
        return _find(root, home, where, rebuild)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in BUSY:
            for file in (home, home.with_name(f"{NAME}-journal")):
                with contextlib.suppress(OSError):
                    file.unlink()
            with contextlib.suppress(sqlite3.Error):
                return _find(root, home, where, rebuild)
    return _find_in_memory(root, None if rebuild else home, where)


def _find(root: Path, home: Path, where: Where, rebuild: bool) -> RunQuery:
    with contextlib.closing(sqlite3.connect(home, timeout=PATIENCE, isolation_level=None)) as connection:
        # the journal file stays: one that comes and goes would make the folder look changed each time
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        return _Table(connection).answer(root, where, rebuild)


def _find_in_memory(root: Path, home: Path | None, where: Where) -> RunQuery:
    """Answers without writing a file, starting from the existing one if it can be read."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        if home is not None and home.is_file():
            with contextlib.suppress(sqlite3.Error):
                there = sqlite3.connect(f"{home.resolve().as_uri()}?mode=ro", uri=True, timeout=0.1)
                with contextlib.closing(there):
                    there.execute("BEGIN")
                    there.execute("SELECT 1 FROM runs LIMIT 1").fetchall()  # locks out writers from here on
                    there.backup(connection)
        try:
            return _Table(connection).answer(root, where, rebuild=False)
        except sqlite3.Error:  # the file belongs to another program
            return _Table(connection).answer(root, where, rebuild=True)


class _Table:
    """The cache itself: one table of runs and one of the folders that hold them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection, self.execute = connection, connection.execute

    def answer(self, root: Path, where: Where, rebuild: bool) -> RunQuery:
        """Updates the table from the folders, then finds runs."""
        if rebuild or self.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            self._create()
        waiting: list[FolderChanges] = []
        runs_in = partial(self._read_stamps, "SELECT path, stamp FROM runs WHERE parent = ?")
        for changes in scan(os.fsencode(root), self._read_stamps("SELECT path, stamp FROM folders"), runs_in):
            waiting.append(changes)
            if sum(len(each.rows) for each in waiting) >= 5_000:  # rows per transaction
                self._write(waiting)
                waiting = []
        if waiting:
            self._write(waiting)
        keys = [name for name in self._columns() if name not in OWN]
        condition, values = where.sql(keys)
        query = f"SELECT {', '.join(map(quote, keys))} FROM runs WHERE {condition} ORDER BY +path"
        rows = [_row(keys, cells) for cells in self.execute(query, values)]
        return RunQuery(rows, self.execute("SELECT count(*) FROM runs").fetchone()[0], frozenset(keys))

    def _create(self) -> None:
        ours = "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND name IN ('runs', 'folders')"
        with self.connection:
            self.execute("BEGIN IMMEDIATE")
            for kind, name in self.execute(ours).fetchall():
                self.execute(f"DROP {kind} {name}")
            columns = ", ".join(map(quote, KEYS))
            self.execute(f"CREATE TABLE runs (path BLOB PRIMARY KEY, parent BLOB, stamp TEXT, {columns})")
            self.execute("CREATE INDEX by_parent ON runs (parent)")
            self.execute("CREATE TABLE folders (path BLOB PRIMARY KEY, stamp TEXT)")
            self.execute(f"PRAGMA user_version = {VERSION}")

    def _columns(self) -> list[str]:
        return [row[1] for row in self.execute("PRAGMA table_info(runs)")]

    def _read_stamps(self, query: str, *values: bytes) -> dict[bytes, str]:
        """Reads stamps by path; what SQLite can read may still not be our table."""
        found = self.execute(query, values).fetchall()
        if not all(isinstance(path, bytes) and isinstance(stamp, str) for path, stamp in found):
            raise sqlite3.DatabaseError("paths and stamps of other types")
        return dict(found)

    def _write(self, changes: Sequence[FolderChanges]) -> None:
        """Writes a folder's rows and its stamp in one transaction, so that a stamp never belongs to older rows."""
        with self.connection:
            self.execute("BEGIN IMMEDIATE")
            columns = self._add_columns(key for each in changes for run in each.rows for key in run.row)
            names, places = ", ".join(map(quote, columns)), ", ".join("?" * len(columns))
            for each in changes:
                for path in each.gone:  # with everything inside
                    inside = (path, path + b"/", path + b"0")  # 0 follows / in ASCII: a range over all paths inside
                    for name in ("runs", "folders"):
                        self.execute(f"DELETE FROM {name} WHERE path = ? OR (path >= ? AND path < ?)", inside)
                self.connection.executemany("DELETE FROM runs WHERE path = ?", ((path,) for path in each.ended))
                cells = (_cells(columns, run) for run in each.rows)
                self.connection.executemany(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({places})", cells)
                if each.stamp is None:
                    self.execute("DELETE FROM folders WHERE path = ?", (each.folder,))
                else:
                    self.execute("INSERT OR REPLACE INTO folders VALUES (?, ?)", (each.folder, each.stamp))

    def _add_columns(self, keys: Iterable[str]) -> list[str]:
        """Adds columns for new keys, and returns all columns."""
        columns = self._columns()
        for key in dict.fromkeys(key for key in keys if key not in columns):
            if len(columns) >= MOST_KEYS:
                raise HeadwayError(f"these runs have more than {MOST_KEYS:,} different keys; list a smaller folder")
            self.execute(f"ALTER TABLE runs ADD COLUMN {quote(key)}")
            columns.append(key)
        return columns


def _cells(columns: list[str], run: ScannedRun) -> list[Any]:
    cells = {"path": run.path, "parent": run.parent, "stamp": run.stamp, **run.row}
    return [TRUE if (value := cells.get(name)) is True else FALSE if value is False else value for name in columns]


def _row(keys: list[str], cells: Sequence[Any]) -> Row:
    return {
        key: value == TRUE if type(value) is bytes else value
        for key, value in zip(keys, cells, strict=True)
        if value is not None
    }
