"""What the driver needs of whoever carries out its pieces of work, and the two engines of this machine: this process
itself, and processes, each with its own threads, memory and time. One that dies takes nothing with it but the trial in
flight; another one is started in its place."""

import contextlib
import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from headway.errors import HeadwayError
from headway.machine import cores
from headway.trials.carry import GRACE, perform
from headway.trials.trial import Piece, Result, Terms, to_line

TAIL = 50  # lines kept of a log
LONGEST_LOG = 1_000_000
SOON = 2.0
WORKER = "from headway.trials.worker import main; main()"
Hear = Callable[[int, int, str], None]  # told the ticket of a piece, the steps it has done, and a line of words


@dataclass(frozen=True)
class Ended:
    """A piece that has ended: with a result for each of its trials, or none because the process died."""

    ticket: int
    results: list[Result] | None
    why: str = ""  # how a process died, in words
    tail: str = ""  # the last lines of its log
    late: bool = False  # whether it died because its time was over; another attempt would end alike


@runtime_checkable
class Engine(Protocol):
    terms: Terms
    hear: Hear

    @property
    def slots(self) -> int: ...  # how many pieces run at a time

    @property
    def room(self) -> int: ...  # how many more pieces may be started now

    def start(self, ticket: int, piece: Piece) -> None: ...

    def wait(self, seconds: float) -> list[Ended]: ...  # those that have ended; waits for one, at most so long

    def stop(self) -> None: ...  # ends everything that runs, at once: a trial can be killed anywhere


class InProcess:
    """This process: one piece after another. What goes wrong in training is raised as it is."""

    slots = 1

    def __init__(self, terms: Terms) -> None:
        self.terms, self.hear = terms, lambda ticket, steps, words: None
        self._ended: list[Ended] = []

    @property
    def room(self) -> int:
        return 1 - len(self._ended)

    def start(self, ticket: int, piece: Piece) -> None:
        results: list[Result] = []
        perform(piece, self.terms, results, lambda done, total, words: self.hear(ticket, done, words))
        self._ended.append(Ended(ticket, results))

    def wait(self, seconds: float) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """There is nothing left to end."""


class LocalEngine:
    def __init__(self, terms: Terms, workers: int | None = None) -> None:
        self.terms, self.slots = terms, workers or default_workers(terms)
        self.hear: Hear = lambda ticket, steps, words: None
        self._lanes: dict[int, _Worker] = {}

    @property
    def room(self) -> int:
        return self.slots - sum(worker.ticket is not None for worker in self._lanes.values())

    def start(self, ticket: int, piece: Piece) -> None:
        for lane, worker in list(self._lanes.items()):
            if worker.ticket is None and worker.process.poll() is not None:
                self._lanes.pop(lane).end()
        lane = next((lane for lane, worker in self._lanes.items() if worker.ticket is None), None)
        if lane is None:
            lane = next(number for number in range(self.slots) if number not in self._lanes)
            self._lanes[lane] = _Worker(self._environment(lane))
        self._lanes[lane].send(ticket, piece, self.terms)

    def wait(self, seconds: float) -> list[Ended]:
        ended = []
        spoke = connection.wait([worker.pipe for worker in self._lanes.values()], seconds)
        for lane, worker in list(self._lanes.items()):
            # a process that a trial has started may outlive the worker, and keep its pipe open
            if worker.pipe in spoke or worker.process.poll() is not None:
                found = worker.read(self.hear)
            elif worker.ticket is not None and time.monotonic() > worker.deadline:
                found = worker.died("it did not answer when its time was over, and was killed", late=True)
            else:
                continue
            ended += [] if found is None else [found]
            if worker.spoiled:
                self._lanes.pop(lane).end()
        return ended

    def stop(self) -> None:
        while self._lanes:
            self._lanes.popitem()[1].end()

    def _environment(self, lane: int) -> dict[str, str]:
        own: dict[str, str] = dict.fromkeys(("HEADWAY_THREADS", "OMP_NUM_THREADS"), str(self.terms.resources.threads))
        folders = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        if self.terms.device == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            devices = [each for each in visible if each] or [str(n) for n in range(torch.cuda.device_count())]
            own["CUDA_VISIBLE_DEVICES"] = devices[lane % len(devices)]
        return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, folders)), "PYTHONUNBUFFERED": "1"}


