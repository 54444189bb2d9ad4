"""One trial from its config to its record, wherever it is carried out: in a process of this machine or on a cluster.

    OUT/runs/ADDRESS/            an ordinary run folder
    OUT/runs/ADDRESS/trial.json  what its studies found, with the hashes of their files; written last
    OUT/populations/             checkpoints of trials that a GPU trains as one
    OUT/broken/                  folders that were set aside because a file in them was not as it was left

A trial is done when every file is as its record says. Anything else is carried on from its checkpoint, or begun again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import resource
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from headway.errors import BrokenRun, CannotWrite, HeadwayError
from headway.machine import choose_device, choose_precision
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.runs.seal import is_sealed, sealed
from headway.subjects.own import open_run
from headway.sweeps.claims import alone
from headway.sweeps.file import Study
from headway.sweeps.studies import asked
from headway.training.checkpoint import remove_checkpoints
from headway.training.loop import train_run
from headway.training.population import Member, train_population

RECORD = "trial.json"
GRACE = 10.0
"""seconds after the time limit at which a process that does not answer is ended"""
WAIT = 60.0
"""seconds for a process that works in a folder and was given up, to be gone"""


NO_MEMORY = ("out of memory", "can't allocate memory", "failed to map segment", "Cannot allocate memory")
"""what is said where there is none left"""


class TooLong(HeadwayError):
    """A trial took longer than it may."""


@dataclass(frozen=True)
class Order:
    """What a worker is told; plain JSON on its way."""

    configs: list[dict[str, Any]]
    studies: list[dict[str, Any]]
    out: str
    population: list[dict[str, Any]] = field(default_factory=list)
    """all that train as one with these, where several do"""
    device: str = "cpu"
    precision: str = "auto"
    timeout: float | None = None
    memory: int | None = None
    home: str | None = None
    command: list[str] = field(default_factory=list)
    """what the person typed, for the record of how a run was made"""

    @property
    def runs(self) -> list[RunConfig]:
        return [RunConfig.from_json(config) for config in self.configs]

    @property
    def together(self) -> list[RunConfig]:
        return [RunConfig.from_json(config) for config in self.population or self.configs]


@dataclass(frozen=True)
class Result:
    """How a trial ended."""

    address: str
    seconds: float
    metrics: dict[str, Any] | None = None
    """None where it failed"""
    kind: str = ""
    error: str = ""
    tail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def home_of(out: Path, config: RunConfig) -> RunFolder:
    return RunFolder(out / "runs" / config.address)


def carry_out(order: Order) -> list[Result]:
    """Trains and studies the trials of an order. What goes wrong is an answer too; only a killed process gives none."""
    if order.home is not None and order.home not in sys.path:
        sys.path.insert(0, order.home)
    sys.argv[1:] = order.command or sys.argv[1:]
    began, out, runs = time.perf_counter(), Path(order.out), order.runs
    results: list[Result] = []
    try:
        with _limits(order), _held(out, runs):
            device = choose_device(order.device)
            _train(runs, order.together, out, device, order.precision)
            share = (time.perf_counter() - began) / len(runs)
            for config in runs:
                results.append(_studied(config, out, order, device, share))
    except BaseException as error:  # also what a task of the user's own may raise to end its process
        share = (time.perf_counter() - began) / len(runs)
        results += [_failed(config, error, share, out) for config in runs[len(results) :]]
    if order.device == "cuda":
        torch.cuda.empty_cache()  # others may share the GPU
    return results


def metrics_of(folder: RunFolder, config: RunConfig, studies: Sequence[Study]) -> dict[str, Any] | None:
    """What a trial that is done has found, every file held against its hash; None where it is not done."""
    if not folder.complete:
        return None
    try:
        if folder.verified() != config:
            return None
        found = _trained_metrics(folder)
        entries = _record(folder, config)
        for study in studies:
            if study.name not in entries or not _stands(folder, study, entries[study.name]):
                return None
            found |= entries[study.name]["metrics"]
        return found
    except HeadwayError:
        return None


def _train(
    runs: Sequence[RunConfig], together: Sequence[RunConfig], out: Path, device: torch.device, precision: str
) -> None:
    for config in runs:
        _mend(home_of(out, config), config, out)
    if len(together) == 1 and device.type == "cpu":
        folder = home_of(out, runs[0])
        begun = folder.path.exists()
        try:
            train_run(runs[0], folder.path, device=device, resume=True, may_diverge=True)
        except HeadwayError as error:
            if not begun or isinstance(error, CannotWrite | TooLong):
                raise
            set_aside(folder, out)
            train_run(runs[0], folder.path, device=device, resume=True, may_diverge=True)
        return
    members = [Member(config, home_of(out, config)) for config in together]
    name = hashlib.sha256("".join(config.digest for config in together).encode()).hexdigest()[:20]
    home, exactness = out / "populations" / name, choose_precision(precision, device)
    try:
        train_population(members, home, device=device, precision=exactness, resume=True)
    except BrokenRun:
        remove_checkpoints(home / "checkpoint")
        for member in members:
            _mend(member.folder, member.config, out, thoroughly=True)
        train_population(members, home, device=device, precision=exactness, resume=True)
    with contextlib.suppress(OSError):
        home.rmdir()


def _mend(folder: RunFolder, config: RunConfig, out: Path, thoroughly: bool = False) -> None:
    """Sets a folder aside that cannot be gone on with."""
    if not folder.path.exists():
        return
    try:
        if not folder.path.is_dir():
            raise BrokenRun(f"{folder.path} is no folder")
        folder.check(config, resume=True)
        if folder.complete and thoroughly:
            folder.verified()
    except HeadwayError:
        set_aside(folder, out)


def set_aside(folder: RunFolder, out: Path) -> None:
    """Out of the way, and not deleted: what broke it may be worth knowing."""
    (out / "broken").mkdir(exist_ok=True)
    os.rename(folder.path, out / "broken" / f"{folder.path.name}.{secrets.token_hex(4)}")


def _studied(config: RunConfig, out: Path, order: Order, device: torch.device, share: float) -> Result:
    began, folder = time.perf_counter(), home_of(out, config)
    try:
        wanted = [Study(each["name"], each["options"]) for each in order.studies]
        metrics = _trained_metrics(folder)
        entries = _record(folder, config)
        for study in wanted:
            if study.name not in entries or not _stands(folder, study, entries[study.name]):
                entries[study.name] = _made(study, folder, device, order.precision)
                _write_record(folder, config, entries)
            metrics |= entries[study.name]["metrics"]
        return Result(config.address, share + time.perf_counter() - began, metrics)
    except TooLong:
        raise
    except Exception as error:
        return _failed(config, error, share + time.perf_counter() - began, out)


def _made(study: Study, folder: RunFolder, device: torch.device, precision: str) -> dict[str, Any]:
    """An entry of the record: what a study found, and the files it wrote."""
    before = _stamps(folder)
    run = open_run(folder, device)
    began = time.perf_counter()
    metrics = asked(study).of(run, device, precision)
    written = [name for name, stamp in _stamps(folder).items() if before.get(name) != stamp]
    return {
        "asked": study.options,
        "metrics": metrics,
        "files": {name: disk.sha256(folder.path / name) for name in written},
        "seconds": time.perf_counter() - began,
    }


def _stamps(folder: RunFolder) -> dict[str, tuple[int, int]]:
    with os.scandir(folder.path) as entries:
        found = {entry.name: entry.stat() for entry in entries if entry.is_file() and entry.name != RECORD}
    return {name: (stamp.st_ino, stamp.st_mtime_ns) for name, stamp in found.items() if not name.startswith(".")}


def _stands(folder: RunFolder, study: Study, entry: dict[str, Any]) -> bool:
    return entry["asked"] == study.options and all(
        (folder.path / Path(name).name).is_file() and disk.sha256(folder.path / Path(name).name) == digest
        for name, digest in entry["files"].items()
    )


def _record(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    """What the trial's studies found so far; nothing where the record is missing, broken or another's."""
    path = folder.path / RECORD
    if not path.exists():
        return {}
    try:
        content = disk.read_json(path)
        if not is_sealed(content) or content["trial"] != config.digest:
            return {}
        entries = content["studies"] if content["weights"] == folder.training().weights_sha256 else {}
        return entries if all(map(_is_entry, entries.values())) else {}
    except (HeadwayError, KeyError, AttributeError):
        return {}


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(
        isinstance(entry.get(key), dict) for key in ("asked", "metrics", "files")
    ):
        return False
    return all(isinstance(digest, str) for digest in entry["files"].values())


def _write_record(folder: RunFolder, config: RunConfig, entries: dict[str, Any]) -> None:
    content = {"trial": config.digest, "weights": folder.training().weights_sha256, "studies": entries}
    folder.record("trial", sealed(content))


def _trained_metrics(folder: RunFolder) -> dict[str, Any]:
    ended = folder.training()
    return {
        "steps": ended.steps,
        "final_loss": ended.final_loss,
        "perfect": ended.perfect,
        "parameters": ended.parameters,
    }


def _failed(config: RunConfig, error: BaseException, seconds: float, out: Path) -> Result:
    if isinstance(error, OSError) and error.filename and Path(str(error.filename)).is_relative_to(out):
        error = disk.explained(error, Path(str(error.filename)))
    said = str(error) if isinstance(error, HeadwayError) else f"{type(error).__name__}: {error}"
    kind = type(error).__name__
    if isinstance(error, MemoryError) or any(words in said for words in NO_MEMORY):
        kind, said = "OutOfMemory", f"the trial wanted more memory than it may take ({said.splitlines()[0][:200]})"
    return Result(config.address, seconds, None, kind, " ".join(said.split()), traceback.format_exc())


@contextlib.contextmanager
def _held(out: Path, runs: Sequence[RunConfig]) -> Iterator[None]:
    """Nobody else works in these folders: not even a process that was given up and is not yet gone."""
    (out / "claims").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for path in [out / "claims" / f"{config.address}.lock" for config in sorted(runs, key=lambda c: c.address)]:
            stack.enter_context(alone(path, WAIT))
            stack.callback(path.unlink, missing_ok=True)
        yield


@contextlib.contextmanager
def _limits(order: Order) -> Iterator[None]:
    """Memory by the system's own limit; time by a signal, and where that is not answered by the process's end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    in_main = threading.current_thread() is threading.main_thread()
    seconds = None if order.timeout is None else order.timeout * len(order.configs)
    before: Any = None
    if order.memory is not None and order.device == "cpu":
        most = order.memory if hard == resource.RLIM_INFINITY else min(order.memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    if seconds is not None:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True)
        if in_main:

            def ring(number: int, frame: FrameType | None) -> None:
                raise TooLong(f"it took longer than the {seconds:g} seconds it may; raise timeout under [resources]")

            before = signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, seconds, GRACE / 4)  # again, where somebody caught it
    try:
        yield
    finally:
        if seconds is not None:
            faulthandler.cancel_dump_traceback_later()
            if in_main:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
