"""Pairs of problems that differ in one thing only, to ask what carries that thing to a token of the answer.

Any task that can solve gets pairs that differ in one token (`token_contrasts`). Sums have better ones:

operand     a digit of column k is another; no carry changes
carry       the column below k makes a carry or does not; column k itself and all above it are the same
propagated  the column below k adds up to nine and only passes on the carry of the one below it
placebo     for each of these a change at the same place (for operand: in another column) that alters neither a carry
            nor the digit asked about

Columns count from the least significant, 0. The digit asked about is that of column k; a pair's answers differ there
and in no column above it (those of a placebo do not differ there). One digit of one number is changed, of a in every
other pair, of b in the rest: a mixture of the two problems is then one of them. The first problem of a pair has no
carry, the second has it. (Where the least significant digit of an answer comes first, the digits below k are written
before it and do differ: what they tell is read from the answer so far, which no patch of a head changes.)
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from headway.tasks.addition import Addition, Digits
from headway.tasks.problems import Contrast, Problems
from headway.tasks.task import Task

Kind = Literal["operand", "carry", "propagated"]
DRAWN, MOST_DRAWS, PLENTY, MOST_PLACES = 4_000, 100, 4, 8


def token_contrasts(task: Task, pairs: int, seed: int, device: torch.device | str = "cpu") -> list[Contrast]:
    """For some tokens of the answer, spread evenly: pairs that differ in the one token of the source that changes it
    most often; in a placebo that token of the source differs which changes it least often, and it stays the same."""
    clean, donors = (task.testing((seed + side) % 2**62, DRAWN, device=device) for side in (0, 500))
    others = []
    for place in range(clean.source.shape[1]):
        source = clean.source.clone()
        source[:, place] = donors.source[:, place]
        others.append(task.solve(source))
    answers, found = clean.answer.shape[1], list[Contrast]()
    for asked in sorted({n * answers // MOST_PLACES for n in range(MOST_PLACES)}):
        differs = torch.stack([other.answer[:, asked] != clean.answer[:, asked] for other in others])  # place row
        often = differs.sum(1)
        for place, placebo in ((int(often.argmax()), False), (int(often.argmin()), True)):
            fits = (clean.source != others[place].source).any(1) & (differs[place] != placebo)
            rows = fits.nonzero()[:pairs, 0]
            if len(rows) < pairs:
                break
            found.append(Contrast("token", asked, placebo, clean[rows], others[place][rows], asked))
    return found


def sum_contrasts(task: Addition, pairs: int, seed: int, device: torch.device | str = "cpu") -> list[Contrast]:
    """As many pairs of each kind at each column, and of its placebo, whose digits change by as much. What the base
    does not allow (in base 2 no one digit makes a carry whatever comes in) is left out."""
    found = []
    for number, (kind, column) in enumerate(_kinds(task.digits)):
        place = task.digits - column if task.first == "most" else column
        own = (seed * 1000 + 2 * number) % 2**62
        real = _pairs(task, kind, column, False, pairs, own, device, None)
        if real is None:
            continue
        found.append(Contrast(kind, column, False, *real, place))
        if kind != "operand" or task.digits > 1:  # else there is no other column
            placebo = _pairs(task, kind, column, True, pairs, own + 1, device, change(*real))
            if placebo is not None:
                found.append(Contrast(kind, column, True, *placebo, place))
    return found


def change(one: Problems, two: Problems) -> Int[Tensor, " row"]:
    """By how much the digit that differs is another."""
    return (one.source - two.source).abs().amax(1)


def _kinds(digits: int) -> list[tuple[Kind, int]]:
    first: dict[Kind, int] = {"operand": 0, "carry": 1, "propagated": 2}
    return [(kind, column) for kind, low in first.items() for column in range(low, digits + (kind != "operand"))]


def _pairs(
    task: Addition,
    kind: Kind,
    column: int,
    placebo: bool,
    pairs: int,
    seed: int,
    device: torch.device | str,
    sizes: Tensor | None,
) -> tuple[Problems, Problems] | None:
    """Pairs in which a and b are changed in turn; with `sizes` by as much as there, or by what comes nearest."""
    kept: list[tuple[Problems, Problems, Tensor]] = []
    for draw in range(MOST_DRAWS):
        first, second, fits = _candidates(task, kind, column, placebo, seed, draw, device)
        rows = fits.nonzero()[:, 0]
        kept.append((first[rows], second[rows], rows % 2))
        enough = pairs if sizes is None else PLENTY * pairs
        if min(int((torch.cat([k[2] for k in kept]) == side).sum()) for side in (0, 1)) >= enough:
            break
    one, two = Problems.join([k[0] for k in kept]), Problems.join([k[1] for k in kept])
    side = torch.cat([k[2] for k in kept])
    even, odd = ((side == which).nonzero()[:, 0] for which in (0, 1))
    if min(len(even), len(odd)) < pairs // 2 + 1:
        return None
    if sizes is not None:
        moved = change(one, two)
        even, odd = (_as_large(rows, moved, sizes[which::2]) for which, rows in ((0, even), (1, odd)))
    taken = torch.stack((even[: pairs // 2 + 1], odd[: pairs // 2 + 1]), dim=1).flatten()[:pairs]
    return one[taken], two[taken]


def _as_large(rows: Tensor, moved: Tensor, wanted: Tensor) -> Tensor:
    """Of these rows one for each wanted size: of that size, or else of the nearest that is left."""
    left = {size: rows[moved[rows] == size].tolist() for size in moved[rows].unique().tolist()}
    taken = []
    for size in wanted.tolist():
        nearest = min((each for each in left if left[each]), key=lambda each: (abs(each - size), -each))
        taken.append(left[nearest].pop())
    spare = next((entry[0] for entry in left.values() if entry), taken[-1])
    return torch.tensor([*taken, spare], device=rows.device)


def _candidates(
    task: Addition, kind: Kind, column: int, placebo: bool, seed: int, draw: int, device: torch.device | str
) -> tuple[Problems, Problems, Tensor]:
    """Problems, the same with a digit changed, of a in even rows and of b in odd ones, and which of them fit."""
    a, operator, b = task.operands(task.testing(seed, DRAWN, first=draw * DRAWN, device=device))
    x, _, y = task.operands(task.testing(seed + 500, DRAWN, first=draw * DRAWN, device=device))
    changed = _changed(kind, column, placebo, task.digits, draw)
    at = task.digits - 1 - changed
    a2, b2 = a.clone(), b.clone()
    a2[::2, at], b2[1::2, at] = x[::2, at], y[1::2, at]
    fits = _fits(task, kind, column, placebo, changed, (a, b), (a2, b2)) & (operator == task.plus)
    if not placebo and kind != "operand":
        fits &= a[:, at] + b[:, at] < a2[:, at] + b2[:, at]  # the second makes the carry
    plus = torch.full_like(operator, task.plus)
    return task.problems(a, plus, b), task.problems(a2, plus, b2), fits


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
    (answer, carries), (answer2, carries2) = (task.results(a, plus, b) for a, b in (one, two))
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
