"""The engine interface of the driver, and the two engines of this machine: this process itself, and worker processes,
each with its own threads, memory and timeout. If a worker dies, only its current trial is lost; another worker takes
its place."""

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
from headway.trials.execute import GRACE, run_piece_or_raise
from headway.trials.trial import Piece, Result, Terms, to_line

TAIL = 50  # lines of a log to keep
LONGEST_LOG = 1_000_000
EXIT_WAIT = 2.0  # seconds for a process that closed its pipe to exit
WORKER = "from headway.trials.worker import main; main()"
OnProgress = Callable[[int, int, str], None]  # called with the ticket of a piece, its steps done, and a status line


@dataclass(frozen=True)
class EndedPiece:
    """A piece that has ended: with a result for each of its trials, or None because the process died."""

    ticket: int
    results: list[Result] | None
    why: str = ""  # how the process died
    tail: str = ""  # the last lines of its log
    late: bool = False  # whether it died because of its timeout; a retry would end the same way


@runtime_checkable
class Engine(Protocol):
    terms: Terms
    on_progress: OnProgress

    @property
    def slots(self) -> int: ...  # how many pieces run at a time

    @property
    def room(self) -> int: ...  # how many more pieces may be started now

    def start(self, ticket: int, piece: Piece) -> None: ...

    def wait(self, seconds: float) -> list[EndedPiece]: ...  # pieces that have ended; waits for one, at most so long

    def stop(self) -> None: ...  # kills everything that runs: a trial can be killed at any point


class InProcess:
    """Runs pieces in this process, one after another; raises errors of training."""

    slots = 1

    def __init__(self, terms: Terms) -> None:
        self.terms, self.on_progress = terms, lambda ticket, steps, words: None
        self._ended: list[EndedPiece] = []

    @property
    def room(self) -> int:
        return 1 - len(self._ended)

    def start(self, ticket: int, piece: Piece) -> None:
        results: list[Result] = []
        run_piece_or_raise(piece, self.terms, results, lambda done, _, words: self.on_progress(ticket, done, words))
        self._ended.append(EndedPiece(ticket, results))

    def wait(self, seconds: float) -> list[EndedPiece]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """Does nothing: every piece has already ended."""


class LocalEngine:
    def __init__(self, terms: Terms, workers: int | None = None) -> None:
        self.terms, self.slots = terms, workers or default_workers(terms)
        self.on_progress: OnProgress = lambda ticket, steps, words: None
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

    def wait(self, seconds: float) -> list[EndedPiece]:
        ended = []
        readable = connection.wait([worker.pipe for worker in self._lanes.values()], seconds)
        for lane, worker in list(self._lanes.items()):
            # a process that the trial started may outlive the worker and keep its pipe open
            if worker.pipe in readable or worker.process.poll() is not None:
                found = worker.read(self.on_progress)
            elif worker.ticket is not None and time.monotonic() > worker.deadline:
                found = worker.fail("it did not respond to its timeout and was killed", late=True)
            else:
                continue
            ended += [] if found is None else [found]
            if worker.unusable:
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
    """A worker process and the piece that it runs."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.pipe, theirs = Pipe()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        fcntl.fcntl(self.log, fcntl.F_SETFL, os.O_APPEND)  # so that it can be truncated
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(theirs.fileno())],  # nothing from the current folder
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the driver handles Ctrl-C; child processes end with the worker
            )
        self.ticket: int | None = None
        self.ready = self.unusable = False  # unusable: it has ended, or must not be used again
        self.deadline = self._limit = math.inf
        self._log_start = 0

    def send(self, ticket: int, piece: Piece, terms: Terms) -> None:
        self.ticket, self._log_start = ticket, self._log_size
        self._limit = (terms.seconds(piece) or math.inf) + 2 * GRACE
        self.deadline = time.monotonic() + self._limit if self.ready else math.inf
        with contextlib.suppress(OSError):  # read() handles a process that has died
            self.pipe.send_bytes(to_line(piece, terms).encode())

    def read(self, on_progress: OnProgress) -> EndedPiece | None:
        """Reads the messages of the process; returns its piece if that has ended."""
        over = self.process.poll() is not None  # checked first, so that no last message is missed
        try:
            while self.pipe.poll():
                match json.loads(self.pipe.recv_bytes()):
                    case "ready":
                        self.ready = True
                        self.deadline = time.monotonic() + self._limit
                    case [int() as steps, str() as words]:
                        on_progress(self.ticket or 0, steps, words)
                    case results:
                        return self._finish_piece([Result(**each) for each in results])
        except (EOFError, OSError):
            over = True
        return self._handle_exit() if over else None

    def _finish_piece(self, results: list[Result]) -> EndedPiece:
        assert self.ticket is not None
        ended = EndedPiece(self.ticket, results, tail=self._tail() if any(result.error for result in results) else "")
        self.ticket = None
        self.unusable = any(result.kind in ("OutOfMemory", "TooLong") for result in results)
        if self._log_size > LONGEST_LOG:
            os.ftruncate(self.log.fileno(), 0)
        return ended

    def _handle_exit(self) -> EndedPiece | None:
        try:
            status = self.process.wait(EXIT_WAIT)
        except subprocess.TimeoutExpired:  # the trial closed the worker's pipe and still runs
            return self.fail("it closed the pipe of its process")
        if not self.ready and status > 0:
            last = ["it printed nothing", *self._tail().splitlines()][-1]
            raise HeadwayError(f"a worker process cannot start: {last}")
        if status < 0:
            memory = ", perhaps out of memory" if -status == signal.SIGKILL else ""
            return self.fail(f"its process was killed by {signal.Signals(-status).name}{memory}")
        late = re.search(r"^Timeout \(\d+:\d\d:\d\d", self._tail(), re.MULTILINE) is not None
        why = "it exceeded its timeout and did not respond" if late else f"its process ended with status {status}"
        return self.fail(why, late)

    def fail(self, why: str, late: bool = False) -> EndedPiece | None:
        """Marks the worker unusable; returns its piece, if it has one, as failed."""
        ticket, self.ticket, self.unusable = self.ticket, None, True
        return None if ticket is None else EndedPiece(ticket, None, why, self._tail(), late)

    @property
    def _log_size(self) -> int:
        return os.fstat(self.log.fileno()).st_size

    def _tail(self) -> str:
        """Returns the last log lines of the current piece."""
        start = max(self._log_start, self._log_size - 20_000)
        text = os.pread(self.log.fileno(), self._log_size - start, start)
        return "\n".join(text.decode(errors="replace").splitlines()[-TAIL:])

    def end(self) -> None:
        """Kills the process and everything that its trial has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.pipe.close()
        self.log.close()


def default_workers(terms: Terms) -> int:
    """Returns as many workers as cores, memory and GPUs allow."""
    resources = terms.resources
    if terms.device == "cuda":
        return max(1, int(torch.cuda.device_count() / (resources.gpus or 1) + 1e-9))
    by_memory = math.inf if resources.memory is None else _free_memory() // resources.memory
    return max(1, int(min(cores() // resources.threads, by_memory)))


def _free_memory() -> int:
    """Returns the free memory of this machine in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
