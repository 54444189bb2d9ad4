"""The local engine: processes of this machine, each with its own threads, memory and time. One that dies takes nothing
with it but the trial in flight; another one is started in its place."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from headway.errors import HeadwayError
from headway.machine import cores
from headway.runs import disk
from headway.trials.carry import GRACE
from headway.trials.engines import Ended, Hear
from headway.trials.trial import Piece, Resources, Result, Terms, to_line

TAIL = 50
"""lines kept of a log"""
LONGEST_LOG = 1_000_000
SOON = 2.0
WORKER = "from headway.trials.worker import main; main()"


class LocalEngine:
    def __init__(self, terms: Terms, workers: int | None = None) -> None:
        self.terms, self.slots = terms, workers or default_workers(terms.resources, terms.device)
        self.hear: Hear = lambda ticket, steps, words: None
        self._lanes: dict[int, _Worker] = {}
        self._selector = selectors.DefaultSelector()

    @property
    def room(self) -> int:
        return self.slots - sum(worker.ticket is not None for worker in self._lanes.values())

    def start(self, ticket: int, piece: Piece) -> None:
        for lane in [lane for lane, worker in self._lanes.items() if worker.has_ended]:
            self._retire(lane)
        lane = next((lane for lane, worker in self._lanes.items() if worker.ticket is None), None)
        if lane is None:
            lane = next(number for number in range(self.slots) if number not in self._lanes)
            self._lanes[lane] = worker = _Worker(self._environment(lane))
            self._selector.register(worker.answers, selectors.EVENT_READ, lane)
        self._lanes[lane].send(ticket, piece, self.terms)

    def wait(self, seconds: float) -> list[Ended]:
        ended = []
        spoke = {key.data for key, _ in self._selector.select(seconds)}
        for lane, worker in list(self._lanes.items()):
            # a process that a trial has begun may outlive the worker, and keep its pipe open
            if lane in spoke or worker.process.poll() is not None:
                found = worker.read(self.hear)
                ended += [] if found is None else [found]
                if worker.gone or (found is not None and worker.spoiled):
                    self._retire(lane)
            elif worker.overdue:
                ended.append(worker.died("it did not answer when its time was over, and was killed", late=True))
                self._retire(lane)
        return ended

    def stop(self) -> None:
        for lane in list(self._lanes):
            self._retire(lane)
        self._selector.close()

    def _retire(self, lane: int) -> None:
        worker = self._lanes.pop(lane)
        self._selector.unregister(worker.answers)
        worker.end()

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
        self.answers, theirs = os.pipe()
        try:
            self.log = tempfile.TemporaryFile()  # noqa: SIM115
            fcntl.fcntl(self.log, fcntl.F_SETFL, os.O_APPEND)  # so that it can be cut short
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(theirs)],  # nothing from the current folder
                stdin=subprocess.PIPE,
                stdout=self.log,
                stderr=self.log,
                env=environment,
                pass_fds=[theirs],
                start_new_session=True,  # Ctrl-C is the driver's; and what it starts ends with it
            )
        except OSError as error:
            os.close(self.answers)
            raise disk.explained(error, Path(tempfile.gettempdir())) from error
        finally:
            os.close(theirs)
        os.set_blocking(self.answers, False)
        self.ticket: int | None = None
        self.ready = self.gone = self.spoiled = False
        self.deadline: float | None = None
        self._limit: float | None = None
        self._rest = b""
        self._from = 0

    def send(self, ticket: int, piece: Piece, terms: Terms) -> None:
        self.ticket, self._from = ticket, self._logged
        if (seconds := terms.seconds(piece)) is not None:
            self._limit = seconds + 2 * GRACE
            self.deadline = time.monotonic() + self._limit if self.ready else None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a process that has died says so by its other pipe
            self.process.stdin.write((to_line(piece, terms) + "\n").encode())
            self.process.stdin.flush()

    @property
    def has_ended(self) -> bool:
        return self.ticket is None and self.process.poll() is not None

    @property
    def _logged(self) -> int:
        return os.fstat(self.log.fileno()).st_size

    @property
    def overdue(self) -> bool:
        return self.ticket is not None and self.deadline is not None and time.monotonic() > self.deadline

    def read(self, hear: Hear) -> Ended | None:
        """What the process has said, if that ends its order."""
        over = self.process.poll() is not None  # asked first: what it said before, it has said
        try:
            said = os.read(self.answers, 1 << 24)
        except BlockingIOError:
            said = b""
            if not over:
                return None
        if not said:
            self.gone = True
            return self._ended_itself()
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            if line == b"ready":
                self.ready = True
                self.deadline = None if self._limit is None else time.monotonic() + self._limit
                continue
            ticket, told = self.ticket, json.loads(line)
            assert ticket is not None
            if isinstance(told, dict):
                hear(ticket, told["steps"], told["words"])
                continue
            results = [Result(**each) for each in told]
            self.ticket, self.deadline = None, None
            self.spoiled = any(result.kind in ("OutOfMemory", "TooLong") for result in results)
            ended = Ended(ticket, results, tail=self.tail() if any(result.error for result in results) else "")
            if self._logged > LONGEST_LOG:
                os.ftruncate(self.log.fileno(), 0)
            return ended
        return None

    def _ended_itself(self) -> Ended | None:
        try:
            status = self.process.wait(SOON)
        except subprocess.TimeoutExpired:  # it closed what is not its own, and goes on
            self.kill()
            return self.died("it closed the pipe of its process") if self.ticket is not None else None
        if not self.ready and status > 0:
            last = (self.tail().splitlines() or ["it said nothing"])[-1]
            raise HeadwayError(f"a process for trials cannot start: {last}")
        if self.ticket is None:
            return None
        if status < 0:
            name = signal.Signals(-status).name
            memory = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
            return self.died(f"its process was ended by {name}{memory}")
        late = re.search(r"^Timeout \(\d+:\d\d:\d\d", self.tail(), re.MULTILINE) is not None
        why = "it took longer than it may, and did not answer" if late else f"its process ended with status {status}"
        return self.died(why, late)

    def died(self, why: str, late: bool = False) -> Ended:
        assert self.ticket is not None
        ended = Ended(self.ticket, None, why, self.tail(), late)
        self.ticket = None
        return ended

    def tail(self) -> str:
        """The last lines that the trial in hand wrote."""
        start = max(self._from, self._logged - 20_000)
        text = os.pread(self.log.fileno(), self._logged - start, start)
        return "\n".join(text.decode(errors="replace").splitlines()[-TAIL:])

    def kill(self) -> None:
        """Ends the process and whatever its trial has begun."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        self.kill()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        os.close(self.answers)
        self.log.close()


def default_workers(resources: Resources, device: str) -> int:
    """As many as cores, memory and GPUs allow."""
    by_cores = max(1, cores() // resources.threads)
    if device == "cuda":
        share = resources.gpus or 1
        return max(1, int(torch.cuda.device_count() / share + 1e-9))
    if resources.memory is None:
        return by_cores
    return max(1, min(by_cores, _memory() // resources.memory))


def _memory() -> int:
    """Bytes that this machine has free."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
