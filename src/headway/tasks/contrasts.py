"""Pairs of sums that differ in one thing only, to ask what brings that thing to a digit of the answer.

operand     a digit of column k is another; no carry changes
carry       the column below k makes a carry or does not; column k itself and all above it are the same
propagated  the column below k adds up to nine and only passes on the carry of the one below it
placebo     for each of these a change at the same place (for operand: in another column) that alters neither a carry
            nor the digit asked about

Columns count from the least significant, 0. The digit asked about is that of column k; a pair's answers differ there
and in no column above it (those of a placebo do not differ there). One digit of one number is changed, of a in every
other pair, of b in the rest: a mixture of the two problems is then one of them. The first problem of a pair has no
carry, the second has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.tasks.addition import Addition, Digits
from headway.tasks.task import Problems

Kind = Literal["operand", "carry", "propagated"]
DRAWN, MOST_DRAWS = 4_000, 200


@dataclass(frozen=True)
class Contrast:
    kind: Kind
    column: int
    placebo: bool
    clean: Problems
    other: Problems
    place: int
    """of the answer token asked about"""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.column}"


def contrasts(task: Addition, pairs: int, seed: int, device: torch.device | str = "cpu") -> list[Contrast]:
    """As many pairs of each kind at each column, and of its placebo."""
    if task.natural or "+" not in task.operators:
        raise HeadwayError("pairs of sums are made for answers of one length with plus; not for natural or for -")
    found = []
    for number, (kind, column) in enumerate(_kinds(task.digits)):
        for placebo in (False, True):
            if placebo and kind == "operand" and task.digits == 1:
                continue  # there is no other column
            clean, other = _pairs(task, kind, column, placebo, pairs, seed * 1000 + 2 * number + placebo, device)
            place = task.digits - column if task.first == "most" else column
            found.append(Contrast(kind, column, placebo, clean, other, place))
    return found


def _kinds(digits: int) -> list[tuple[Kind, int]]:
    first: dict[Kind, int] = {"operand": 0, "carry": 1, "propagated": 2}
    return [(kind, column) for kind, low in first.items() for column in range(low, digits + (kind != "operand"))]


def _pairs(
    task: Addition, kind: Kind, column: int, placebo: bool, pairs: int, seed: int, device: torch.device | str
) -> tuple[Problems, Problems]:
    kept: list[tuple[Problems, Problems]] = []
    for draw in range(MOST_DRAWS):
        drawn = task.testing(seed, DRAWN, first=draw * DRAWN, device=device)
        a, operator, b = task.operands(drawn)
        x, _, y = task.operands(task.testing(seed + 500, DRAWN, first=draw * DRAWN, device=device))
        changed = _changed(kind, column, placebo, task.digits, draw)
        at = task.digits - 1 - changed
        a2, b2 = a.clone(), b.clone()
        a2[::2, at], b2[1::2, at] = x[::2, at], y[1::2, at]
        fits = _fits(task, kind, column, placebo, changed, (a, b), (a2, b2)) & (operator == task.plus)
        if not placebo and kind != "operand":
            fits &= a[:, at] + b[:, at] < a2[:, at] + b2[:, at]  # the second makes the carry
        rows = _in_turn(fits)
        plus = operator[rows]
        kept.append((task.problems(a[rows], plus, b[rows]), task.problems(a2[rows], plus, b2[rows])))
        if sum(len(clean) for clean, _ in kept) >= pairs:
            return tuple(Problems.join(list(side))[:pairs] for side in zip(*kept, strict=True))  # pyright: ignore
    raise HeadwayError(f"hardly any pair of sums has a {kind} contrast at column {column}; take a larger base")


def _in_turn(fits: Tensor) -> Tensor:
    """The rows that fit, even and odd ones in turn, as many of both."""
    rows = fits.nonzero()[:, 0]
    even, odd = rows[rows % 2 == 0], rows[rows % 2 == 1]
    both = min(len(even), len(odd))
    return torch.stack((even[:both], odd[:both]), dim=1).flatten()


def _changed(kind: Kind, column: int, placebo: bool, digits: int, draw: int) -> int:
    """The column whose digits are others."""
    if kind == "operand":
        return (column + 1 + draw % (digits - 1)) % digits if placebo else column
    return column - 1 if kind == "carry" else column - 2


def _fits(
    task: Addition,
    kind: Kind,
    column: int,
    placebo: bool,
    changed: int,
    one: tuple[Digits, Digits],
    two: tuple[Digits, Digits],
) -> Tensor:
    """Which rows are such a pair."""
    digits, nine = task.digits, task.base - 1
    plus = torch.full_like(one[0][:, 0], task.plus)
    (answer, carries), (answer2, carries2) = (task._columns(a, plus, b) for a, b in (one, two))
    differ = answer[:, digits - column] != answer2[:, digits - column]
    above = (answer[:, : digits - column] == answer2[:, : digits - column]).all(1)
    sums, sums2 = one[0] + one[1], two[0] + two[1]  # row digit

    def at(values: Tensor, place: int) -> Tensor:
        return values[:, digits - 1 - place]

    if placebo and kind == "operand":
        above = torch.ones_like(above)  # the column that is changed may be one of them
    fits = above & ((at(one[0], changed) != at(two[0], changed)) | (at(one[1], changed) != at(two[1], changed)))
    if kind == "propagated":
        fits &= at(sums, column - 1) == nine
    if placebo:
        return fits & (carries == carries2).all(1) & ~differ
    if kind != "operand":  # what is made, is made in the changed column, whatever comes into it
        fits &= (at(sums, changed) != nine) & (at(sums2, changed) != nine)
    return fits & differ
