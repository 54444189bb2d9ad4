"""Pairs of problems that differ in one thing only, for activation patching: which heads carry it to an answer token?

Any task with `solve` gets pairs that differ in one token (`token_contrasts`). Sums have better ones:

operand     a digit of column k differs; no carry changes
carry       the column below k makes a carry or does not; column k itself and all above it are the same
propagated  the column below k adds up to nine and only propagates the carry of the column below it
written     like carry, but column k adds up to nine and passes the carry on: where answers begin with the most
            significant digit, the digits already written tell the carry as well as the source does. Tested with the
            other problem's source and written digits (both), with its source only, and with its written digits only
placebo     for each of these a change in the same column (for operand: in another one) that alters neither a carry
            nor the digit in question

Columns count from 0, the least significant. The digit in question is that of column k; a pair's answers differ there
and, except for written, in no column above it (those of a placebo do not differ there). Only one digit changes, in a
for every other pair and in b for the rest, so that any mixture of the two problems is one of them. The first problem of
a pair has no carry, the second has it. (Where answers begin with the least significant digit, the digits below k come
before it and do differ: that information is in the answer so far, which patching a head does not change.) Written
digits alone have no placebo: in the top column none can differ while the digit in question stays the same.

Answers of natural length: both of a pair have as many digits as the operands, so that a column is at one place; at the
top column, which only a carry writes, the second has one more (both of a placebo have). Where the most significant
digit comes first, that carry decides the first token.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headway.tasks.addition import Addition, natural_length
from headway.tasks.problems import Contrast, Problems, Swap
from headway.tasks.task import Task

DRAWN, MOST_DRAWS, PLENTY, MOST_PLACES = 4_000, 100, 4, 8
BELOW = {"operand": 0, "carry": 1, "propagated": 2, "written": 1}  # how far below column k the changed digit is


def token_contrasts(task: Task, pairs: int, seed: int, device: torch.device | str = "cpu") -> list[Contrast]:
    """Draws, for some evenly spaced answer tokens, pairs that differ in the source token that changes it most often;
    a placebo differs in the source token that changes it least often, and leaves it the same."""
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
    """Draws as many pairs of each kind at each column, and placebos whose digits change by the same amounts. Leaves
    out what the base does not allow (in base 2 no single digit makes a carry regardless of the carry in)."""
    columns = {kind: range(low, task.digits + (kind in ("carry", "propagated"))) for kind, low in BELOW.items()}
    if task.first == "least":  # the digits above are not yet written
        del columns["written"]
    elif task.natural:  # a carry out of the top column moves every digit
        columns["written"] = range(1, task.digits - 1)
    if task.base == 2:  # no single digit makes a carry
        columns = {"operand": columns["operand"]}
    kinds = [(kind, k) for kind, some in columns.items() for k in some]
    found = []
    for number, (kind, column) in enumerate(kinds):
        place = _place(task, column)
        own, sizes = (seed * 1000 + 2 * number) % 2**62, None
        for placebo in (False, True):
            if placebo and kind == "operand" and task.digits == 1:  # there is no other column
                break
            made = _SumPairs(task, kind, column, placebo, device).draw(pairs, own + placebo, sizes)
            if made is None:
                break
            sizes = change(*made)
            found += [Contrast(kind, column, placebo, *made, place, swap) for swap in _swaps(kind, placebo)]
    return sorted(found, key=lambda contrast: (kinds.index((contrast.kind, contrast.column)), contrast.name))


def _place(task: Addition, column: int) -> int:
    """Returns the place of a column in the answers of the pairs that ask about it."""
    if task.first == "least":
        return column
    return max(0, task.digits - column - task.natural)


def _swaps(kind: str, placebo: bool) -> tuple[Swap, ...]:
    if kind != "written":
        return ("both",)
    return ("both",) if placebo else ("both", "source", "prefix")


def change(one: Problems, two: Problems) -> Int[Tensor, " row"]:
    """Returns the size of the change in the digit that differs."""
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
        """Draws pairs in which a and b change in turn; with `sizes`, by those amounts or the nearest available."""
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
            each = [_match_sizes(rows, change(one, two), sizes[side::2]) for side, rows in enumerate(each)]
        taken = torch.stack([rows[: pairs // 2 + 1] for rows in each], dim=1).flatten()[:pairs]
        return one[taken], two[taken]

    def _candidates(self, seed: int, number: int) -> tuple[Problems, Problems, Tensor]:
        """Draws problems, copies with one digit changed (of a in even rows, of b in odd ones), and which fit."""
        task, digits, first = self.task, self.task.digits, number * DRAWN
        a, operator, b = task.operands(task.testing(seed, DRAWN, first=first, device=self.device))
        x, _, y = task.operands(task.testing(seed + 500, DRAWN, first=first, device=self.device))
        changed = self.column - BELOW[self.kind]
        if self.kind == "operand" and self.placebo:  # each of the other columns in turn
            changed = (self.column + 1 + number % (digits - 1)) % digits
        at, asked = digits - 1 - changed, digits - self.column  # index in an operand, in an answer
        a2, b2 = a.clone(), b.clone()
        a2[::2, at], b2[1::2, at] = x[::2, at], y[1::2, at]
        plus, sums, sums2 = torch.full_like(operator, task.plus), a + b, a2 + b2
        (answer, carries), (answer2, carries2) = task.results(a, plus, b), task.results(a2, plus, b2)
        fits = (operator == plus) & (sums[:, at] != sums2[:, at])
        if not (self.kind == "operand" and self.placebo) and not (self.kind == "written" and not self.placebo):
            fits &= (answer[:, :asked] == answer2[:, :asked]).all(1)
        if self.kind in ("propagated", "written"):  # column k - 1 or column k adds up to nine
            fits &= sums[:, asked - (self.kind == "written")] == task.base - 1
        if self.placebo:
            fits &= (carries == carries2).all(1)
        elif self.kind != "operand":  # the second makes a carry, whatever the carry into the changed column
            fits &= (sums[:, at] < sums2[:, at]) & (sums[:, at] != task.base - 1) & (sums2[:, at] != task.base - 1)
        fits &= (answer[:, asked] != answer2[:, asked]) != self.placebo
        one, two = task.problems(a, plus, b), task.problems(a2, plus, b2)
        if task.natural:
            place, top = _place(task, self.column), self.column == digits
            fits &= natural_length(answer) == digits + (top and self.placebo)
            fits &= natural_length(answer2) == digits + top
            fits &= (one.answer[:, place] != two.answer[:, place]) != self.placebo
        return one, two, fits


def _match_sizes(rows: Tensor, moved: Tensor, wanted: Tensor) -> Tensor:
    """Picks one row for each wanted size: of that size, or of the nearest size that is left."""
    left = {size: rows[moved[rows] == size].tolist() for size in moved[rows].unique().tolist()}
    taken = []
    for size in wanted.tolist():
        nearest = min((each for each in left if left[each]), key=lambda each: (abs(each - size), -each))
        taken.append(left[nearest].pop())
    spare = next((entry[0] for entry in left.values() if entry), taken[-1])
    return torch.tensor([*taken, spare], device=rows.device)
