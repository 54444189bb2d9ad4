"""Problems, and what a task may say about them beyond their answers: plain data and functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Problems:
    """A batch of problems of one length with their right answers."""

    source: Int[Tensor, "row token"] | Float[Tensor, "row ..."]  # tokens; of a user's own model also sounds or pictures
    answer: Int[Tensor, "row answer"]
    scored: Bool[Tensor, "row answer"] | None = None  # which answer tokens count; None where all do

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: Tensor | slice) -> Problems:
        scored = None if self.scored is None else self.scored[rows]
        return Problems(self.source[rows], self.answer[rows], scored)

    def to(self, device: torch.device) -> Problems:
        scored = None if self.scored is None else self.scored.to(device)
        return Problems(self.source.to(device), self.answer.to(device), scored)

    @staticmethod
    def join(parts: list[Problems]) -> Problems:
        scored = [part.scored for part in parts if part.scored is not None]
        return Problems(
            torch.cat([part.source for part in parts]),
            torch.cat([part.answer for part in parts]),
            torch.cat(scored) if scored else None,
        )

    def replaced(self, rows: Int[Tensor, " some"], other: Problems) -> Problems:
        """These problems with these rows taken from `other`, in order."""
        place = torch.arange(len(self), device=rows.device)
        place[rows] = torch.arange(len(self), len(self) + len(rows), device=rows.device)
        return Problems.join([self, other])[place]


@dataclass(frozen=True)
class Layout:
    """What the tokens of a problem represent, where every problem has them in the same places."""

    source: tuple[int | None, ...]
    """the column of each token's digit, 0 the least significant; None for what is no digit"""
    operator: int  # the place of the operator
    answer: tuple[int, ...]  # the column of each answer token


@dataclass(frozen=True)
class Contrast:
    """Pairs of problems that differ in one thing only, to ask which heads carry it to one token of the answer."""

    kind: str  # one word
    column: int
    placebo: bool  # whether the answer token asked about stays the same
    clean: Problems
    other: Problems
    place: int  # of the answer token asked about

    @property
    def name(self) -> str:
        return f"{self.kind} {self.column}"


@dataclass(frozen=True)
class Errors:
    """What a task says about wrong answers."""

    evidence: dict[str, float | dict[str, float | None] | None]
    symptoms: tuple[tuple[str | None, str], ...] = ()  # a cause, or None where it names none, and the words for it
    summary: str | None = None  # what to say where nothing names a cause
    examples: tuple[str, ...] = ()  # a few of the problems, with what was answered


@dataclass(frozen=True)
class Columns:
    """Sums of two numbers, the digits of a, an operator, the digits of b, answered with one digit more, the ones
    first: each answer digit is that of its column and of the carry into it."""

    base: int
    plus: int  # the operator's token
    problems: Callable[[Tensor, Tensor, Tensor], Problems]
    """called with the digits of a, most significant first, operators and the digits of b"""
    operands: Callable[[Problems], tuple[Tensor, Tensor, Tensor]]  # the same of problems


@dataclass(frozen=True)
class Neighbours:
    """Sequences of the class 1 where a relation holds between every two neighbours, and of the class 0 otherwise."""

    values: int
    holds: Callable[[Tensor, Tensor], Tensor]  # called with the left one and the right one
