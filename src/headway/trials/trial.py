"""The values that a driver and whoever carries out its work exchange: trials, pieces of work, terms and results.

A trial is the config of a run and the place of its folder. Everything here is plain data without torch: it travels as
JSON to a process of this machine, or as it is to a node of a cluster.

On disk a trial that was carried out is its run folder, with `trial.json` beside the weights. That record says what each
study found, with the hashes of the files it wrote; it is written last. A trial is done when every file is as it says.
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
Value = int | float | str | bool | None  # of a setting, or of a metric
Metrics = dict[str, Value]


@dataclass(frozen=True)
class Study:
    """A study of each trial, with its options. `function` (module:name) makes it; workers import it when first used."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    function: str = "headway.sweeps.studies:study_trial"


@dataclass(frozen=True)
class Trial:
    config: RunConfig
    settings: dict[str, Value] = field(default_factory=dict)  # what distinguishes it from the others
    place: str = ""  # its folder, inside the folder of all

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
    """What one worker does at a time: one trial, or on a GPU several of one shape as a population."""

    trials: tuple[Trial, ...]
    studies: tuple[Study, ...] = ()
    population: tuple[Trial, ...] = ()
    """all that train as one stack, including those that are done: how a sum is rounded depends on how many there are"""
    home: str = ""  # the folder of the stack's checkpoint, inside the folder of all

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def steps(self) -> int:
        """How many it trains: as many as one of them, where several train as one."""
        counts = [trial.config.training.steps for trial in self.trials]
        return counts[0] if self.population else sum(counts)


@dataclass(frozen=True)
class Resources:
    """What one trial may take."""

    threads: int = 1
    memory: int | None = None  # bytes; a trial that wants more fails
    gpus: float | None = None  # share of a GPU for a worker (default: a whole one where there is one)
    timeout: float | None = None  # seconds after which a trial is stopped
    retries: int = 1  # how often a trial is started again whose process died
    population: int = 64  # trials of one shape that a GPU trains as one, at most
    precision: str = "auto"  # in which a GPU trains and tests
    pip: tuple[str, ...] = ()  # packages that Ray installs for the trials


@dataclass(frozen=True)
class Terms:
    """How trials are carried out: the same for all that a driver is given."""

    out: str  # the folder that holds the folders of all
    device: str = "cpu"
    resources: Resources = field(default_factory=Resources)
    shared: bool = False
    """whether other drivers may work here too: folders are locked, and set aside where they are broken"""
    resume: bool = True
    may_diverge: bool = True  # whether a run whose loss is no number ends as it is, and not with an error
    checkpoint_every: int | None = None
    data: str | None = None  # a data folder to train on
    tracker: str | None = None
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    """folders in which a worker looks for the user's modules"""
    watched: bool = False  # whether workers say how far a trial has come
    command: tuple[str, ...] = field(default_factory=lambda: tuple(sys.argv[1:]))
    """what the person typed, for the record of how a run was made"""

    @property
    def together(self) -> int | None:
        """How many trials of one shape train as one; None where each trains by itself."""
        return self.resources.population if self.device == "cuda" else None

    def seconds(self, piece: Piece) -> float | None:
        """How long a piece may take."""
        return None if self.resources.timeout is None else self.resources.timeout * len(piece)


@dataclass(frozen=True)
class Result:
    """How a trial ended."""

    address: str
    seconds: float
    metrics: Metrics | None = None  # None where it failed
    kind: str = ""
    error: str = ""
    tail: str = ""


def to_line(piece: Piece, terms: Terms) -> str:
    """A piece of work as one line of JSON."""
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
    """What a study was asked, what it found, and the hashes of the files it wrote."""

    asked: dict[str, Any]
    metrics: Metrics
    files: dict[str, str]
    seconds: float

    def answers(self, study: Study, folder: RunFolder) -> bool:
        """Whether this is the answer to that study, and its files are as they were written."""
        files = [(folder.path / Path(name).name, digest) for name, digest in self.files.items()]
        return self.asked == study.options and all(p.is_file() and disk.sha256(p) == digest for p, digest in files)


def read_record(folder: RunFolder, config: RunConfig) -> dict[str, StudyRecord]:
    """What the trial's studies found so far; nothing where the record is missing, broken or another's."""
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
    """What a trial that is done has found, every file held against its hash; None where it is not done."""
    if not folder.complete:
        return None
    try:
        if folder.verify() != config:
            return None
        found, entries = training_metrics(folder), read_record(folder, config) if studies else {}
        for study in studies:
            if study.name not in entries or not entries[study.name].answers(study, folder):
                return None
            found |= entries[study.name].metrics
        return found
    except HeadwayError:
        return None
