"""One submission in a process of its own, seen from outside: time and memory limits, what it prints, how it ends.

The result comes through a pipe that only the worker knows, with a secret that the driver gave it; what a submission
prints goes elsewhere and can never be taken for a result. This guards against accidents. It is no sandbox: a
submission runs with all rights of the person who examines it.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs.shapes import fill, find_fault
from headway.submissions.submission import CheckJson, Submission
from headway.submissions.worker import NO_MEMORY, Job

START = 300.0  # seconds for a process to import everything on a busy machine
GRACE = 1.0  # seconds between the message that says where it hangs and the kill
TICK = 0.25  # seconds between looks at the memory
TAIL = 6_000  # bytes of the output to keep
LOUD = 100_000  # bytes of output that the row mentions
LONGEST = 2**26  # bytes of a message
WORKER = "from headway.submissions.worker import main; main()"


class SubmissionProcess:
    def __init__(self, job: Job) -> None:
        self.job, self.began = job, time.monotonic()
        self.pipe, theirs = Pipe()
        self.reads, writes = os.pipe()
        os.set_blocking(self.reads, False)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(theirs.fileno())],  # nothing from the current folder
                stdin=subprocess.DEVNULL,
                stdout=writes,
                stderr=writes,
                env=_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # its own process group: whatever it starts ends with it
            )
        finally:
            theirs.close()
            os.close(writes)
        self.deadline, self.printed = self.began + START, 0
        self._tail, self._begun = b"", b""
        self._prints = self._connected = True
        self._ready = False
        with contextlib.suppress(OSError):  # look() handles a process that has died
            self.pipe.send_bytes(json.dumps(asdict(job)).encode())
        os.set_blocking(self.pipe.fileno(), False)

    def look(self) -> Submission | None:
        """Reads what has arrived; returns the member if the submission has ended or must be stopped."""
        over = self.process.poll() is not None  # first, so that no last message is missed
        for message in self._read_messages():
            if message == "ready" and not self._ready:
                self._ready, self.began = True, time.monotonic()
                self.deadline = self.began + self.job.seconds + GRACE
            elif (member := _read_result(message)) is not None:
                self._read_output()
                return self._add_output(member)
        self._read_output()
        if over or not self._connected:
            return self._explain_exit()
        if time.monotonic() > self.deadline:
            return self._explain_timeout()
        if _resident(self.process.pid) > self.job.memory:
            return self._fail(f"it needed more than {self.job.memory / 2**30:.3g} GB of memory", "memory")
        return None

    def _read_messages(self) -> Iterator[object]:
        """Yields what the worker has sent. Lines without the secret are not from the worker; they are ignored."""
        try:
            while self._connected and (chunk := os.read(self.pipe.fileno(), 2**20)):
                *lines, self._begun = (self._begun + chunk).split(b"\n")
                self._begun = self._begun[:LONGEST]
                for line in lines:
                    with contextlib.suppress(ValueError, RecursionError):
                        match json.loads(line):
                            case [self.job.secret, message]:
                                yield message
            self._connected = False
        except BlockingIOError:
            pass
        except OSError:
            self._connected = False

    def end(self) -> None:
        """Kills the process and everything that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.pipe.close()
        os.close(self.reads)

    def _explain_exit(self) -> Submission:
        try:
            status = self.process.wait(2.0)
        except subprocess.TimeoutExpired:  # the submission closed the pipe and still runs
            return self._fail("it closed the pipe of its process", "error")
        self._read_output()
        if any(words.encode() in self._tail for words in NO_MEMORY):
            return self._fail(f"it needed more than {self.job.memory / 2**30:.3g} GB of memory", "memory")
        if status < 0:
            perhaps = ", perhaps because memory ran out" if -status == signal.SIGKILL else ""
            return self._fail(f"its process was killed by {signal.Signals(-status).name}{perhaps}", "signal")
        return self._fail(f"it ended its process with status {status} before it was examined", "exit")

    def _explain_timeout(self) -> Submission:
        """Says that it took too long, and which of its lines was running."""
        self._read_output()
        last = self._tail.decode(errors="replace").rpartition("Timeout (")[2]
        lines = re.findall(r'File "([^"\n]+)", line (\d+) in', last)
        own = [(file, line) for file, line in lines if Path(file).is_relative_to(self.job.folder)]
        where = f"; it was at {Path(own[0][0]).relative_to(self.job.folder)}, line {own[0][1]}" if own else ""
        return self._fail(f"it did not finish within {self.job.seconds:g} s{where}", "timeout")

    def _fail(self, sentence: str, ended: str) -> Submission:
        seconds = round(time.monotonic() - self.began, 3)
        member = Submission("", self.job.folder, sentence=sentence, refused=sentence, ended=ended, seconds=seconds)
        return self._add_output(member)

    def _add_output(self, member: Submission) -> Submission:
        left_out, sentence = self.printed - len(self._tail), member.sentence
        output = f"({left_out:,} bytes left out)\n" if left_out else ""
        output += self._tail.decode(errors="replace")
        if self.printed > LOUD:
            sentence += f" (it printed {self.printed:,} bytes; the last {len(self._tail):,} are kept)"
        return replace(member, printed=self.printed, output=output, sentence=sentence)

    def _read_output(self) -> None:
        """Reads what was printed, and keeps the end of it."""
        until = time.monotonic() + TICK  # one that prints without end must not keep the others waiting
        with contextlib.suppress(BlockingIOError):
            while self._prints and time.monotonic() < until:
                chunk = os.read(self.reads, 2**16)
                self._prints = bool(chunk)
                self.printed += len(chunk)
                self._tail = (self._tail + chunk)[-TAIL:]

    @property
    def signals(self) -> list[connection.Connection | int]:
        """What becomes readable when there is something to look at."""
        return [*([self.pipe] if self._connected else []), *([self.reads] if self._prints else [])]


def run_jobs(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Submission]]:
    """Runs these jobs, so many at a time, and yields each as it ends; if it is left early, all processes are killed."""
    waiting, running = deque(jobs), list[SubmissionProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(SubmissionProcess(waiting.popleft()))
            connection.wait([signal for each in running for signal in each.signals], TICK)
            for each in list(running):
                if (member := each.look()) is not None:
                    running.remove(each)
                    each.end()
                    yield each.job, member
    finally:
        for each in running:
            each.end()


def _read_result(message: object) -> Submission | None:
    with contextlib.suppress(HeadwayError):
        return submission_from_json(message)
    return None


def submission_from_json(content: Any) -> Submission:
    """Makes a member of plain values; raises a ValueError if they do not fit."""
    try:
        causes, checks = content["causes"], content["checks"]
        fault = find_fault(causes, list[str]) or find_fault(checks, list[CheckJson])
        if fault is None:
            rest = {name: value for name, value in content.items() if name not in ("causes", "checks")}
            return replace(fill(Submission, rest), causes=tuple(causes), checks=tuple(checks))
    except (TypeError, KeyError, AttributeError) as error:
        fault = str(error)
    raise HeadwayError(f"this is not a submission of a class: {fault}")


def _environment() -> dict[str, str]:
    """Returns the environment of a worker: one thread, no compiled files in the submission's folder."""
    folders = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    own = dict.fromkeys(("HEADWAY_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _resident(pid: int) -> int:
    """Returns the resident memory of a process in bytes, 0 if it is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
