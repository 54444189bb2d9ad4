"""Finds what has changed under a folder since it was last scanned, without reading what has not.

Only the stamps of folders that hold runs are read: when they were last written to. If one has changed, the stamps of
the runs in it are read, and the runs that have changed are described again. `RunFolder.mark_changed` updates the stamp
of the parent folder whenever it replaces a file. Stamps are compared for equality, never for order: clocks can be set
back. A folder that was written to a moment ago may be written to again within one tick of the clock, so it is scanned
again next time. Links to folders are not followed.
"""

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.compare.describe import Row, describe
from headway.runs.folder import RunFolder

MOMENT = 1_000_000_000
"""nanoseconds for which a stamp is not trusted: clocks of file systems tick every few milliseconds"""
UNSETTLED = ""  # the stamp of a folder that must be scanned again
TOP = b"."
Stamps = dict[bytes, str]


@dataclass(frozen=True)
class ScannedRun:
    path: bytes  # relative to the root, as on disk
    parent: bytes
    stamp: str
    row: Row


@dataclass
class FolderChanges:
    """Changes in one folder."""

    folder: bytes
    stamp: str | None  # None if it need not be scanned again
    rows: list[ScannedRun] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)  # runs that are now plain folders
    gone: list[bytes] = field(default_factory=list)
    """runs and folders that no longer exist, with everything inside"""


def holds_a_run(root: bytes) -> bool:
    """Tells whether there is a run at any depth."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if _is_run(folder):
            return True
        waiting += [folder + b"/" + name for name in _folders_in(folder)]
    return False


def scan(root: bytes, known: Stamps, runs_in: Callable[[bytes], Stamps]) -> Iterator[FolderChanges]:
    """Visits the known folders and those that it finds, and yields what has changed.

    `known` holds the stamps of folders at the last scan, `runs_in` returns those of the runs in one of them.
    """
    waiting = deque([TOP, *sorted(folder for folder in known if folder != TOP)])  # a folder before its subfolders
    met, gone = set(waiting), set[bytes]()
    inside: dict[bytes, list[bytes]] = {}
    for folder in known:
        inside.setdefault(_parent(folder), []).append(folder)
    while waiting:
        folder = waiting.popleft()
        if any(above in gone for above in _with_parents(folder)):
            continue
        stamp, before = _stamp(_join(root, folder)), known.get(folder)
        if stamp is not None and stamp == before != UNSETTLED:
            continue
        changes, folders = _scan_folder(root, folder, stamp, runs_in(folder), inside.get(folder, []))
        gone.update(changes.gone)
        waiting.extend(each for each in folders if each not in met)
        met.update(folders)
        if changes != FolderChanges(folder, UNSETTLED) or before != UNSETTLED:
            yield changes


def _scan_folder(
    root: bytes, folder: bytes, stamp: str | None, runs: Stamps, folders: list[bytes]
) -> tuple[FolderChanges, list[bytes]]:
    """Finds what has changed in a folder, and which of its subfolders must be scanned."""
    if stamp is None:
        return FolderChanges(folder, None, gone=[folder]), []
    changes, inner, there = FolderChanges(folder, stamp), list[bytes](), set[bytes]()
    for name in _folders_in(_join(root, folder)):
        child = name if folder == TOP else folder + b"/" + name
        there.add(child)
        own = _stamp(_join(root, child))
        if own is None or (own == runs.get(child) != UNSETTLED):
            continue
        if _is_run(_join(root, child)):
            changes.rows.append(_scan_run(root, child, own))
            inner += [child] if _folders_in(_join(root, child)) else []
        else:
            inner.append(child)
            changes.ended += [child] if child in runs else []
    changes.gone = [child for child in {*runs, *folders} - there if child != TOP]
    if _is_run(_join(root, folder)):  # a run with subfolders, or a very recent one
        changes.rows.append(_scan_run(root, folder, stamp))
        changes.stamp = stamp if there or folder == TOP else None
    if changes.stamp is not None and any(run.stamp == UNSETTLED for run in changes.rows):
        changes.stamp = UNSETTLED
    return changes, inner


def _scan_run(root: bytes, path: bytes, stamp: str) -> ScannedRun:
    name = os.fsdecode(path).encode(errors="replace").decode()  # printable
    row: Row = {"run": name, **describe(RunFolder(Path(os.fsdecode(_join(root, path)))))}
    return ScannedRun(path, _parent(path), stamp, row)


def _stamp(path: bytes) -> str | None:
    """Reads when a folder was last written to; None if it is not a folder."""
    now = time.time_ns()
    try:
        about = os.lstat(path)
    except OSError:
        return None
    recent = about.st_ctime_ns > now - MOMENT or abs(now - about.st_mtime_ns) < MOMENT
    stamp = UNSETTLED if recent else f"{about.st_mtime_ns} {about.st_ctime_ns}"
    return stamp if stat.S_ISDIR(about.st_mode) else None


def _folders_in(path: bytes) -> list[bytes]:
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.name != b"checkpoint" and e.is_dir(follow_symlinks=False))
    except OSError:  # a folder without read permission
        return []


def _is_run(path: bytes) -> bool:
    return RunFolder.is_run(Path(os.fsdecode(path)))


def _join(root: bytes, path: bytes) -> bytes:
    return root + b"/." if path == TOP else root + b"/" + path  # /. follows a root that is a link


def _parent(path: bytes) -> bytes:
    return b"" if path == TOP else path.rpartition(b"/")[0] or TOP


def _with_parents(path: bytes) -> Iterator[bytes]:
    """Yields the folder itself and its parents."""
    while path:
        yield path
        path = _parent(path)
