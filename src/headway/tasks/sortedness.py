"""Sortedness: is a sequence of integers non-decreasing?

Problems come in pairs: row 2i is a sorted sequence, row 2i + 1 a permutation of it. So only the order
distinguishes them, and a model that cannot see order is right exactly half the time. Labels are computed
from the finished sequence, not from how it was made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.tasks import random
from headway.tasks.problems import SHOWN, Errors, Neighbours, Problems, percent, share
from headway.tasks.random import Dice
from headway.tasks.task import Item, Probe, Task, whole_numbers

Sequences = Int[Tensor, "row token"]

NEGATIVES = ("swaps", "shuffle", "descending")
_POOL = 4  # distinct values in a `ties` sequence


def draw_pairs(task: Sortedness, dice: Dice, length: int, disorder: str | None = None, ties: bool = False) -> Problems:
    """Draws sorted sequences and disordered copies of them; `disorder` defaults to the task's negatives."""
    if length < 2:
        raise HeadwayError(f"length is {length}; a sequence needs at least 2 elements")
    pair = replace(dice, row=dice.row // 2)
    swaps = 2 * max(2, length // 3)
    pool, content, choice, variety = pair.words(_POOL + length + swaps + 3).split((_POOL, length, swaps, 3), dim=1)
    if ties:
        values = random.below(pool, task.values).gather(1, random.below(content, _POOL))
    elif dice.stream == random.TRAINING and (task.ranges or task.pools):
        values = task.training_values(pool, content, variety)
    else:
        values = random.below(content, task.values)
    ordered = values.sort(1).values
    disordered = DISORDERS[disorder or task.negatives](ordered, content, choice)
    return task.solve(torch.where((dice.row % 2 == 0)[:, None], ordered, disordered))


PROBES: dict[str, Probe] = {
    "default": draw_pairs,
    "one-inversion": partial(draw_pairs, disorder="one-inversion"),
    "descending": partial(draw_pairs, disorder="descending"),
    "ties": partial(draw_pairs, ties=True),
}


@dataclass(frozen=True)
class Sortedness(Task):
    """Classifies a sequence as sorted or not: one answer token, 1 for sorted."""

    values: int = 100
    """number of different integers, which start at 0"""
    shortest: int = 8
    """shortest training sequence"""
    longest: int = 16
    """longest training sequence"""
    negatives: str = "swaps"
    """how disordered sequences are made: swaps (at random, a third as many as elements), shuffle or descending"""
    ranges: float = 0.0
    """share of training pairs whose values come from a random part of all values, so that ties are common"""
    pools: float = 0.0
    """share of training pairs with only two to four different values, so that neighbours often differ by much"""

    name: ClassVar[str] = "sortedness"
    probes: ClassVar[tuple[str, ...]] = tuple(PROBES)
    hard_probe: ClassVar[str] = "one-inversion"
    twin_probe: ClassVar[str | None] = "one-inversion"
    classes: ClassVar[int | None] = 2
    class_names: ClassVar[tuple[str, ...]] = ("not sorted", "sorted")

    def __post_init__(self) -> None:
        if self.values < 2:
            raise HeadwayError(f"values is {self.values}; sequences need at least 2 different integers")
        if not 2 <= self.shortest <= self.longest:
            lengths = f"lengths are {self.shortest} to {self.longest}"
            raise HeadwayError(f"{lengths}; the shortest must be at least 2 and at most the longest")
        if self.negatives not in NEGATIVES:
            raise unknown("negatives", self.negatives, NEGATIVES)
        if min(self.ranges, self.pools) < 0 or self.ranges + self.pools > 1:
            raise HeadwayError(f"ranges is {self.ranges}, pools {self.pools}; both are shares, together at most 1")

    @property
    def vocabulary(self) -> int:
        return self.values

    @property
    def lengths(self) -> tuple[int, int]:
        return self.shortest, self.longest

    def source_tokens(self, length: int) -> int:
        return length

    def read(self, written: str, device: torch.device | str = "cpu", length: int | None = None) -> Problems:
        values = re.findall(r"\d+", written)
        if len(values) < 2 or max(map(int, values)) >= self.values:
            like = f"'3 7 7 40', with values from 0 to {self.values - 1}"
            raise HeadwayError(f"{written!r} is not a sequence of this task; write one like {like}")
        return self.solve(torch.tensor([[int(value) for value in values]], device=device))

    def draw(self, dice: Dice, probe: str, length: int) -> Problems:
        return PROBES[probe](self, dice, length)

    def training_values(self, pool: Int[Tensor, "row pool"], content: Sequences, variety: Tensor) -> Sequences:
        """Returns the values of each training sequence, unordered."""
        kind, size, first = variety.split(1, dim=1)
        few = random.below(pool, self.values).gather(1, random.below(content, 2 + random.below(size, _POOL - 1)))
        width = 1 + random.below(size, self.values)
        within = random.below(first, self.values - width + 1) + random.below(content, width)
        part, evenly = kind / 2**32, random.below(content, self.values)
        return torch.where(part < self.ranges, within, torch.where(part >= 1 - self.pools, few, evenly))

    def solve(self, source: Sequences) -> Problems:
        """Labels these sequences by comparing their elements."""
        ordered = (source[:, 1:] >= source[:, :-1]).all(1)
        return Problems(source, ordered.long()[:, None])

    def identity(self, problems: Problems) -> Int[Tensor, " row"]:
        """Hashes the values, not their order: the two problems of a pair are held out together."""
        return random.digest(problems.source.sort(1).values)

    def strata(self, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
        descents = (problems.source[:, 1:] < problems.source[:, :-1]).sum(1)
        return {"sorted": problems.answer[:, 0], "descents": descents.clamp(max=4)}

    @property
    def local(self) -> Neighbours:
        return Neighbours(self.values, torch.le)

    def describe_errors(self, problems: Problems, written: Int[Tensor, "row 1"]) -> Errors:
        """Describes missed violations, by place and size of the first one, and sorted sequences called not sorted."""
        ordered, accepted = problems.answer[:, 0] == 1, written[:, 0] == 1
        descent = problems.source[:, :-1] - problems.source[:, 1:]  # above 0 where the order is broken
        place = (descent > 0).int().argmax(1)
        size = descent.gather(1, place[:, None])[:, 0]
        third = 3 * place // max(1, problems.source.shape[1] - 1)
        thirds = {"first third": third == 0, "middle": third == 1, "last third": third == 2}
        sizes = {"1": size == 1, "2 to 5": (size > 1) & (size <= 5), "above 5": size > 5}
        missed, refused = share(accepted, ~ordered), share(~accepted, ordered)
        wrong = (accepted != ordered).nonzero()[:SHOWN, 0].tolist()
        return Errors(
            {
                "false_alarms": refused,
                "missed": missed,
                "missed_by_place": {name: share(accepted, ~ordered & rows) for name, rows in thirds.items()},
                "missed_by_size": {name: share(accepted, ~ordered & rows) for name, rows in sizes.items()},
            },
            summary=f"{percent(missed)} of the violations missed, {percent(refused)} of the sorted sequences rejected",
            examples=tuple(_show_wrong(problems, row, int(place[row])) for row in wrong),
        )

    def item(self, source: list[int], answer: list[int]) -> Item:
        return {"sequence": source, "is_sorted": answer[0], "length": len(source)}

    def read_item(self, item: Any) -> tuple[int, list[int], list[int]]:
        sequence = whole_numbers(item, "sequence")
        if len(sequence) < 2:
            raise HeadwayError(f"sequence has {len(sequence)} elements; it needs at least 2")
        if wrong := [value for value in sequence if not 0 <= value < self.values]:
            raise HeadwayError(f"sequence has {wrong[0]}; values run from 0 to {self.values - 1}")
        if item.get("length", len(sequence)) != len(sequence):
            raise HeadwayError(f"length is {item['length']}, but the sequence has {len(sequence)} elements")
        label = item.get("is_sorted")
        if label not in (0, 1):
            raise HeadwayError(f"is_sorted is {label!r}; it must be 0 or 1")
        return len(sequence), sequence, [int(label)]

    def show(self, source: list[int], answer: list[int]) -> str:
        return f"{' '.join(map(str, source))}: {self.class_names[answer[0]]}"


def _show_wrong(problems: Problems, row: int, place: int) -> str:
    """Shows a sequence with a wrong answer; of a long one, the part around its first violation, or its start."""
    values, is_sorted = problems.source[row].tolist(), bool(problems.answer[row, 0])
    start = 0 if is_sorted else max(0, place - 5)
    part = " ".join(map(str, values[start : start + 12]))
    shown = ("… " if start else "") + part + (" …" if start + 12 < len(values) else "")
    return f"{shown} is {'sorted' if is_sorted else f'not sorted (place {place})'}; the model answered the opposite"


def _swap_at_random(sequences: Sequences, choice: Int[Tensor, "row twice"]) -> Sequences:
    """Swaps random pairs of elements, one pair after another."""
    length, swapped = sequences.shape[1], sequences.clone()
    for pair in choice.split(2, dim=1):
        here = random.below(pair[:, :1], length)
        there = (here + 1 + random.below(pair[:, 1:], length - 1)) % length
        at_here, at_there = swapped.gather(1, here), swapped.gather(1, there)
        swapped.scatter_(1, here, at_there).scatter_(1, there, at_here)
    return swapped


def _swap_unequal_neighbours(sequences: Sequences, choice: Int[Tensor, " row"]) -> Sequences:
    """Swaps one pair of neighbours, drawn uniformly from those that differ; none if all are equal."""
    steps = sequences[:, 1:] != sequences[:, :-1]
    wanted = random.below(choice, steps.sum(1))
    place = ((steps.cumsum(1) == wanted[:, None] + 1) & steps).int().argmax(1, keepdim=True)
    left, right = sequences.gather(1, place), sequences.gather(1, place + 1)
    return sequences.scatter(1, place, right).scatter(1, place + 1, left)


# Called with sorted sequences, a random word for each element, and additional random words.
DISORDERS: dict[str, Callable[[Sequences, Sequences, Tensor], Sequences]] = {
    "swaps": lambda ordered, words, choice: _swap_at_random(ordered, choice),
    "shuffle": lambda ordered, words, choice: ordered.gather(1, random.mix(words).argsort(1)),
    "descending": lambda ordered, words, choice: ordered.flip(1),
    "one-inversion": lambda ordered, words, choice: _swap_unequal_neighbours(ordered, choice[:, 0]),
}
