"""The accuracy of an adder at every length, exactly, where some of its contexts are wrong.

An answer is right as a whole exactly if every digit is right given the right digits before it, that is, if no wrong
context occurs at any column. With uniform digits the columns form a Markov chain: a context is the operands of the last
columns, the carry into the lowest of them, and the answer digit before that one; the next context keeps all but the
lowest column, whose carry and answer digit it takes over. So the probability that no wrong context occurs is a product
of nonnegative matrices. A context that is right but within the bound on rounding counts as wrong: hence "at least".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

LENGTHS = (1, 2, 3, 5, 8, 10, 20, 50, 100, 200, 500, 1000)
MOST_WORK = 2_000_000_000  # products of probabilities, columns times contexts


@runtime_checkable
class Neighbourhood(Protocol):
    """The tokens that an answer digit depends on."""

    @property
    def columns(self) -> list[int]: ...

    @property
    def answers(self) -> list[int]: ...

    @property
    def begins(self) -> bool: ...


@dataclass(frozen=True)
class Accuracy:
    """The probability that the whole answer is right, for numbers of this many uniform digits."""

    length: int
    value: float


@dataclass(frozen=True)
class _Tables:
    """Which contexts are right, as 0 or 1. The axes are the operand pairs of the columns, the lowest first; where there
    are columns further right, first of all the answer digit before the lowest column and the carry into it."""

    base: int
    first: list[Tensor]  # of column k = 0, 1, …: as far as the window shows the start of the answer
    inner: Tensor
    short: list[Tensor]  # of the column after the last, for numbers of 1, 2, … digits
    last: Tensor

    @property
    def width(self) -> int:
        """The number of columns before its own that a digit depends on."""
        return len(self.short)


def find_accuracy(
    failed: Mapping[Neighbourhood, Tensor], base: int, lengths: Sequence[int] = LENGTHS
) -> list[Accuracy] | None:
    """Returns the accuracy at these lengths, given for each kind of context which of its contents fail, in the order in
    which columns.py enumerates them. None where the kinds are not those of a window that looks behind only."""
    if (tables := _read_tables(failed, base)) is None:
        return None
    most = max(tables.width, MOST_WORK // tables.inner.numel())
    return _follow(tables, [length for length in lengths if length <= most])


def _read_tables(failed: Mapping[Neighbourhood, Tensor], base: int) -> _Tables | None:
    found: dict[tuple[int, bool, bool], Tensor] = {}
    for kind, wrong in failed.items():
        columns, lowest = kind.columns, min(kind.columns)
        free = [at for at in kind.answers if at < lowest]
        if columns[-1] > 0 or columns != [*range(lowest, columns[-1] + 1)] or free not in ([], [lowest - 1]):
            return None
        pairs, below = [base**2] * len(columns), [] if kind.begins else [base if free else 1, 2]
        if wrong.numel() != math.prod((*below, *pairs)):
            return None
        right = (1 - wrong.double()).view(*below, *pairs)  # enumerated with the lowest column fastest
        right = right.permute(*range(len(below)), *reversed(range(len(below), right.ndim)))
        if not kind.begins and not free:  # the digit before makes no difference
            right = right.expand(base, *right.shape[1:])
        found[-lowest, columns[-1] == 0, kind.begins] = right
    width = max((behind for behind, _, begins in found if not begins), default=0)
    wanted = [(at, True, True) for at in range(width + 1)], [(at, False, True) for at in range(1, width + 1)]
    inner, last = (width, True, False), (width, False, False)
    if not width or found.keys() != {*wanted[0], *wanted[1], inner, last}:
        return None
    first, short = ([found[key] for key in keys] for keys in wanted)
    return _Tables(base, first, found[inner], short, found[last])


def _follow(tables: _Tables, lengths: Sequence[int]) -> list[Accuracy]:
    """Follows the chain from column to column; `state` is the probability of each state without an error so far."""
    base, width, values = tables.base, tables.width, {}
    state = torch.ones((), dtype=torch.float64)
    for column in range(max(lengths, default=0)):
        right = tables.first[column] if column <= width else tables.inner  # first: all operands so far
        joint = state[..., None] / base**2 * right
        length = column + 1
        if length <= width:
            state = joint
            values[length] = float((state * tables.short[column]).sum())
        else:
            state = _drop_lowest(joint, base, begins=column == width)
            values[length] = float((state * tables.last).sum())
    return [Accuracy(length, values[length]) for length in lengths]


def _drop_lowest(joint: Tensor, base: int, begins: bool) -> Tensor:
    """Replaces the lowest column by the answer digit written there and the carry out of it."""
    # Where the answer begins, no carry comes in; elsewhere the digit before the lowest column gets out of sight.
    incoming = torch.stack((joint, torch.zeros_like(joint))) if begins else joint.sum(0)  # carry, lowest column, others
    pair = torch.arange(base**2)
    total = (pair % base + pair // base)[None] + torch.arange(2)[:, None]  # carry, lowest column
    target = (total % base * 2 + total // base).flatten()  # digit, carry
    state = joint.new_zeros(2 * base, *incoming.shape[2:])
    return state.index_add_(0, target, incoming.flatten(0, 1)).unflatten(0, (base, 2))
