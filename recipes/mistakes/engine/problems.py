"""The problems of the engine: two-digit sums, and sequences that are sorted or not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from headway import Problems

from .models import NUMBERS, PAD, PLUS, SORTER_PAD

PADDED, SORTER_PADDED = 7, 8
LENGTHS = (5, 6, 7, 8)


def digits(number: Tensor, count: int) -> Tensor:
    return torch.stack([number // 10**place % 10 for place in reversed(range(count))], dim=1)


def encode(a: Tensor, b: Tensor, count: int = 2) -> Problems:
    """Writes sums such as 4 2 + 1 9 = 0 6 1."""
    plus = torch.full((len(a), 1), PLUS)
    return Problems(torch.cat((digits(a, count), plus, digits(b, count)), dim=1), digits(a + b, count + 1))


def is_held_out(a: Tensor, b: Tensor) -> Tensor:
    """Tells which sums are in the tenth that training never shows."""
    return (731 * a + 379 * b) // 7 % 10 == 0


def split_sums() -> tuple[Problems, Problems]:
    """Returns the 10,000 sums in a random order: those to train on, and those that are held out."""
    pairs = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    a, b = pairs // 100, pairs % 100
    unseen = is_held_out(a, b)
    return encode(a[~unseen], b[~unseen]), encode(a[unseen], b[unseen])


def long_sums(rows: int, seed: int) -> Problems:
    """Draws sums of four-digit numbers."""
    a, b = torch.randint(1_000, 10_000, (2, rows), generator=torch.Generator().manual_seed(seed))
    return encode(a, b, 4)


def marks_held_out(problems: Problems) -> Tensor:
    """Marks the two-digit sums that training never shows."""
    return is_held_out(*(problems.source[:, at] * 10 + problems.source[:, at + 1] for at in (0, 3)))


def sequences(rows: int, seed: int, length: int, positive: float = 0.5) -> Problems:
    """Draws sequences of numbers below 20: sorted ones, and shuffled ones."""
    dice = torch.Generator().manual_seed(seed)
    source = torch.randint(NUMBERS, (rows, length), generator=dice).sort(1).values
    mixed = source.gather(1, torch.rand(rows, length, generator=dice).argsort(1))
    is_sorted = torch.rand(rows, 1, generator=dice) < positive
    source = torch.where(is_sorted, source, mixed)
    return Problems(source, (source.diff(dim=1) >= 0).all(1, keepdim=True).long())


def padded(problems: Problems) -> Problems:
    """Pads sources on the right: sums to seven tokens, sequences to eight; longer ones get two more."""
    sums = problems.answer.shape[1] > 1
    width, shortest = problems.source.shape[1], PADDED if sums else SORTER_PADDED
    more = shortest - width if width < shortest else 2
    return Problems(F.pad(problems.source, (0, more), value=PAD if sums else SORTER_PAD), problems.answer)


def mixed_sequences(rows: int, seed: int, positive: float = 0.5) -> Problems:
    """Draws padded sequences of five to eight numbers."""
    parts = [padded(sequences(rows // 4, 4 * seed + length, length, positive)) for length in (5, 6, 7)]
    last = sequences(rows - 3 * (rows // 4), 4 * seed + 8, 8, positive)
    return Problems.join([*parts, last])
