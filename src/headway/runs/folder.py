"""A run on disk: one folder of plain files, the only store there is.

    config.json        what the run is; written first
    environment.json   where and with which versions it was made
    log.jsonl          a line every few steps
    checkpoint/        the state to resume from, while training goes on
    model.safetensors  the weights
    training.json      how training ended, with the hashes of what it wrote; written last
    evaluation.json    what studies found, one file each

A folder with a training.json is complete; its files are checked against the hashes whenever it is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.errors import BrokenRun, HeadwayError
from headway.runs import disk
from headway.runs.config import RunConfig, filled, fits


@dataclass(frozen=True)
class Training:
    """How training ended."""

    steps: int
    seconds: float
    """time spent in training steps, checks and checkpoints not counted; of a population, this member's share"""
    parameters: int
    final_loss: float | None
    """of the last logged step; None where it was no number"""
    perfect: bool | None
    """whether every trainable problem was right; None where nobody asked"""
    config_sha256: str
    weights_sha256: str
    log_sha256: str

    @property
    def digest(self) -> str:
        """Seals this record itself."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


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
    def complete(self) -> bool:
        return (self.path / "training.json").exists()

    @staticmethod
    def is_run(path: Path) -> bool:
        return (path / "config.json").is_file()

    def begin(self, config: RunConfig, environment: dict[str, Any], resume: bool) -> None:
        """Makes the folder this config's own; refuses one that holds anything else."""
        self.check(config, resume)
        if not self.is_run(self.path):
            disk.write_json(self.path / "config.json", config.to_json())
        if not (self.path / "environment.json").exists():
            disk.write_json(self.path / "environment.json", environment)
        for left_over in self.path.rglob(".*.part"):  # of a write that a kill cut short
            left_over.unlink(missing_ok=True)
        self.changed()

    def check(self, config: RunConfig, resume: bool) -> None:
        """Refuses where this config may not be trained in this folder; changes nothing."""
        if not self.is_run(self.path):
            if self.path.is_dir() and any(not p.name.endswith(".part") for p in self.path.iterdir()):
                raise HeadwayError(f"{self.path} holds other files and no run; choose another --out")
            return
        there = self.config()
        if there != config:
            raise HeadwayError(
                f"{self.path} holds another run, {there.name} ({difference(there, config)}); choose another --out"
            )
        if not self.complete and not resume:
            raise HeadwayError(f"{self.path} holds this run unfinished; add --resume to go on, or choose another --out")

    def config(self) -> RunConfig:
        path = self.path / "config.json"
        try:
            return RunConfig.from_json(disk.read_json(path))
        except BrokenRun:
            raise
        except HeadwayError as error:
            raise BrokenRun(f"{path} is {error}; restore it or train again elsewhere") from error

    def training(self) -> Training:
        path = self.path / "training.json"
        if not path.exists():
            raise HeadwayError(
                f"{self.path} holds an unfinished run; go on with: headway train … --out {self.path} --resume"
            )
        try:
            record = disk.read_json(path)
            seal = record.pop("sha256")
            training = filled(Training, record)
            if training.digest != seal:
                raise BrokenRun(f"{path} was altered after training; restore it or train again elsewhere")
            return training
        except (TypeError, KeyError, AttributeError) as error:
            raise BrokenRun(
                f"{path} does not say how training ended ({error}); restore it or train again elsewhere"
            ) from error

    def verified(self) -> RunConfig:
        """The config, after every file of the finished run was held against its hash."""
        training = self.training()
        hashes = {
            self.path / "config.json": training.config_sha256,
            self.weights: training.weights_sha256,
            self.log: training.log_sha256,
        }
        for path, expected in hashes.items():
            if disk.sha256(path) != expected:
                raise BrokenRun(
                    f"{path} is truncated or altered: its hash is not the recorded one; restore it or train elsewhere"
                )
        return self.config()

    def finish(self, weights: bytes, **ended: Any) -> Training:
        """Writes the weights, then the record that makes the run complete."""
        disk.write_bytes(self.weights, weights)
        training = Training(
            **ended,
            config_sha256=disk.sha256(self.path / "config.json"),
            weights_sha256=disk.sha256(self.weights),
            log_sha256=disk.sha256(self.log),
        )
        disk.write_json(self.path / "training.json", {**asdict(training), "sha256": training.digest})
        self.changed()
        return training

    def record(self, study: str, content: Any) -> Path:
        """Keeps the result of a study beside the weights."""
        path = self.path / f"{study}.json"
        disk.write_json(path, content)
        self.changed()
        return path

    def changed(self) -> None:
        """Tells the folder above that a file in here was replaced: the index of runs looks only there. Where that lies
        in another run, the folder above that one is told too. What lies in no run folder is nobody's business."""
        if not self.is_run(self.path):
            return
        for home in {Path(os.path.abspath(self.path)), Path(os.path.realpath(self.path))}:
            for run in (home, *(above for above in home.parents if self.is_run(above))):
                now = time.time_ns()
                with contextlib.suppress(OSError):  # a folder of somebody else's: 'headway list runs --rebuild' sees it
                    os.utime(run.parent, ns=(now, now))

    def log_lines(self) -> list[dict[str, Any]]:
        return self._entries(disk.read_bytes(self.log).decode(errors="replace").splitlines()) if self._logged else []

    @property
    def _logged(self) -> bool:
        return os.path.lexists(self.log)

    def _entries(self, lines: list[str]) -> list[dict[str, Any]]:
        """What lines of the log say, each of which must be an entry."""
        try:
            entries = [json.loads(line) for line in lines]
            for entry in entries:
                if not fits(entry["step"], int) or not (entry["loss"] is None or fits(entry["loss"], float)):
                    raise TypeError(f"step {entry['step']!r}, loss {entry['loss']!r}")
            return entries
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BrokenRun(
                f"{self.log} has a line that is no entry of a log ({error}); restore it or train again elsewhere"
            ) from error

    def rewind_log(self, step: int) -> None:
        """Drops what was logged after `step`, and a last line that a kill cut short."""
        text = disk.read_bytes(self.log).decode(errors="replace") if self._logged else ""
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        kept = [line for line, entry in zip(lines, self._entries(lines), strict=True) if entry["step"] <= step]
        disk.write_bytes(self.log, "".join(kept).encode())


def difference(one: RunConfig, other: RunConfig) -> str:
    """The first entry in which two configs differ, in words."""

    def flat(raw: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        entries = {}
        for key, value in raw.items():
            entries |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        return entries

    left, right = flat(one.to_json()), flat(other.to_json())
    for key in {**left, **right}:
        if left.get(key) != right.get(key):
            return f"{key} {left.get(key)!r}, asked for {right.get(key)!r}"
    return "the same"


def runs_in(path: Path) -> list[RunFolder]:
    """The run at `path`, or the runs in the folders directly under it."""
    if RunFolder.is_run(path):
        return [RunFolder(path)]
    if not path.is_dir():
        raise HeadwayError(f"there is no folder {path}; name a run folder, a folder of runs or pretrained:adder")
    found = [RunFolder(p) for p in sorted(path.iterdir(), key=_by_number) if RunFolder.is_run(p)]
    if not found:
        raise HeadwayError(f"{path} is no run folder and holds none; 'headway train' makes one")
    return found


def _by_number(path: Path) -> tuple[str, int]:
    """seed-2 before seed-10."""
    name, _, number = path.name.rpartition("-")
    return (name, int(number)) if number.isdecimal() else (path.name, 0)
