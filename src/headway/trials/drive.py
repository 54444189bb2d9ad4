"""The driver: hands out pieces of work, as many at a time as its engine takes, and records their outcomes.

Finished trials are reused. With a folder for failures the other trials go on; without one the first failure ends
everything. Several drivers may share a folder by claims: a trial that another driver has claimed is checked again
later. With `Interrupts`, the first Ctrl-C lets running trials finish, and the second stops them.
"""

import contextlib
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from headway.errors import CannotWrite, HeadwayError
from headway.progress import Progress
from headway.runs import disk
from headway.training.loop import RunReport, Watch, report_of
from headway.trials.board import Board
from headway.trials.claims import Claims
from headway.trials.local import EndedPiece, Engine
from headway.trials.trial import Metrics, Piece, Result, Trial, metrics_of

POLL = 0.5  # seconds between checks of trials that other drivers have


@dataclass
class Outcomes:
    """The outcomes of the trials so far, each once."""

    found: dict[str, Metrics] = field(default_factory=dict)  # by address
    reused: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    busy: float = 0.0  # seconds of all trials together
    attempts: dict[str, int] = field(default_factory=dict)


class Interrupts:
    """Counts Ctrl-C while entered: the first asks to finish, the second to stop at once."""

    count = 0

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._count)

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:  # something does not stop
            raise KeyboardInterrupt


