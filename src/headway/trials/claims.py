"""Claims, by which several sweeps share a folder: a claim is a file that names the owner of a trial.

    claims/TRIAL.claim       the owner's name
    claims/owners/NAME.json  the owner: machine, process, and a heartbeat that it increments every second
    claims/.mutex            held while a claim changes

An owner whose process is gone, or whose heartbeat stops for `PATIENCE` seconds on the observer's monotonic clock, is
dead: others take over its claims. Clocks are never compared with each other. An owner that was only suspended finds
its file gone when it wakes up, and stops.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.errors import BrokenRun, CannotWrite, HeadwayError
from headway.runs import disk
from headway.runs.shapes import fill

BEAT = 1.0
PATIENCE = 15.0
MUTEX = 30.0  # seconds to wait for the mutex: drivers hold it briefly unless they are suspended


@dataclass(frozen=True)
class Owner:
    """The content of an owner's file."""

    place: str
    pid: int
    born: str
    beat: int


class Claims:
    """The claims of one driver, while it is entered."""

    def __init__(self, folder: Path, beat: float = BEAT, patience: float = PATIENCE) -> None:
        self.folder, self.beat, self.patience = folder, beat, patience
        self.name = f"{re.sub(r'[^A-Za-z0-9]', '-', socket.gethostname())[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.lost = False  # whether another driver declared this owner dead
        self._owners, self._ended, self._mine = folder / "owners", threading.Event(), set[str]()
        self._seen = dict[str, tuple[int | None, float]]()  # others' last heartbeat, and when it was first seen

    def __enter__(self) -> Claims:
        try:
            self._owners.mkdir(parents=True, exist_ok=True)
            self._write(0)
        except OSError as error:
            raise CannotWrite(f"cannot write to {self.folder}: {error.strerror}; choose another `out`") from error
        for left_over in self._owners.glob("*.json"):  # from drivers that were killed
            self._alive(left_over.stem)
        self._beating = threading.Thread(target=self._keep_beating, daemon=True)
        self._beating.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._beating.join()
        for address in list(self._mine):
            self.drop(address)
        with contextlib.suppress(OSError):
            self._owner(self.name).unlink()

    def take(self, address: str) -> bool:
        """Claims a trial unless a living owner has it."""
        path = self.folder / f"{address}.claim"
        try:
            with self._mutex():
                self.lost = self.lost or not self._owner(self.name).exists()
                if self.lost:
                    return False
                if self._alive(owner := _owner_in(path)):
                    return owner == self.name
                self._replace(path, self.name)
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}; finished trials are kept") from error
        self._mine.add(address)
        return True

    def drop(self, address: str) -> None:
        path = self.folder / f"{address}.claim"
        with contextlib.suppress(OSError), self._mutex():
            if _owner_in(path) == self.name:
                path.unlink()
        self._mine.discard(address)

    def tidy(self, address: str) -> None:
        """Removes the claim of a dead owner on a finished trial."""
        path = self.folder / f"{address}.claim"
        if path.exists():
            with contextlib.suppress(OSError, HeadwayError), self._mutex():
                if not self._alive(_owner_in(path)):
                    path.unlink(missing_ok=True)

    def _mutex(self) -> contextlib.AbstractContextManager[None]:
        return hold_lock(self.folder / ".mutex", MUTEX)

    def _owner(self, name: str) -> Path:
        return self._owners / f"{name}.json"

    def _alive(self, name: str) -> bool:
        """Returns whether this owner is alive; removes the file of a dead one."""
        if name == self.name:
            return True
        if not re.fullmatch(r"[A-Za-z0-9-]{1,80}", name) or not os.path.lexists(self._owner(name)):
            return False  # not a valid name, or the owner has ended
        beat, gone = None, False
        try:
            owner = fill(Owner, disk.read_json(self._owner(name)))
            beat, gone = owner.beat, owner.place == machine_id() and not _is_running(owner.pid, owner.born)
        except (TypeError, ValueError, OverflowError) as error:
            # owner files are written atomically: this is not one, unless a shared disk fails for a moment
            gone = isinstance(error, BrokenRun) or not isinstance(error, HeadwayError)
        if name not in self._seen or beat != self._seen[name][0]:
            self._seen[name] = beat, time.monotonic()
        if gone or time.monotonic() - self._seen[name][1] > self.patience:
            with contextlib.suppress(OSError):
                self._owner(name).unlink()
            return False
        return True

    def _keep_beating(self) -> None:
        count = 0
        while not self.lost and not self._ended.wait(self.beat):
            count += 1
            # a full disk or a busy mutex may be free at the next heartbeat
            with contextlib.suppress(OSError, HeadwayError), self._mutex():
                self.lost = not self._owner(self.name).exists()
                if not self.lost:
                    self._write(count)

    def _write(self, beat: int) -> None:
        owner = Owner(machine_id(), os.getpid(), start_time(os.getpid()), beat)
        self._replace(self._owner(self.name), json.dumps(asdict(owner)))

    def _replace(self, path: Path, text: str) -> None:
        beside = path.with_name(f".{path.stem}.{self.name}.part")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)


def _owner_in(path: Path) -> str:
    """Reads the owner's name in a claim; empty if the claim is missing or unreadable."""
    try:
        return disk.read_bytes(path).decode(errors="replace").strip()
    except HeadwayError:
        return ""


def machine_id() -> str:
    """Identifies the machine, its boot and its PID namespace: containers number their processes separately."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def start_time(pid: int) -> str:
    """Returns the kernel's start time of a process: its PID alone may have been reused."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _is_running(pid: int, since: str) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return pid > 0 and start_time(pid) == since


@contextlib.contextmanager
def hold_lock(path: Path, patience: float = math.inf) -> Iterator[None]:
    """Holds a lock of the operating system, which is released if the process dies; waits at most `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        # opening must neither block nor follow links: a pipe or a link at this path is an error
        with open(path, "a", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise HeadwayError(
                        f"another process holds the lock {path}; wait for it to finish, or stop it"
                    ) from error
                time.sleep(0.05)
                continue
            if _is_same_file(file.fileno(), path):  # the previous holder may have removed it
                yield
                return


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
