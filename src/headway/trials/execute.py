"""Runs a piece of work in any process: trains its trials, then studies them.

    OUT/PLACE/            an ordinary run folder; with studies, trial.json has their results
    OUT/populations/      checkpoints of trials that a GPU trains as one
    OUT/broken/           folders that were set aside because a file in them was damaged

Unfinished trials resume from their checkpoint, or start again.
"""

import contextlib
import faulthandler
import importlib
import os
import resource
import secrets
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

from headway.errors import CannotWrite, HeadwayError
from headway.machine import choose_device, choose_precision
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.subjects.own import open_run
from headway.tasks import create_task
from headway.training.batches import read_data
from headway.training.loop import Watch, train_run
from headway.training.population import Member, train_population
from headway.training.tracking import find_tracker
from headway.trials.claims import hold_lock
from headway.trials.trial import (
    RECORD,
    Piece,
    Result,
    StudyRecord,
    Terms,
    Trial,
    metrics_of,
    read_record,
    training_metrics,
    write_record,
)

GRACE = 10.0  # seconds after the timeout at which a process that does not respond is ended
WAIT = 60.0  # seconds to wait for another process to leave a folder
NO_MEMORY = ("out of memory", "can't allocate memory", "failed to map segment", "Cannot allocate memory")
"""messages of errors that mean out of memory"""


class TooLong(HeadwayError):
    """A trial exceeded its timeout."""


def run_piece(piece: Piece, terms: Terms, watch: Watch | None = None) -> list[Result]:
    """Runs a piece and returns its results; an error is a result too. Only a killed process returns none."""
    sys.path[:0] = [place for place in terms.path if place not in sys.path]
    sys.argv[1:] = terms.command or sys.argv[1:]
    began, results = time.perf_counter(), list[Result]()
    try:
        run_piece_or_raise(piece, terms, results, watch)
    except BaseException as error:  # a user's task may even raise SystemExit
        share = (time.perf_counter() - began) / len(piece)
        results += [_failure(trial, error, share, terms) for trial in piece.trials[len(results) :]]
    if terms.device == "cuda":
        torch.cuda.empty_cache()  # others may share the GPU
    return results


def run_piece_or_raise(piece: Piece, terms: Terms, results: list[Result], watch: Watch | None = None) -> None:
    """Trains the trials of a piece, then studies them one after another; raises errors of training."""
    for study in piece.studies:  # before the timeout starts: importing may take longer than a trial
        importlib.import_module(study.function.partition(":")[0])
    began = time.perf_counter()
    with _limits(terms, terms.seconds(piece)), contextlib.ExitStack() as locks:
        for address in sorted(trial.address for trial in piece.trials if terms.shared):
            # no other process may work in these folders, not even an abandoned one that is still running
            path = Path(terms.out) / "claims" / f"{address}.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            locks.enter_context(hold_lock(path, WAIT))
            locks.callback(path.unlink, missing_ok=True)
        device, checkpoints = choose_device(terms.device), Path(terms.out) / piece.home / "checkpoint"
        begun = [t for t in piece.population or piece.trials if os.path.lexists(t.folder(terms.out).path)]
        try:
            _train(piece, terms, device, watch)
        except HeadwayError as error:
            left = begun or (piece.population and checkpoints.exists())
            if not terms.shared or not left or isinstance(error, CannotWrite | TooLong):
                raise
            if piece.population:
                shutil.rmtree(checkpoints, ignore_errors=True)
            for trial in begun:  # the files in these folders may be what prevents training
                if metrics_of(trial.folder(terms.out), trial.config, ()) is None:
                    set_aside(trial.folder(terms.out), terms.out)
            _train(piece, terms, device, watch)
        share = (time.perf_counter() - began) / len(piece)
        for trial in piece.trials:
            results.append(_study_trial(trial, piece, terms, device, share))


