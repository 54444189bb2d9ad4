"""A run on disk: one folder of plain files, the only store there is.

    config.json        what the run is; written first
    environment.json   the machine and the versions it was made with
    log.jsonl          a line every few steps
    checkpoint/        the state to resume from, during training
    model.safetensors  the weights
    training.json      how training ended, with the hashes of what it wrote; written last
    evaluation.json    and others: the results of studies, one file each

A folder with a training.json is complete; its files are checked against the hashes whenever it is opened.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from headway.errors import BrokenRun, HeadwayError
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.disk import AGAIN
from headway.runs.seal import is_sealed, seal, strip_seal
from headway.runs.shapes import fill, find_fault

ENTRIES = ("task", "model", "training")  # of a run's config.json; a Hugging Face model's has none of them


class LogEntry(TypedDict):
    """A line of log.jsonl."""

    step: int
    loss: float | None  # None where it was not a number
    exact_match: NotRequired[float]
    validation_loss: NotRequired[float | None]  # on held-out problems, every 100 steps and at the end
    validation_exact_match: NotRequired[float]
    seconds: NotRequired[float]
    examples_per_second: NotRequired[float]


@dataclass(frozen=True)
class Training:
    """The outcome of training."""

    steps: int
    seconds: float
    """time spent in training steps, without checks and checkpoints; in a population, this member's share"""
    parameters: int
    final_loss: float | None  # of the last logged step; None where it was not a number
    perfect: bool | None  # whether every trainable problem was right; None where it was not checked
    config_sha256: str
    weights_sha256: str
    log_sha256: str


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    @property
    def _hashed(self) -> tuple[Path, ...]:
        return self.path / "config.json", self.weights, self.log

    @property
    def complete(self) -> bool:
        return (self.path / "training.json").exists()

    @staticmethod
    def is_run(path: Path) -> bool:
        """Tells whether a folder holds a run, even a broken or barely begun one. A Hugging Face model has a config.json
        too: without other files, it is a run's if it has a run's entries or cannot be read."""
        config = path / "config.json"
        if not config.is_file():
            return False
        if (path / "environment.json").exists() or (path / "training.json").exists():
            return True
        try:
            content = disk.read_json(config)
        except HeadwayError:
            return True
        return not isinstance(content, dict) or not content or not content.keys().isdisjoint(ENTRIES)

    def begin(self, config: RunConfig, environment: dict[str, Any], resume: bool) -> None:
        """Prepares the folder for this config; refuses one that holds anything else."""
        self.check(config, resume)
        if not self.is_run(self.path):
            disk.write_json(self.path / "config.json", config.to_json())
        if not (self.path / "environment.json").exists():
            disk.write_json(self.path / "environment.json", environment)
        for left_over in self.path.rglob(".*.part"):  # left by a write that was killed
            left_over.unlink(missing_ok=True)
        self.mark_changed()

    def check(self, config: RunConfig, resume: bool) -> None:
        """Raises an error if this config may not be trained in this folder; changes nothing."""
        if not self.is_run(self.path):
            if self.path.is_dir() and any(not p.name.endswith(".part") for p in self.path.iterdir()):
                raise HeadwayError(f"{self.path} holds other files and no run; choose another folder")
            return
        if (there := self.config()) != config:
            other = f"{there.name} ({difference(there, config)})"
            raise HeadwayError(f"{self.path} holds another run, {other}; choose another folder")
        if not self.complete and not resume:
            raise HeadwayError(f"{self.path} holds this run unfinished; use `resume`, or choose another folder")

    def config(self) -> RunConfig:
        path = self.path / "config.json"
        content = disk.read_json(path)
        try:
            return RunConfig.from_json(content)
        except HeadwayError as error:
            raise BrokenRun(f"{path} is {error}; {AGAIN}") from error

    def training(self) -> Training:
        path = self.path / "training.json"
        if not path.exists():
            command = f"headway train … --out {self.path} --resume"
            raise HeadwayError(f"{self.path} holds an unfinished run; continue it with: {command}")
        record = disk.read_json(path)
        try:
            training = fill(Training, strip_seal(record))
        except (TypeError, AttributeError) as error:
            raise BrokenRun(f"{path} does not say how training ended ({error}); {AGAIN}") from error
        if not is_sealed(record):
            raise BrokenRun(f"{path} was altered after training; {AGAIN}")
        return training

    def verify(self) -> RunConfig:
        """Checks every file of the finished run against its hash, and returns the config."""
        training = self.training()
        expected = (training.config_sha256, training.weights_sha256, training.log_sha256)
        for path, recorded in zip(self._hashed, expected, strict=True):
            if disk.sha256(path) != recorded:
                raise BrokenRun(f"{path} is truncated or altered: its hash is not the recorded one; {AGAIN}")
        return self.config()

    def finish(
        self, model: bytes, steps: int, seconds: float, parameters: int, final_loss: float | None, perfect: bool | None
    ) -> None:
        """Writes the weights, then the record that makes the run complete."""
        disk.write_bytes(self.weights, model)
        training = Training(steps, seconds, parameters, final_loss, perfect, *map(disk.sha256, self._hashed))
        self.record("training", seal(asdict(training)))

    def record(self, study: str, content: Any) -> Path:
        """Writes the result of a study beside the weights."""
        path = self.path / f"{study}.json"
        disk.write_json(path, content)
        self.mark_changed()
        return path

    def mark_changed(self) -> None:
        """Updates the time stamp of the parent folder, the only one that the index of runs looks at. If that lies in
        another run, the parent of that run is updated too. Nothing is done outside a run folder."""
        if not self.is_run(self.path):
            return
        for home in {Path(os.path.abspath(self.path)), Path(os.path.realpath(self.path))}:
            for run in (home, *(above for above in home.parents if self.is_run(above))):
                now = time.time_ns()
                with contextlib.suppress(OSError):  # no permission: 'headway list runs --rebuild' still sees it
                    os.utime(run.parent, ns=(now, now))

    def log_lines(self) -> list[LogEntry]:
        return self._entries(self._read_log())

    def _read_log(self) -> list[str]:
        text = disk.read_bytes(self.log).decode(errors="replace") if os.path.lexists(self.log) else ""
        return text.splitlines(keepends=True)

    def _entries(self, lines: list[str]) -> list[LogEntry]:
        try:
            entries = [json.loads(line) for line in lines]
            fault = next((fault for entry in entries if (fault := find_fault(entry, LogEntry, "entry"))), None)
        except (ValueError, RecursionError) as error:
            entries, fault = [], str(error)
        if fault:
            raise BrokenRun(f"{self.log} has a line that is not an entry of a log ({fault}); {AGAIN}")
        return entries

    def rewind_log(self, step: int) -> None:
        """Drops what was logged after `step`, and a last line that was cut off by a kill."""
        lines = self._read_log()
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        kept = [line for line, entry in zip(lines, self._entries(lines), strict=True) if entry["step"] <= step]
        disk.write_bytes(self.log, "".join(kept).encode())


def difference(one: RunConfig, other: RunConfig) -> str:
    """Describes the first entry in which two configs differ."""

    def flat(raw: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in raw.items():
            yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]

    left, right = dict(flat(one.to_json())), dict(flat(other.to_json()))
    differing = (key for key in {**left, **right} if left.get(key) != right.get(key))
    return next((f"{key} {left.get(key)!r}, asked for {right.get(key)!r}" for key in differing), "the same")


def runs_in(path: Path) -> list[RunFolder]:
    """Finds the run at `path`, or the runs in the folders directly under it."""
    if RunFolder.is_run(path):
        return [RunFolder(path)]
    if not path.is_dir():
        raise HeadwayError(f"there is no folder {path}; name a run folder, a folder of runs or pretrained:adder")
    found = [RunFolder(p) for p in sorted(path.iterdir(), key=_by_number) if RunFolder.is_run(p)]
    if not found:
        raise HeadwayError(f"{path} is not a run folder and holds none; 'headway train' makes one")
    return found


def _by_number(path: Path) -> tuple[str, int]:
    """A sort key that puts seed-2 before seed-10."""
    name, _, number = path.name.rpartition("-")
    return (name, int(number)) if number.isdecimal() else (path.name, 0)
