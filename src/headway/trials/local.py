"""The local engine: processes of this machine, each with its own threads, memory and time. One that dies takes nothing
with it but the trial in flight; another one is started in its place."""

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
from multiprocessing import Pipe, connection
from pathlib import Path

import torch

from headway.errors import HeadwayError
from headway.machine import cores
from headway.trials.carry import GRACE
from headway.trials.engines import Ended, Hear
from headway.trials.trial import Piece, Result, Terms, to_line

TAIL = 50  # lines kept of a log
LONGEST_LOG = 1_000_000
SOON = 2.0
WORKER = "from headway.trials.worker import main; main()"


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
        idle = [lane for lane, worker in self._lanes.items() if worker.ticket is None]
        lane = (idle or [number for number in range(self.slots) if number not in self._lanes])[0]
        if not idle:
            self._lanes[lane] = _Worker(self._environment(lane))
        self._lanes[lane].send(ticket, piece, self.terms)

    def wait(self, seconds: float) -> list[Ended]:
        ended = []
        spoke = connection.wait([worker.pipe for worker in self._lanes.values()], seconds)
        for lane, worker in list(self._lanes.items()):
            # a process that a trial has started may outlive the worker, and keep its pipe open
            if worker.pipe in spoke or worker.process.poll() is not None:
                found = worker.read(self.hear)
            elif worker.overdue:
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
        threads = str(self.terms.resources.threads)
        package = Path(__file__).parents[2]
        own = {
            "HEADWAY_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")])),
            "PYTHONUNBUFFERED": "1",
        }
        if self.terms.device == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            devices = [each for each in visible if each] or [str(n) for n in range(torch.cuda.device_count())]
            own["CUDA_VISIBLE_DEVICES"] = devices[lane % len(devices)]
        return {**os.environ, **own}


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
        self._deadline: float | None = None
        self._limit: float | None = None
        self._from = 0

    def send(self, ticket: int, piece: Piece, terms: Terms) -> None:
        self.ticket, self._from = ticket, self._logged
        if (seconds := terms.seconds(piece)) is not None:
            self._limit = seconds + 2 * GRACE
            self._deadline = time.monotonic() + self._limit if self.ready else None
        with contextlib.suppress(OSError):  # of a process that has died, read() will know
            self.pipe.send_bytes(to_line(piece, terms).encode())

    @property
    def overdue(self) -> bool:
        return self.ticket is not None and self._deadline is not None and time.monotonic() > self._deadline

    def read(self, hear: Hear) -> Ended | None:
        """What the process has said, if that ends its piece."""
        over = self.process.poll() is not None  # asked first: what it said before, it has said
        try:
            while self.pipe.poll():
                match json.loads(self.pipe.recv_bytes()):
                    case "ready":
                        self.ready = True
                        self._deadline = None if self._limit is None else time.monotonic() + self._limit
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
        self.ticket = self._deadline = None
        self.spoiled = any(result.kind in ("OutOfMemory", "TooLong") for result in results)
        if self._logged > LONGEST_LOG:
            os.ftruncate(self.log.fileno(), 0)
        return ended

    def _ended_itself(self) -> Ended | None:
        self.spoiled = True
        try:
            status = self.process.wait(SOON)
        except subprocess.TimeoutExpired:  # it closed what is not its own, and goes on
            return self.died("it closed the pipe of its process")
        if not self.ready and status > 0:
            last = (self._tail().splitlines() or ["it said nothing"])[-1]
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
        found = re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return int(found[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
