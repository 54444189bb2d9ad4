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

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headway.tasks.addition import Addition
from headway.tasks.problems import Contrast, Problems
from headway.tasks.task import Task

DRAWN, MOST_DRAWS, PLENTY, MOST_PLACES = 4_000, 100, 4, 8
BELOW = {"operand": 0, "carry": 1, "propagated": 2}  # how far below the column asked about a digit is changed


def token_contrasts(task: Task, pairs: int, seed: int, device: torch.device | str = "cpu") -> list[Contrast]:
    """For some tokens of the answer, spread evenly: pairs that differ in the one token of the source that changes it
    most often; in a placebo that token of the source differs which changes it least often, and it stays the same."""
    clean, donors = (task.testing((seed + side) % 2**62, DRAWN, device=device) for side in (0, 500))
    places = torch.eye(clean.source.shape[1], dtype=torch.bool, device=clean.source.device)
    mixed = [task.solve(torch.where(place, donors.source, clean.source)) for place in places]
    others = [problems for problems in mixed if problems is not None]
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
    kinds = [(kind, k) for kind, low in BELOW.items() for k in range(low, task.digits + (kind != "operand"))]
    found = []
    for number, (kind, column) in enumerate(kinds):
        place = task.digits - column if task.first == "most" else column
        own, sizes = (seed * 1000 + 2 * number) % 2**62, None
        for placebo in (False, True):
            if placebo and kind == "operand" and task.digits == 1:  # there is no other column
                break
            made = _SumPairs(task, kind, column, placebo, device).draw(pairs, own + placebo, sizes)
            if made is None:
                break
            sizes = change(*made)
            found.append(Contrast(kind, column, placebo, *made, place))
    return found


def change(one: Problems, two: Problems) -> Int[Tensor, " row"]:
    """By how much the digit that differs is another."""
    return (one.source - two.source).abs().amax(1)


@dataclass(frozen=True)
class _SumPairs:
    """Pairs of one kind at one column."""

    task: Addition
    kind: str
    column: int
    placebo: bool
    device: torch.device | str

    def draw(self, pairs: int, seed: int, sizes: Tensor | None) -> tuple[Problems, Problems] | None:
        """Pairs in which a and b are changed in turn; with `sizes` by as much as there, or by what comes nearest."""
        ones, twos, sides = list[Problems](), list[Problems](), torch.empty(0, dtype=torch.long, device=self.device)
        enough = pairs if sizes is None else PLENTY * pairs
        for number in range(MOST_DRAWS):
            one, two, fits = self._candidates(seed, number)
            rows = fits.nonzero()[:, 0]
            ones, twos, sides = [*ones, one[rows]], [*twos, two[rows]], torch.cat((sides, rows % 2))
            if min(int((sides == side).sum()) for side in (0, 1)) >= enough:
                break
        one, two = Problems.join(ones), Problems.join(twos)
        each = [(sides == side).nonzero()[:, 0] for side in (0, 1)]
        if min(map(len, each)) < pairs // 2 + 1:
            return None
        if sizes is not None:
            each = [_as_large(rows, change(one, two), sizes[side::2]) for side, rows in enumerate(each)]
        taken = torch.stack([rows[: pairs // 2 + 1] for rows in each], dim=1).flatten()[:pairs]
        return one[taken], two[taken]

    def _candidates(self, seed: int, number: int) -> tuple[Problems, Problems, Tensor]:
        """Problems, the same with a digit changed, of a in even rows and of b in odd ones, and which of them fit."""
        task, digits, first = self.task, self.task.digits, number * DRAWN
        a, operator, b = task.operands(task.testing(seed, DRAWN, first=first, device=self.device))
        x, _, y = task.operands(task.testing(seed + 500, DRAWN, first=first, device=self.device))
        changed = self.column - BELOW[self.kind]
        if self.kind == "operand" and self.placebo:  # each of the other columns in turn
            changed = (self.column + 1 + number % (digits - 1)) % digits
        at, asked = digits - 1 - changed, digits - self.column  # of an operand, of an answer
        a2, b2 = a.clone(), b.clone()
        a2[::2, at], b2[1::2, at] = x[::2, at], y[1::2, at]
        plus, sums, sums2 = torch.full_like(operator, task.plus), a + b, a2 + b2
        (answer, carries), (answer2, carries2) = task.results(a, plus, b), task.results(a2, plus, b2)
        fits = (operator == plus) & (sums[:, at] != sums2[:, at])
        if self.kind != "operand" or not self.placebo:  # else the column that is changed may be one of those above
            fits &= (answer[:, :asked] == answer2[:, :asked]).all(1)
        if self.kind == "propagated":
            fits &= sums[:, asked] == task.base - 1
        if self.placebo:
            fits &= (carries == carries2).all(1)
        elif self.kind != "operand":  # the second makes a carry, and the changed column whatever comes into it
            fits &= (sums[:, at] < sums2[:, at]) & (sums[:, at] != task.base - 1) & (sums2[:, at] != task.base - 1)
        fits &= (answer[:, asked] != answer2[:, asked]) != self.placebo
        return task.problems(a, plus, b), task.problems(a2, plus, b2), fits


def _as_large(rows: Tensor, moved: Tensor, wanted: Tensor) -> Tensor:
    """Of these rows one for each wanted size: of that size, or else of the nearest that is left."""
    left = {size: rows[moved[rows] == size].tolist() for size in moved[rows].unique().tolist()}
    taken = []
    for size in wanted.tolist():
        nearest = min((each for each in left if left[each]), key=lambda each: (abs(each - size), -each))
        taken.append(left[nearest].pop())
    spare = next((entry[0] for entry in left.values() if entry), taken[-1])
    return torch.tensor([*taken, spare], device=rows.device)
