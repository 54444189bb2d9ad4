"""The training batches of each step: fresh problems, a file's, or a stored set's in shuffled epochs."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from headway.runs import disk
from headway.runs.config import TrainingConfig
from headway.tasks import Problems, Task
from headway.tasks.data import Stored, drop_held_out, read_split
from headway.tasks.random import REPEATED, SHUFFLING, TRAINING, Dice

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
    """Yields the batches from step `first` on. Each holds the rows of every seed, seed after seed."""
    if training.stored is not None:
        yield from _draw_epochs(task, training, seeds, training.stored, first, device)
    batch, hard = training.batch, round(training.hard * training.batch)
    rows, owner = len(seeds) * batch, torch.tensor(seeds, device=device)
    # several steps are drawn at a time, grouped by length
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


def _draw_epochs(
    task: Task, training: TrainingConfig, seeds: Sequence[int], count: int, first: int, device: torch.device
) -> Iterator[Problems]:
    """Yields the batches of `count` problems per seed, drawn once, that every epoch goes through in another order.

    Epochs follow one another without a gap, so that every batch is full: one may hold the last problems of an epoch and
    the first of the next.
    """
    owner = torch.tensor(seeds, device=device).repeat_interleave(count)
    row = torch.arange(count, device=device).repeat(len(seeds))
    once = Dice(REPEATED, owner, torch.zeros_like(row), row)
    problems = task.training(once, round(training.hard * count), task.lengths[1])

    def shuffle(epoch: int) -> Tensor:
        words = Dice(SHUFFLING, owner, torch.full_like(row, epoch), row).words(1).view(len(seeds), count)
        order = words.argsort(dim=1, stable=True)
        return order + count * torch.arange(len(seeds), device=device)[:, None]  # seed place

    orders: dict[int, Tensor] = {}
    for step in itertools.count(first):
        begin, end = step * training.batch, (step + 1) * training.batch
        epochs = range(begin // count, -(-end // count))
        orders = {epoch: orders[epoch] if epoch in orders else shuffle(epoch) for epoch in epochs}
        pieces = [orders[epoch][:, max(0, begin - epoch * count) : end - epoch * count] for epoch in epochs]
        yield problems[torch.cat(pieces, dim=1).flatten()]
