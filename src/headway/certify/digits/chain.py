"""Exact extremes over all carry chains: sums of one number for each token, largest by dynamic programming.

The columns of a sum are tied together by their carries alone. So the largest value of a sum of terms, each of one
operand digit or one answer digit, follows from the columns one after another, with the carry as the only state. A
ratio of such sums (attention: numerator and denominator) has a maximum λ where the maximum of numerator − λ ·
denominator is 0 (Dinkelbach, 1967): `Ratio` approaches it, with a bound at every step.

Axes: line (what is maximised, one problem each), digit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

LINES = 20_000  # at a time


@dataclass(frozen=True)
class Chain:
    """The operand digits that a box allows in the columns, from the ones, and how they are tied by carries.

    Columns below `tied` have their answer digit in view; the carry out of the last of them is given. The columns
    above are free. Columns in `fixed` are decided elsewhere: they contribute nothing here.
    """

    allowed: Tensor  # column a b carry-in: bool
    tied: int
    carry: int  # out of the last tied column; 0 where there is none
    fixed: frozenset[int]

    @property
    def base(self) -> int:
        return self.allowed.shape[1]

    @cached_property
    def free(self) -> list[int]:
        """The columns above the tied ones that are not decided elsewhere."""
        return [column for column in range(self.tied, len(self.allowed)) if column not in self.fixed]

    def count(self) -> int:
        """Counts the problems of the box, given the columns that are decided elsewhere."""
        states, base = [1, 0], self.base
        for column in range(self.tied):
            grouped = _groups(base)
            allowed = self.allowed[column].flatten()[grouped.order].long().split(grouped.sizes)
            ways = [int(part.sum()) for part in allowed]  # carry-in × carry-out
            states = [states[0] * ways[out] + states[1] * ways[2 + out] for out in (0, 1)]
        for column in self.free:
            states = [state * int(self.allowed[column, :, :, 0].sum()) for state in states]
        return states[self.carry]

    def restrict(self, letter: str, column: int, digit: int) -> Chain:
        """Returns the part of the box in which a token is this digit."""
        allowed = self.allowed.clone()
        allowed[column] &= shows(letter, self.base) == digit
        return replace(self, allowed=allowed)

    def choices(self, letter: str, column: int) -> list[int]:
        """Lists the digits that a token may be."""
        return shows(letter, self.base)[self.allowed[column]].unique().tolist()

    def largest(self, values: dict[tuple[str, int], Tensor]) -> Tensor:
        """Returns the largest sum of the values of all tokens over the box, for each line; `values` has line × digit
        for each token: a, b or c, and its column. −∞ where the box is empty."""
        lines = len(next(iter(values.values())))
        if lines > LINES:
            parts = range(0, lines, LINES)
            return torch.cat(
                [self.largest({key: each[at : at + LINES] for key, each in values.items()}) for at in parts]
            )
        minus = -torch.inf
        states = [torch.zeros(lines, dtype=torch.float64), torch.full((lines,), minus, dtype=torch.float64)]
        grouped = _groups(self.base)
        for column in range(self.tied):
            total = self._of_column(column, values, lines)
            total = total.masked_fill(~self.allowed[column].flatten(), minus)[:, grouped.order]
            best = [part.amax(1) for part in total.split(grouped.sizes, dim=1)]
            states = [torch.maximum(states[0] + best[out], states[1] + best[2 + out]) for out in (0, 1)]
        found = states[self.carry]
        for column in self.free:
            total = self._of_column(column, values, lines)
            found = found + total.masked_fill(~self.allowed[column].flatten(), minus).amax(1)
        return found

    def _of_column(self, column: int, values: dict[tuple[str, int], Tensor], lines: int) -> Tensor:
        """Returns the sums of a column's values, line × (a b carry-in)."""
        total = torch.zeros(lines, self.base**2 * 2, dtype=torch.float64)
        for letter in "abc":
            if (value := values.get((letter, column))) is not None:
                total = total + value[:, shows(letter, self.base).flatten()]
        return total

    def draw(self, count: int, dice: torch.Generator) -> Tensor:
        """Draws problems of the box uniformly: row × 2 (a, b) × column; the columns decided elsewhere are 0."""
        base, drawn = self.base, torch.zeros(count, 2, len(self.allowed), dtype=torch.long)
        ways = [torch.tensor([1.0, 0.0], dtype=torch.float64)]  # of reaching each carry
        outgoing = carries(base).flatten()
        for column in range(self.tied):
            weights = self.allowed[column].flatten().double()
            reached = (weights * ways[-1][torch.arange(2 * base**2) % 2]).view(-1)
            ways.append(torch.stack([reached[outgoing == out].sum() for out in (0, 1)]))
        carry = torch.full((count,), self.carry)
        for column in reversed(range(self.tied)):
            incoming = torch.arange(2 * base**2) % 2
            weights = self.allowed[column].flatten().double() * ways[column][incoming]
            table = torch.stack([weights.where(outgoing == out, 0) for out in (0, 1)])
            which = torch.multinomial(table[carry], 1, generator=dice)[:, 0]
            drawn[:, 0, column], drawn[:, 1, column] = which // (2 * base), which // 2 % base
            carry = which % 2
        for column in self.free:
            weights = self.allowed[column, :, :, 0].flatten().double()
            which = torch.multinomial(weights.expand(count, -1), 1, generator=dice)[:, 0]
            drawn[:, 0, column], drawn[:, 1, column] = which // base, which % base
        return drawn