class _Worker:
    """One process, and the piece it is at."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.pipe, theirs = Pipe()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        fcntl.fcntl(self.log, fcntl.F_SETFL, os.O_APPEND)  # so that it can be cut short
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(theirs.fileno())],  # nothing from the current folder
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the driver's; and what it starts ends with it
            )
        self.ticket: int | None = None
        self.ready = self.spoiled = False  # spoiled: it has ended, or is not to be used again
        self.deadline = self._limit = math.inf
        self._from = 0

    def send(self, ticket: int, piece: Piece, terms: Terms) -> None:
        self.ticket, self._from = ticket, self._logged
        self._limit = (terms.seconds(piece) or math.inf) + 2 * GRACE
        self.deadline = time.monotonic() + self._limit if self.ready else math.inf
        with contextlib.suppress(OSError):  # of a process that has died, read() will know
            self.pipe.send_bytes(to_line(piece, terms).encode())

    def read(self, hear: Hear) -> Ended | None:
        """What the process has said, if that ends its piece."""
        over = self.process.poll() is not None  # asked first: what it said before, it has said
        try:
            while self.pipe.poll():
                match json.loads(self.pipe.recv_bytes()):
                    case "ready":
                        self.ready = True
                        self.deadline = time.monotonic() + self._limit
                    case [int() as steps, str() as words]:
                        hear(self.ticket or 0, steps, words)
                    case results:
                        return self._answered([Result(**each) for each in results])
        except (EOFError, OSError):
            over = True
        return self._ended_itself() if over else None

    def _answered(self, results: list[Result]) -> Ended:
        assert self.ticket is not None
        ended = Ended(self.ticket, results, tail=self._tail() if any(result.error for result in results) else "")
        self.ticket = None
        self.spoiled = any(result.kind in ("OutOfMemory", "TooLong") for result in results)
        if self._logged > LONGEST_LOG:
            os.ftruncate(self.log.fileno(), 0)
        return ended

    def _ended_itself(self) -> Ended | None:
        try:
            status = self.process.wait(SOON)
        except subprocess.TimeoutExpired:  # it closed what is not its own, and goes on
            return self.died("it closed the pipe of its process")
        if not self.ready and status > 0:
            last = ["it said nothing", *self._tail().splitlines()][-1]
            raise HeadwayError(f"a process for trials cannot start: {last}")
        if status < 0:
            memory = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
            return self.died(f"its process was ended by {signal.Signals(-status).name}{memory}")
        late = re.search(r"^Timeout \(\d+:\d\d:\d\d", self._tail(), re.MULTILINE) is not None
        why = "it took longer than it may, and did not answer" if late else f"its process ended with status {status}"
        return self.died(why, late)

    def died(self, why: str, late: bool = False) -> Ended | None:
        """The end of its piece, where it is at one."""
        ticket, self.ticket, self.spoiled = self.ticket, None, True
        return None if ticket is None else Ended(ticket, None, why, self._tail(), late)

    @property
    def _logged(self) -> int:
        return os.fstat(self.log.fileno()).st_size

    def _tail(self) -> str:
        """The last lines that the trial in hand wrote."""
        start = max(self._from, self._logged - 20_000)
        text = os.pread(self.log.fileno(), self._logged - start, start)
        return "\n".join(text.decode(errors="replace").splitlines()[-TAIL:])

    def end(self) -> None:
        """Ends the process and whatever its trial has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.pipe.close()
        self.log.close()


def default_workers(terms: Terms) -> int:
    """As many as cores, memory and GPUs allow."""
    resources = terms.resources
    if terms.device == "cuda":
        return max(1, int(torch.cuda.device_count() / (resources.gpus or 1) + 1e-9))
    by_memory = math.inf if resources.memory is None else _free_memory() // resources.memory
    return max(1, int(min(cores() // resources.threads, by_memory)))


def _free_memory() -> int:
    """Bytes that this machine has free."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
