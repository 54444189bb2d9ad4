"""Sortedness: is a sequence of integers non-decreasing?

Every problem comes in a pair: row 2i is a sorted sequence, row 2i + 1 a permutation of it. So nothing but
the order tells them apart, and a model that cannot see order is right exactly half the time. Labels are
computed from the finished sequence, never assumed from how it was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.tasks import random
from headway.tasks.random import Dice
from headway.tasks.task import Problems, Task

Sequences = Int[Tensor, "row token"]

NEGATIVES = ("swaps", "shuffle", "descending")
_POOL = 4  # different values in a `ties` sequence


@dataclass(frozen=True)
class Sortedness(Task):
    """Sorted or not: one answer token, 1 for sorted."""

    values: int = 100
    """integers run from 0 to this, exclusive"""
    shortest: int = 8
    """shortest training sequence"""
    longest: int = 16
    """longest training sequence"""
    negatives: str = "swaps"
    """how disordered sequences are made: swaps (at random, a third as many as elements), shuffle or descending"""
    ranges: float = 0.0
    """share of training pairs whose values come from a random part of all values, so that ties are common"""
    pools: float = 0.0
    """share of training pairs that have only two to four different values, so that neighbours often lie far apart"""

    name: ClassVar[str] = "sortedness"
    probes: ClassVar[tuple[str, ...]] = ("default", "one-inversion", "descending", "ties")
    hard_probe: ClassVar[str] = "one-inversion"
    classes: ClassVar[int | None] = 2

    def __post_init__(self) -> None:
        if self.values < 2:
            raise HeadwayError(f"values is {self.values}; sequences need at least 2 different integers")
        if not 2 <= self.shortest <= self.longest:
            raise HeadwayError(
                f"lengths are {self.shortest} to {self.longest}; the shortest is at least 2 and not above the longest"
            )

        if self.negatives not in NEGATIVES:
            raise unknown("negatives", self.negatives, NEGATIVES)
        if min(self.ranges, self.pools) < 0 or self.ranges + self.pools > 1:
            raise HeadwayError(f"ranges {self.ranges} and pools {self.pools} are shares; together at most 1")

    @property
    def vocabulary(self) -> int:
        return self.values

    @property
    def lengths(self) -> tuple[int, int]:
        return self.shortest, self.longest

    def source_tokens(self, length: int) -> int:
        return length

    def read(self, written: str, device: torch.device | str = "cpu") -> Problems:
        values = re.findall(r"\d+", written)
        if len(values) < 2 or max(map(int, values)) >= self.values:
            most = self.values - 1
            raise HeadwayError(f"{written!r} is no sequence of this task; write one like '3 7 7 40', of 0 to {most}")
        return self.labelled(torch.tensor([[int(value) for value in values]], device=device))

    def draw(self, dice: Dice, probe: str, length: int) -> Problems:
        if length < 2:
            raise HeadwayError(f"length is {length}; a sequence to be sorted has at least 2 elements")
        swaps = max(2, length // 3)
        pair = replace(dice, row=dice.row // 2)
        drawn = pair.words(_POOL + length + 2 * swaps + 3)
        pool, content, choice, variety = drawn.split((_POOL, length, 2 * swaps, 3), dim=1)
        ordered = self._values(pool, content, variety, probe, dice.stream == random.TRAINING).sort(1).values
        made = self.negatives if probe in ("default", "ties") else probe
        if made == "one-inversion":
            disordered = _swap_unequal_neighbours(ordered, choice[:, 0])
        elif made == "descending":
            disordered = ordered.flip(1)
        elif made == "shuffle":
            disordered = ordered.gather(1, random.mix(content).argsort(1))
        else:
            disordered = _swap_at_random(ordered, choice)
        source = torch.where((dice.row % 2 == 0)[:, None], ordered, disordered)
        return self.labelled(source)

    def _values(
        self,
        pool: Int[Tensor, "row pool"],
        content: Sequences,
        variety: Int[Tensor, "row 3"],
        probe: str,
        in_training: bool,
    ) -> Sequences:
        """The values of each sequence, in no order."""
        evenly = random.below(content, self.values)
        pooled = random.below(pool, self.values).gather(1, random.below(content, _POOL))
        if probe == "ties":
            return pooled
        if not in_training or not (self.ranges or self.pools):
            return evenly
        kind, size, first = variety.split(1, dim=1)
        few = random.below(pool, self.values).gather(1, random.below(content, 2 + random.below(size, _POOL - 1)))
        width = 1 + random.below(size, self.values)
        within = random.below(first, self.values - width + 1) + random.below(content, width)
        share = kind / 2**32
        return torch.where(share < self.ranges, within, torch.where(share >= 1 - self.pools, few, evenly))

    def labelled(self, source: Sequences) -> Problems:
        """These sequences with their labels, read off the sequences themselves."""
        return Problems(source, _is_sorted(source).long()[:, None])

    def identity(self, problems: Problems) -> Int[Tensor, " row"]:
        """Of the values, not their order: the two of a pair are held out together."""
        return random.digest(problems.source.sort(1).values)

    def strata(self, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
        descents = (problems.source[:, 1:] < problems.source[:, :-1]).sum(1)
        return {"sorted": problems.answer[:, 0], "descents": descents.clamp(max=4)}

    def show(self, source: list[int], answer: list[int]) -> str:
        return f"{' '.join(map(str, source))}: {'sorted' if answer[0] else 'not sorted'}"


def _is_sorted(sequences: Sequences) -> Tensor:
    return (sequences[:, 1:] >= sequences[:, :-1]).all(1)


def _swap_at_random(sequences: Sequences, choice: Int[Tensor, "row twice"]) -> Sequences:
    """Swaps pairs of different places, one pair after another."""
    length = sequences.shape[1]
    swapped = sequences.clone()
    for pair in choice.split(2, dim=1):
        here = random.below(pair[:, :1], length)
        there = (here + 1 + random.below(pair[:, 1:], length - 1)) % length
        at_here, at_there = swapped.gather(1, here), swapped.gather(1, there)
        swapped.scatter_(1, here, at_there).scatter_(1, there, at_here)
    return swapped


def _swap_unequal_neighbours(sequences: Sequences, choice: Int[Tensor, " row"]) -> Sequences:
    """Swaps one pair of neighbours, chosen evenly among those that differ; none where all are equal."""
    steps = sequences[:, 1:] != sequences[:, :-1]
    wanted = random.below(choice, steps.sum(1))
    place = ((steps.cumsum(1) == wanted[:, None] + 1) & steps).int().argmax(1, keepdim=True)
    left, right = sequences.gather(1, place), sequences.gather(1, place + 1)
    return sequences.scatter(1, place, right).scatter(1, place + 1, left)