@dataclass
class Driver:
    engine: Engine
    board: Board
    claims: Claims | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    failures: Path | None = None  # the folder for failures; without one, the first failure is raised
    fail_fast: bool = False
    watch: Watch | None = None  # called with the steps of all pieces together

    def __post_init__(self) -> None:
        self.out, self.outcomes, self.engine.on_progress = Path(self.engine.terms.out), Outcomes(), self._on_progress
        self._tickets, self._running, self._steps = 0, dict[int, Piece](), dict[int, int]()

    def run(self, pieces: Sequence[Piece], last: bool = True) -> None:
        """Runs the unfinished trials of these pieces. `last` counts the trials: this is the final round of studies."""
        waiting, elsewhere = deque(pieces), deque[Piece]()
        self._total, self._several = sum(piece.steps for piece in pieces), len(pieces) > 1
        polled = time.monotonic()
        while waiting or elsewhere or self._running:
            if self.claims is not None and self.claims.lost:
                raise HeadwayError(
                    "this sweep was suspended so long that another one took over its trials; finished trials are kept, "
                    "run the same sweep again to resume"
                )
            if self.interrupts.count > 1 or (self.interrupts.count and not self._running):
                raise KeyboardInterrupt
            self.board.note = "finishing running trials; Ctrl-C again stops them" if self.interrupts.count else ""
            while waiting and self.engine.room > 0 and not self.interrupts.count:
                self._begin(waiting.popleft(), elsewhere, last)
            if not waiting and not self._running and elsewhere:
                time.sleep(POLL / 5)
            for ended in self.engine.wait(POLL / 2) if self._running else ():
                self._end(ended, waiting, last)
            if elsewhere and time.monotonic() - polled > POLL:
                polled = time.monotonic()
                waiting.extend(elsewhere)
                elsewhere.clear()
            self.board.tick()

    def _begin(self, piece: Piece, elsewhere: deque[Piece], last: bool) -> None:
        """Starts the unfinished trials of a piece; postpones it if another driver has claimed one of them."""
        left = self._unfinished(piece, last)
        if self.claims is not None:
            if not all(self.claims.take(trial.address) for trial in left.trials):
                self._drop(left.trials)
                elsewhere.append(left)
                return
            claimed, left = left, self._unfinished(left, last)  # another driver may just have finished some
            self._drop([trial for trial in claimed.trials if trial not in left.trials])
        if left.trials:
            self._tickets += 1
            self._running[self._tickets] = left
            for trial in left.trials:
                self.board.begin(trial)
            self.engine.start(self._tickets, left)

    def _unfinished(self, piece: Piece, last: bool) -> Piece:
        """Returns a piece without its finished trials, which are reused."""
        left = []
        for trial in piece.trials:
            if (metrics := metrics_of(trial.folder(self.out), trial.config, piece.studies)) is None:
                left.append(trial)
                continue
            shutil.rmtree(trial.folder(self.out).checkpoints, ignore_errors=True)  # a killed process may have left them
            if self.claims is not None:
                self.claims.tidy(trial.address)
            self._record(trial, metrics, last, reused=True)
        if not left:
            self._total -= piece.steps
        return replace(piece, trials=tuple(left))

    def _drop(self, trials: Sequence[Trial]) -> None:
        if self.claims is not None:
            for trial in trials:
                self.claims.drop(trial.address)

    def _on_progress(self, ticket: int, steps: int, words: str) -> None:
        self._steps[ticket] = steps
        if self.watch is not None:
            title = f"{self._running[ticket].trials[0].title}: " if self._several else ""
            self.watch(sum(self._steps.values()), self._total, title + words)

    def _end(self, ended: EndedPiece, waiting: deque[Piece], last: bool) -> None:
        """Records the results of a piece; restarts it if its process died and retries are left."""
        piece, terms = self._running.pop(ended.ticket), self.engine.terms
        if ended.results is None and self._may_retry(piece.trials) and not ended.late:
            self._steps.pop(ended.ticket, None)
            waiting.appendleft(piece)
            return
        died = [Result(trial.address, 0.0, None, "Died", ended.why, "") for trial in piece.trials]
        for trial, result in zip(piece.trials, died if ended.results is None else ended.results, strict=True):
            self.outcomes.busy += result.seconds
            # on a shared GPU the trial itself may have stayed within its share
            crowded = result.kind == "OutOfMemory" and terms.device == "cuda" and (terms.resources.gpus or 1) < 1
            if result.metrics is not None:
                self._record(trial, result.metrics, last, reused=False)
            elif crowded and self._may_retry([trial]):
                waiting.append(replace(piece, trials=(trial,)))
            else:
                self._fail(trial, result, ended.tail)
            self._drop([trial])

    def _may_retry(self, trials: Sequence[Trial]) -> bool:
        """Counts an attempt and returns whether the trials may be started again."""
        attempts = max(self.outcomes.attempts.get(trial.address, 0) for trial in trials) + 1
        for trial in trials:
            self.outcomes.attempts[trial.address] = attempts
            self.board.running.pop(trial.title, None)
        return attempts <= self.engine.terms.resources.retries

    def _record(self, trial: Trial, metrics: Metrics, last: bool, reused: bool) -> None:
        outcomes = self.outcomes
        if trial.address in outcomes.found and not last:
            return
        if not reused:
            outcomes.reused.discard(trial.address)
        elif trial.address not in outcomes.found:
            outcomes.reused.add(trial.address)
        outcomes.found[trial.address] = {**outcomes.found.get(trial.address, {}), **metrics}
        if self.failures is not None:
            with contextlib.suppress(OSError):
                (self.failures / f"{trial.address}.json").unlink(missing_ok=True)
        if last:
            self.board.end(trial, metrics, reused=trial.address in outcomes.reused)
        else:
            self.board.running.pop(trial.title, None)
            self.board.tick()

    def _fail(self, trial: Trial, result: Result, tail: str) -> None:
        """Records a failure. If the disk cannot be written, every trial would fail: that ends everything."""
        if result.kind == CannotWrite.__name__:
            raise CannotWrite(f"{result.error}; finished trials are kept")
        if self.failures is None:
            raise HeadwayError(f"{trial.title}: {result.error}; finished runs are kept, resume to continue")
        self.outcomes.found.pop(trial.address, None)
        self.outcomes.reused.discard(trial.address)
        self.outcomes.failed[trial.address] = result.error
        failure = {"trial": trial.address, "settings": trial.settings, "kind": result.kind, "error": result.error}
        attempts = self.outcomes.attempts.get(trial.address, 0) + (result.kind != "Died")
        path, log = self.failures / f"{trial.address}.json", "\n".join(filter(None, [tail, result.tail]))
        disk.write_json(path, {**failure, "attempts": attempts, "tail": log})
        self.board.end(trial, None, result.error)
        if self.fail_fast:
            raise HeadwayError(f"{trial.title} failed: {result.error}; its log is in {path}")


def train_trials(pieces: Sequence[Piece], engine: Engine, title: str, quiet: bool) -> list[RunReport]:
    """Trains the trials of these pieces and shows their joint progress; the first failure ends it."""
    board = Board(title, sum(map(len, pieces)), None, quiet=True)
    with Progress(title, quiet) as watch:
        try:
            Driver(engine, board, watch=watch).run(pieces)
        finally:
            engine.stop()
    return [report_of(trial.folder(engine.terms.out)) for piece in pieces for trial in piece.trials]