@dataclass(frozen=True)
class _Groups:
    """The contents of a column, a × b × carry-in, ordered by carry-in and carry-out."""

    order: Tensor
    sizes: list[int]


@lru_cache
def _groups(base: int) -> _Groups:
    kind = (torch.arange(2 * base**2) % 2) * 2 + carries(base).flatten()
    return _Groups(kind.argsort(stable=True), torch.bincount(kind, minlength=4).tolist())


@lru_cache
def carries(base: int) -> Tensor:
    """Returns the carry out of a column, a × b × carry-in."""
    digit = torch.arange(base)
    return ((digit[:, None, None] + digit[None, :, None] + torch.arange(2)) >= base).long()


@lru_cache
def shows(letter: str, base: int) -> Tensor:
    """Returns the digit that a token of a column is, a × b × carry-in."""
    digit, shape = torch.arange(base), (base, base, 2)
    if letter == "a":
        return digit[:, None, None].expand(shape)
    if letter == "b":
        return digit[None, :, None].expand(shape)
    return (digit[:, None, None] + digit[None, :, None] + torch.arange(2)) % base


def whole(digits: int, base: int) -> Tensor:
    """Returns what the columns of all problems of this length may hold: no carry comes into the ones."""
    allowed = torch.ones(digits, base, base, 2, dtype=torch.bool)
    allowed[0, :, :, 1] = False
    return allowed


@dataclass(frozen=True)
class Ratio:
    """Ratios (n + Σ w·u) / (n0 + Σ w) over a box: w > 0 the weight of a token, u its value, n and n0 of what is
    fixed; one line for each ratio."""

    chain: Chain
    weights: dict[tuple[str, int], Tensor]  # line × digit
    values: dict[tuple[str, int], Tensor]  # line × digit
    fixed: Tensor  # line: n
    mass: Tensor  # line: n0

    @cached_property
    def masses(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest denominator."""
        low = self.mass - self.chain.largest({key: -each for key, each in self.weights.items()})
        return low, self.mass + self.chain.largest(self.weights)

    def excess(self, guess: Tensor) -> Tensor:
        """Returns the largest numerator − guess · denominator: it falls with the guess, is convex, and is 0 at the
        largest ratio."""
        scaled = {key: self.weights[key] * (self.values[key] - guess[:, None]) for key in self.weights}
        return self.fixed - guess * self.mass + self.chain.largest(scaled)

    def upper(self, start: Tensor, steps: int = 3) -> Tensor:
        """Returns upper bounds of the ratios that tend to their maxima; `start` is a first guess."""
        first = self.excess(start)
        other = start + first / self.masses[0]  # on the other side of the maximum, or there
        second, over = self.excess(other), first > 0
        low, high = torch.where(over, start, other), torch.where(over, other, start)
        at_low, at_high = torch.where(over, first, second).clamp(min=0), torch.where(over, second, first).clamp(max=0)
        weigh_low, weigh_high = at_low, at_high
        for _ in range(steps):  # false position (Illinois): the weight of an end that stays is halved
            guess = _crossing(low, weigh_low, high, weigh_high)
            found = self.excess(guess)
            over = found > 0
            low, high = torch.where(over, guess, low), torch.where(over, high, guess)
            at_low, at_high = torch.where(over, found, at_low), torch.where(over, at_high, found)
            weigh_low = torch.where(over, found, weigh_low / 2)
            weigh_high = torch.where(over, weigh_high / 2, found)
        return _crossing(low, at_low, high, at_high)  # the chord of a convex function crosses 0 past its root

    def lower(self, start: Tensor, steps: int = 3) -> Tensor:
        """Returns lower bounds of the ratios that tend to their minima."""
        opposite = replace(self, values={key: -each for key, each in self.values.items()}, fixed=-self.fixed)
        return -opposite.upper(-start, steps)


def _crossing(low: Tensor, at_low: Tensor, high: Tensor, at_high: Tensor) -> Tensor:
    """Returns where the line through two points crosses 0; the upper point where it is flat."""
    apart = at_low - at_high
    return (high + at_high * (high - low) / apart).where(apart > 0, high)
