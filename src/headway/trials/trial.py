"""The values that a driver and its workers exchange: trials, pieces of work, terms and results.

A trial is the config of a run and the path of its folder. Everything here is plain data without torch: it goes to a
process on this machine as JSON, and to a node of a cluster as it is.

On disk a finished trial is its run folder, with `trial.json` beside the weights. That record has the metrics of each
study and the hashes of the files it wrote; it is written last. A trial is done when every file matches its hash.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.runs.seal import read_sealed, seal
from headway.runs.shapes import fill

RECORD = "trial.json"
Value = int | float | str | bool | None  # of a setting or a metric
Metrics = dict[str, Value]


@dataclass(frozen=True)
class Study:
    """A study to run on each trial, with its options; workers import `function` (module:name) when first used."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    function: str = "headway.sweeps.studies:study_trial"


@dataclass(frozen=True)
class Trial:
    config: RunConfig
    settings: dict[str, Value] = field(default_factory=dict)  # the settings that distinguish it from other trials
    place: str = ""  # its folder, relative to the output folder

    @property
    def address(self) -> str:
        return self.config.address

    @property
    def title(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.settings.items()) or self.config.stem

    def folder(self, out: str | Path) -> RunFolder:
        return RunFolder(Path(out) / self.place)


@dataclass(frozen=True)
class Piece:
    """A unit of work for one worker: one trial, or on a GPU several of one shape as a population."""

    trials: tuple[Trial, ...]
    studies: tuple[Study, ...] = ()
    population: tuple[Trial, ...] = ()
    """all trials of the stack, including finished ones: rounding depends on the size of the stack"""
    home: str = ""  # the folder of the stack's checkpoint, relative to the output folder

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def steps(self) -> int:
        """The training steps of the piece; a population counts as one run."""
        counts = [trial.config.training.steps for trial in self.trials]
        return counts[0] if self.population else sum(counts)


@dataclass(frozen=True)
class Resources:
    """The resources that one trial may use."""

    threads: int = 1
    memory: int | None = None  # bytes; a trial that needs more fails
    gpus: float | None = None  # GPUs per worker (default: 1 if there is one)
    timeout: float | None = None  # seconds after which a trial is stopped
    retries: int = 1  # restarts of a trial whose process died
    population: int = 64  # most trials of one shape that a GPU trains as one
    precision: str = "auto"  # of training and tests on a GPU
    pip: tuple[str, ...] = ()  # packages that Ray installs for the trials


@dataclass(frozen=True)
class Terms:
    """How trials run: the same for all trials of a driver."""

    out: str  # the folder that holds all trial folders
    device: str = "cpu"
    resources: Resources = field(default_factory=Resources)
    shared: bool = False
    """whether other drivers may use the folder too: trial folders are locked, and set aside if damaged"""
    resume: bool = True
    may_diverge: bool = True  # whether a run whose loss is not finite ends without an error
    checkpoint_every: int | None = None
    data: str | None = None  # a data folder to train on
    tracker: str | None = None
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    """folders from which a worker imports the user's modules"""
    watched: bool = False  # whether workers report progress
    command: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv[1:]))
    """the command line, for the record of how a run was made"""

    @property
    def population_size(self) -> int | None:
        """The most trials of one shape that train as one stack; None if each trains separately."""
        return self.resources.population if self.device == "cuda" else None

    def seconds(self, piece: Piece) -> float | None:
        """Returns the timeout of a piece in seconds."""
        return None if self.resources.timeout is None else self.resources.timeout * len(piece)


@dataclass(frozen=True)
class Result:
    """The outcome of a trial."""

    address: str
    seconds: float
    metrics: Metrics | None = None  # None if it failed
    kind: str = ""
    error: str = ""
    tail: str = ""


def to_line(piece: Piece, terms: Terms) -> str:
    """Encodes a piece of work as one line of JSON."""
    return json.dumps([asdict(piece), asdict(terms)])


def from_line(line: str | bytes) -> tuple[Piece, Terms]:
    piece, terms = json.loads(line)
    for key in ("trials", "population"):
        piece[key] = tuple(Trial(**{**each, "config": RunConfig.from_json(each["config"])}) for each in piece[key])
    piece["studies"] = tuple(Study(**each) for each in piece["studies"])
    terms["resources"] = Resources(**{**terms["resources"], "pip": tuple(terms["resources"]["pip"])})
    return Piece(**piece), Terms(**{**terms, "path": tuple(terms["path"]), "command": tuple(terms["command"])})


@dataclass(frozen=True)
class StudyRecord:
    """The options of a study, its metrics, and the hashes of the files it wrote."""

    asked: dict[str, Any]
    metrics: Metrics
    files: dict[str, str]
    seconds: float

    def matches(self, study: Study, folder: RunFolder) -> bool:
        """Returns whether this record is of that study and its files are unchanged."""
        files = [(folder.path / Path(name).name, digest) for name, digest in self.files.items()]
        return self.asked == study.options and all(p.is_file() and disk.sha256(p) == digest for p, digest in files)


def read_record(folder: RunFolder, config: RunConfig) -> dict[str, StudyRecord]:
    """Reads the study records of a trial; empty if the file is missing, damaged or of another trial."""
    path = folder.path / RECORD
    try:
        content = read_sealed(path) if path.exists() else {}
        if (content["trial"], content["weights"]) != (config.digest, folder.training().weights_sha256):
            return {}
        entries = {name: fill(StudyRecord, entry) for name, entry in content["studies"].items()}
        return entries if all(isinstance(d, str) for each in entries.values() for d in each.files.values()) else {}
    except (HeadwayError, KeyError, AttributeError, TypeError):
        return {}


def write_record(folder: RunFolder, config: RunConfig, entries: dict[str, StudyRecord]) -> None:
    studies, weights = {name: asdict(entry) for name, entry in entries.items()}, folder.training().weights_sha256
    folder.record("trial", seal({"trial": config.digest, "weights": weights, "studies": studies}))


def training_metrics(folder: RunFolder) -> Metrics:
    ended = folder.training()
    return {key: getattr(ended, key) for key in ("steps", "final_loss", "perfect", "parameters")}


def metrics_of(folder: RunFolder, config: RunConfig, studies: Sequence[Study]) -> Metrics | None:
    """Returns the metrics of a finished trial after checking every file's hash; None if it is not finished."""
    if not folder.complete:
        return None
    try:
        if folder.verify() != config:
            return None
        found, entries = training_metrics(folder), read_record(folder, config) if studies else {}
        for study in studies:
            if study.name not in entries or not entries[study.name].matches(study, folder):
                return None
            found |= entries[study.name].metrics
        return found
    except HeadwayError:
        return None
