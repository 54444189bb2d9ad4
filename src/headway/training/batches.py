"""The training batches of each step, drawn on the device or read from a file."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from headway.runs import disk
from headway.runs.config import TrainingConfig
from headway.tasks import Problems, Task
from headway.tasks.data import Stored, drop_held_out, read_split
from headway.tasks.random import TRAINING, Dice

DRAWN_AHEAD = {"cpu": 16, "cuda": 64}  # steps at most: a GPU draws many rows in the time of a few
MOST_ROWS = 4_000_000


@dataclass(frozen=True)
class TrainingData:
    """The problems of a data folder that may be trained on."""

    stored: Stored
    left_out: int  # problems dropped because they are held out
    sha256: str


def read_data(task: Task, folder: str | Path) -> TrainingData:
    """Reads the problems of `folder`/train.json; caches the last file for the next run."""
    path = Path(folder) / "train.json"
    return _read(task, Path(folder), disk.sha256(path) if path.is_file() else "")


@lru_cache(maxsize=1)
def _read(task: Task, folder: Path, sha256: str) -> TrainingData:
    stored, left_out = drop_held_out(task, read_split(task, folder, "train"))
    return TrainingData(stored, left_out, sha256)


def draw_batches(
    task: Task, training: TrainingConfig, seeds: Sequence[int], stored: Stored | None, first: int, device: torch.device
) -> Iterator[Problems]:
    """Yields the batches from step `first` on, drawn several steps at a time, grouped by length.

    Each batch holds the rows of every seed, seed after seed.
    """
    batch, hard = training.batch, round(training.hard * training.batch)
    rows, owner = len(seeds) * batch, torch.tensor(seeds, device=device)
    most = max(1, min(DRAWN_AHEAD[device.type], MOST_ROWS // rows))
    length_at = task.training_length if stored is None else stored.length_at
    for step in itertools.count(first, most):
        by_length: dict[int, list[int]] = {}
        for ahead in range(step, step + most):
            by_length.setdefault(length_at(ahead), []).append(ahead)
        drawn: dict[int, Problems] = {}
        for length, steps in by_length.items():
            row = torch.arange(len(steps) * rows, device=device)
            dice = Dice(
                TRAINING, owner[row // batch % len(seeds)], torch.tensor(steps, device=device)[row // rows], row % batch
            )
            some = task.training(dice, hard, length) if stored is None else stored.training(dice, length)
            drawn |= {ahead: some[at * rows : (at + 1) * rows] for at, ahead in enumerate(steps)}
        yield from map(drawn.pop, range(step, step + most))