def _train(piece: Piece, terms: Terms, device: torch.device, watch: Watch | None) -> None:
    """Trains the trials as one stack or one by one; finished trials are not trained again."""
    config, home, every = piece.trials[0].config, Path(terms.out) / piece.home, terms.checkpoint_every
    stored = None if terms.data is None else read_data(create_task(config.task, config.options), terms.data).stored
    if not piece.population:
        tracker = find_tracker(terms.tracker)
        for trial in piece.trials:
            train_run(
                trial.config, trial.folder(terms.out).path, device=device, resume=terms.resume, stored=stored,
                checkpoint_every=every, watch=watch, tracker=tracker, may_diverge=terms.may_diverge,
            )  # fmt: skip
        return
    precision = choose_precision(terms.resources.precision, device)
    members = [Member(trial.config, trial.folder(terms.out)) for trial in piece.population]
    train_population(
        members, home, device=device, precision=precision, resume=terms.resume, checkpoint_every=every, stored=stored,
        watch=watch,
    )  # fmt: skip
    with contextlib.suppress(OSError):
        home.rmdir()


def set_aside(folder: RunFolder, out: str | Path) -> None:
    """Moves a damaged folder to `broken` instead of deleting it: its files may show what went wrong."""
    broken = Path(out) / "broken"
    broken.mkdir(exist_ok=True)
    os.rename(folder.path, broken / f"{folder.path.name}.{secrets.token_hex(4)}")


def _study_trial(trial: Trial, piece: Piece, terms: Terms, device: torch.device, share: float) -> Result:
    began, folder = time.perf_counter(), trial.folder(terms.out)
    try:
        metrics, entries = training_metrics(folder), read_record(folder, trial.config) if piece.studies else {}
        for study in piece.studies:
            if study.name not in entries or not entries[study.name].matches(study, folder):
                module, _, name = study.function.partition(":")
                before, run, since = _stamps(folder), open_run(folder, device), time.perf_counter()
                make = getattr(importlib.import_module(module), name)
                found = make(study, run, device, terms.resources.precision)
                written = [name for name, stamp in _stamps(folder).items() if before.get(name) != stamp]
                hashes = {name: disk.sha256(folder.path / name) for name in written}
                entries[study.name] = StudyRecord(study.options, found, hashes, time.perf_counter() - since)
                write_record(folder, trial.config, entries)
            metrics |= entries[study.name].metrics
        return Result(trial.address, share + time.perf_counter() - began, metrics)
    except TooLong:
        raise
    except Exception as error:
        return _failure(trial, error, share + time.perf_counter() - began, terms)


def _stamps(folder: RunFolder) -> dict[str, tuple[int, int]]:
    """Returns the inode and modification time of each file in a folder, which change when it is replaced."""
    found = {path.name: path.stat() for path in folder.path.glob("[!.]*") if path.is_file() and path.name != RECORD}
    return {name: (stamp.st_ino, stamp.st_mtime_ns) for name, stamp in found.items()}


def _failure(trial: Trial, error: BaseException, seconds: float, terms: Terms) -> Result:
    if isinstance(error, OSError) and error.filename and Path(str(error.filename)).is_relative_to(terms.out):
        error = disk.explain_os_error(error, Path(str(error.filename)))
    kind = type(error).__name__
    message = str(error) if isinstance(error, HeadwayError) else f"{kind}: {error}"
    if isinstance(error, MemoryError) or any(words in message for words in NO_MEMORY):
        kind, message = "OutOfMemory", f"the trial exceeded its memory limit ({message.splitlines()[0][:200]})"
    return Result(trial.address, seconds, None, kind, " ".join(message.split()), traceback.format_exc())


@contextlib.contextmanager
def _limits(terms: Terms, seconds: float | None) -> Iterator[None]:
    """Limits memory by setrlimit, and time by a signal; a process that ignores the signal is ended."""
    (soft, hard), memory = resource.getrlimit(resource.RLIMIT_DATA), terms.resources.memory

    def raise_timeout(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"it exceeded its timeout of {seconds:g} seconds; raise timeout under [resources]")

    with contextlib.ExitStack() as undo:
        undo.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))
        if memory is not None and terms.device == "cpu":
            most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        if seconds is not None:
            faulthandler.dump_traceback_later(seconds + GRACE, exit=True)
            undo.callback(faulthandler.cancel_dump_traceback_later)
        if seconds is not None and threading.current_thread() is threading.main_thread():
            undo.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, raise_timeout))
            undo.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, seconds, GRACE / 4)  # repeats in case the first was caught
        yield
