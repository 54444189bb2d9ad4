"""The driver: gives out the trials of a sweep, a few at a time, and keeps count.

Trials that are done are reused; those that another driver has claimed are left to it, and looked at again. What fails
is kept in `failures/`, and the others go on. Ctrl-C once lets what runs come to its end, twice stops it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from headway.errors import CannotWrite, HeadwayError
from headway.runs import disk
from headway.sweeps.board import Board
from headway.sweeps.claims import Claims
from headway.sweeps.engine import Ended, Engine
from headway.sweeps.file import Study, Sweep
from headway.sweeps.plan import Piece, Trial
from headway.sweeps.trial import Order, Result, home_of, metrics_of

LOOK = 0.5
"""seconds between looks at trials that other drivers have"""
HOPELESS = (CannotWrite.__name__,)


@dataclass
class Tally:
    """What has become of the trials so far, each once."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """metrics by address"""
    reused: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    busy: float = 0.0
    """seconds that trials took, all together"""
    attempts: dict[str, int] = field(default_factory=dict)


class Interrupts:
    """Ctrl-C while a sweep runs: the first asks for an end, the second for one at once."""

    def __init__(self) -> None:
        self.count = 0

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._ring)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:  # whatever it is that does not end
            raise KeyboardInterrupt


class Driver:
    def __init__(
        self,
        sweep: Sweep,
        engine: Engine,
        claims: Claims,
        board: Board,
        fail_fast: bool,
        interrupts: Interrupts,
    ) -> None:
        self.sweep, self.engine, self.claims, self.board = sweep, engine, claims, board
        self.fail_fast, self.interrupts = fail_fast, interrupts
        self.out, self.tally = sweep.out, Tally()
        self._tickets = 0
        self._running: dict[int, Piece] = {}

    def run(self, pieces: Sequence[Piece], last: bool = True) -> None:
        """Carries out what is not done of these. `last` counts the trials: their studies are the ones asked for."""
        waiting, elsewhere = deque(pieces), deque[Piece]()
        looked = time.monotonic()
        while waiting or elsewhere or self._running:
            if self.claims.lost:
                raise HeadwayError(
                    "this sweep stood still so long that another one took over its trials; what is done is kept, give "
                    "the same command to go on"
                )
            if self.interrupts.count > 1 or (self.interrupts.count and not self._running):
                raise KeyboardInterrupt
            self.board.words = "finishing what runs; Ctrl-C again stops it" if self.interrupts.count else ""
            while waiting and self.engine.room > 0 and not self.interrupts.count:
                self._begin(waiting.popleft(), elsewhere, last)
            if not waiting and not self._running and elsewhere:
                time.sleep(LOOK / 5)
            for ended in self.engine.wait(LOOK / 2) if self._running else ():
                self._end(ended, waiting, last)
            if elsewhere and time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                waiting.extend(elsewhere)
                elsewhere.clear()
            self.board.tick()

    def _begin(self, piece: Piece, elsewhere: deque[Piece], last: bool) -> None:
        """Starts what is left to do of a piece; one of which another driver has claimed a trial is looked at later."""
        left = self._unfinished(piece, last)
        claimed: list[Trial] = []
        for trial in left.trials:
            if not self.claims.take(trial.address):
                self._drop(claimed)
                elsewhere.append(left)
                return
            claimed.append(trial)
        ours = self._unfinished(left, last)  # another driver may have done some in this very moment
        self._drop([trial for trial in claimed if trial not in ours.trials])
        if ours.trials:
            self._start(ours)

    def _unfinished(self, piece: Piece, last: bool) -> Piece:
        """What is not done of a piece; what is, is reused."""
        return replace(piece, trials=tuple(t for t in piece.trials if not self._reuse(t, piece.studies, last)))

    def _drop(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self.claims.drop(trial.address)

    def _start(self, piece: Piece) -> None:
        resources = self.sweep.resources
        order = Order(
            configs=[trial.config.to_json() for trial in piece.trials],
            studies=[asdict(study) for study in piece.studies],
            population=[trial.config.to_json() for trial in piece.population],
            out=str(self.out.resolve()),
            device=self.engine.device,
            precision=resources.precision,
            timeout=resources.timeout,
            memory=resources.memory,
            home=None if self.sweep.home is None else str(self.sweep.home),
            command=sys.argv[1:],
        )
        self._tickets += 1
        self._running[self._tickets] = piece
        for trial in piece.trials:
            self.board.begin(trial)
        self.engine.start(self._tickets, order)

    def _reuse(self, trial: Trial, studies: Sequence[Study], last: bool) -> bool:
        metrics = metrics_of(home_of(self.out, trial.config), trial.config, studies)
        if metrics is None:
            return False
        self.claims.tidy(trial.address)
        self._found(trial, metrics, last, reused=True)
        return True

    def _end(self, ended: Ended, waiting: deque[Piece], last: bool) -> None:
        piece = self._running.pop(ended.ticket)
        if ended.results is None:
            self._died(piece, ended, waiting)
            return
        for trial, result in zip(piece.trials, ended.results, strict=True):
            self.tally.busy += result.seconds
            if result.metrics is not None:
                self._found(trial, result.metrics, last, reused=False)
            elif self._crowded(trial, result):
                self.board.running.pop(trial.title, None)
                waiting.append(replace(piece, trials=(trial,)))
            else:
                self._fail(trial, result, ended.tail)
            self.claims.drop(trial.address)

    def _crowded(self, trial: Trial, result: Result) -> bool:
        """Whether a trial that shares its GPU may have wanted no more than its share, and is to be begun again."""
        shares = self.engine.device == "cuda" and (self.sweep.resources.gpus or 1) < 1
        attempts = self.tally.attempts.get(trial.address, 0) + 1
        if not shares or result.kind != "OutOfMemory" or attempts > self.sweep.resources.retries:
            return False
        self.tally.attempts[trial.address] = attempts
        return True

    def _died(self, piece: Piece, ended: Ended, waiting: deque[Piece]) -> None:
        """Begins a piece again whose process died; as often as it may."""
        attempts = max(self.tally.attempts.get(trial.address, 0) for trial in piece.trials) + 1
        for trial in piece.trials:
            self.tally.attempts[trial.address] = attempts
            self.board.running.pop(trial.title, None)
        if attempts <= self.sweep.resources.retries and not ended.late:
            waiting.appendleft(piece)
            return
        for trial in piece.trials:
            self._fail(trial, Result(trial.address, 0.0, None, "Died", ended.why, ""), ended.tail)
            self.claims.drop(trial.address)

    def _found(self, trial: Trial, metrics: dict[str, Any], last: bool, reused: bool) -> None:
        if trial.address in self.tally.found and not last:
            return
        if not reused:
            self.tally.reused.discard(trial.address)
        elif trial.address not in self.tally.found:
            self.tally.reused.add(trial.address)
        self.tally.found[trial.address] = {**self.tally.found.get(trial.address, {}), **metrics}
        with contextlib.suppress(OSError):
            self._failure(trial).unlink(missing_ok=True)
        if last:
            self.board.end(trial, metrics, reused=trial.address in self.tally.reused)
        else:
            self.board.running.pop(trial.title, None)
            self.board.tick()

    def _fail(self, trial: Trial, result: Result, tail: str) -> None:
        """Keeps what went wrong. Where no trial can be written, all would fail alike: that ends the sweep."""
        if result.kind in HOPELESS:
            raise CannotWrite(f"{result.error}; what is done is kept")
        self.tally.found.pop(trial.address, None)
        self.tally.reused.discard(trial.address)
        self.tally.failed[trial.address] = result.error
        content = {
            "trial": trial.address,
            "settings": trial.settings,
            "kind": result.kind,
            "error": result.error,
            "attempts": self.tally.attempts.get(trial.address, 0) + (result.kind != "Died"),
            "tail": "\n".join(filter(None, [tail, result.tail])),
        }
        disk.write_json(self._failure(trial), content)
        self.board.end(trial, None, result.error)
        if self.fail_fast:
            raise FailFast(f"{trial.title} failed: {result.error}; its log is in {self._failure(trial)}")

    def _failure(self, trial: Trial) -> Path:
        return self.out / "failures" / f"{trial.address}.json"


class FailFast(HeadwayError):
    """A trial failed, and the first failure was to end the sweep."""


def tell(sentence: str, quiet: bool) -> None:
    if not quiet:
        print(sentence, file=sys.stderr, flush=True)
