"""What is on disk of a trial that was carried out: its run folder, and `trial.json` beside the weights.

The record says what each study found, with the hashes of the files it wrote; it is written last. A trial is done when
every file is as its record says.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.runs.seal import read_sealed, sealed
from headway.runs.shapes import fill
from headway.trials.trial import Study, Value

RECORD = "trial.json"
Metrics = dict[str, Value]


@dataclass(frozen=True)
class StudyRecord:
    """What a study was asked, what it found, and the hashes of the files it wrote."""

    asked: dict[str, Any]
    metrics: Metrics
    files: dict[str, str]
    seconds: float

    def answers(self, study: Study, folder: RunFolder) -> bool:
        """Whether this is the answer to that study, and its files are as they were written."""
        paths = {folder.path / Path(name).name: digest for name, digest in self.files.items()}
        return self.asked == study.options and all(
            path.is_file() and disk.sha256(path) == digest for path, digest in paths.items()
        )


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
    studies = {name: asdict(entry) for name, entry in entries.items()}
    content = {"trial": config.digest, "weights": folder.training().weights_sha256, "studies": studies}
    folder.record("trial", sealed(content))


def training_metrics(folder: RunFolder) -> Metrics:
    ended = folder.training()
    return {key: getattr(ended, key) for key in ("steps", "final_loss", "perfect", "parameters")}


def metrics_of(folder: RunFolder, config: RunConfig, studies: Sequence[Study]) -> Metrics | None:
    """What a trial that is done has found, every file held against its hash; None where it is not done."""
    if not folder.complete:
        return None
    try:
        if folder.verified() != config:
            return None
        found, entries = training_metrics(folder), read_record(folder, config) if studies else {}
        for study in studies:
            if study.name not in entries or not entries[study.name].answers(study, folder):
                return None
            found |= entries[study.name].metrics
        return found
    except HeadwayError:
        return None
