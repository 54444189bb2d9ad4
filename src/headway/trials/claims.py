"""Who works on which trial, when several sweeps share a folder: a claim is a file that names its owner.

    claims/TRIAL.claim       the owner's name
    claims/owners/NAME.json  the owner: machine, process, and a beat that it counts up every second
    claims/.mutex            held for the moment in which a claim changes hands

An owner whose process is gone, or whose beat stands still for `PATIENCE` seconds of the watcher's own steady clock, is
dead: its claims are taken over. No clock is ever compared with another one. Should an owner that was only asleep wake
up, it finds its own file gone and stops.
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
MUTEX = 30.0  # seconds for another driver to let go of the mutex: it holds it for a moment, unless it was stopped in it


@dataclass(frozen=True)
class Owner:
    """What an owner's file says."""

    place: str
    pid: int
    born: str
    beat: int


class Claims:
    """The claims of one driver, while it is entered."""

    def __init__(self, folder: Path, beat: float = BEAT, patience: float = PATIENCE) -> None:
        self.folder, self.beat, self.patience = folder, beat, patience
        self.name = f"{re.sub(r'[^A-Za-z0-9]', '-', socket.gethostname())[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.lost = False  # whether somebody took this owner for dead
        self._owners, self._ended, self._mine = folder / "owners", threading.Event(), set[str]()
        self._seen = dict[str, tuple[int | None, float]]()  # the last beat of other owners, and when it was first seen

    def __enter__(self) -> Claims:
        try:
            self._owners.mkdir(parents=True, exist_ok=True)
            self._write(0)
        except OSError as error:
            raise CannotWrite(f"cannot write in {self.folder}: {error.strerror}; choose another --out") from error
        for left_over in self._owners.glob("*.json"):  # of drivers that were killed
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
        """Makes a trial ours, unless a living owner has it."""
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
            raise CannotWrite(f"cannot write {path}: {error.strerror}; what is done is kept") from error
        self._mine.add(address)
        return True

    def drop(self, address: str) -> None:
        path = self.folder / f"{address}.claim"
        with contextlib.suppress(OSError), self._mutex():
            if _owner_in(path) == self.name:
                path.unlink()
        self._mine.discard(address)

    def tidy(self, address: str) -> None:
        """Takes away the claim that a dead owner has left on a trial that is done."""
        path = self.folder / f"{address}.claim"
        if path.exists():
            with contextlib.suppress(OSError, HeadwayError), self._mutex():
                if not self._alive(_owner_in(path)):
                    path.unlink(missing_ok=True)

    def _mutex(self) -> contextlib.AbstractContextManager[None]:
        return alone(self.folder / ".mutex", MUTEX)

    def _owner(self, name: str) -> Path:
        return self._owners / f"{name}.json"

    def _alive(self, name: str) -> bool:
        """Whether the owner of that name is; one that is not is struck off, for good."""
        if name == self.name:
            return True
        if not re.fullmatch(r"[A-Za-z0-9-]{1,80}", name) or not os.path.lexists(self._owner(name)):
            return False  # nobody is called so; or it has ended, or never was
        beat, gone = None, False
        try:
            owner = fill(Owner, disk.read_json(self._owner(name)))
            beat, gone = owner.beat, owner.place == place() and not _runs(owner.pid, owner.born)
        except (TypeError, ValueError, OverflowError) as error:
            # owners are written whole: this is none, unless a shared disk gives no answer, and may in a moment
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
            # a disk that is full now, or a mutex that is held long, may not be at the next beat
            with contextlib.suppress(OSError, HeadwayError), self._mutex():
                self.lost = not self._owner(self.name).exists()
                if not self.lost:
                    self._write(count)

    def _write(self, beat: int) -> None:
        owner = Owner(place(), os.getpid(), born(os.getpid()), beat)
        self._replace(self._owner(self.name), json.dumps(asdict(owner)))

    def _replace(self, path: Path, text: str) -> None:
        beside = path.with_name(f".{path.stem}.{self.name}.part")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)


def _owner_in(path: Path) -> str:
    """The name in a claim; nobody's where there is none, or none that can be read."""
    try:
        return disk.read_bytes(path).decode(errors="replace").strip()
    except HeadwayError:
        return ""


def place() -> str:
    """The machine since it was started, and the numbering of processes on it: containers have their own."""
    said = [socket.gethostname()]
    with contextlib.suppress(OSError):
        said += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(said)


def born(pid: int) -> str:
    """When a process began, by the kernel: its number alone may be another's by now."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _runs(pid: int, since: str) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return pid > 0 and born(pid) == since


@contextlib.contextmanager
def alone(path: Path, patience: float = math.inf) -> Iterator[None]:
    """Holds a lock of the system's own, which a process that dies lets go; waits, at most `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        # nothing is waited for but the lock: a pipe or a link in its place is refused by the system
        with open(path, "a", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise HeadwayError(
                        f"another process works in what {path} guards; wait for it, or stop it"
                    ) from error
                time.sleep(0.05)
                continue
            if _is_still(file.fileno(), path):  # and was not removed by the one that held it before
                yield
                return


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
