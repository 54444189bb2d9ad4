"""Batches of problems, what a task may declare about them, and descriptions of the errors in a model's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Answers = Int[Tensor, "row answer"]
Swap = Literal["both", "source", "prefix"]
Evidence = dict[str, float | dict[str, float | None] | None]
NOT_A_DIGIT = -9  # as the column of a token
SHOWN = 3  # problems shown as examples


@dataclass(frozen=True)
class Problems:
    """A batch of problems of one length with their right answers."""

    source: Int[Tensor, "row token"] | Float[Tensor, "row ..."]  # tokens; for a user's model also audio or images
    answer: Answers
    scored: Bool[Tensor, "row answer"] | None = None  # which answer tokens count; None if all do

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
        source, answer = torch.cat([part.source for part in parts]), torch.cat([part.answer for part in parts])
        return Problems(source, answer, torch.cat(scored) if scored else None)

    def replace_rows(self, rows: Int[Tensor, " some"], other: Problems) -> Problems:
        """Returns a copy with these rows taken from `other`, in order."""
        place = torch.arange(len(self), device=rows.device)
        place[rows] = torch.arange(len(self), len(self) + len(rows), device=rows.device)
        return Problems.join([self, other])[place]


@dataclass(frozen=True)
class Layout:
    """The meaning of each token, for tasks whose sources all have the same layout."""

    source: tuple[int | None, ...]  # the column of each digit, 0 the least significant; None for other tokens
    operator: int  # the position of the operator
    answer: tuple[int | None, ...]  # the column of each answer token; None for other tokens
    columns_of: Callable[[Problems], Int[Tensor, "row answer"]] | None = None
    """the column of each answer token, `NOT_A_DIGIT` for other tokens, where that differs from problem to problem"""


@dataclass(frozen=True)
class Contrast:
    """Pairs of problems that differ in one thing only; patching shows which heads carry it to one answer token."""

    kind: str  # one word
    column: int
    placebo: bool  # whether the answer token in question stays the same
    clean: Problems
    other: Problems
    place: int  # position of the answer token in question
    swap: Swap = "both"
    """what a patch takes from the other problem: its source and the answer tokens before the one in question (the
    prefix, which a decoder reads), or only one of the two"""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.column}" + ("" if self.swap == "both" else f" {self.swap}")

    def donors(self, own: Problems, other: Problems) -> Problems:
        """Returns the inputs that a patch of `own` is taken from."""
        source, answer = (own if self.swap == kept else other for kept in ("prefix", "source"))
        return Problems(source.source, answer.answer, own.scored)


@dataclass(frozen=True)
class Errors:
    """A task's description of wrong answers."""

    evidence: Evidence
    symptoms: tuple[tuple[str | None, str], ...] = ()  # a cause, or None, and a sentence
    summary: str | None = None  # used where no symptom names a cause
    examples: tuple[str, ...] = ()  # a few problems with the model's answers


@dataclass(frozen=True)
class Columns:
    """Sums given as the digits of a, an operator and the digits of b, answered with one digit more, the ones first:
    each answer digit depends on its column and the carry into it."""

    base: int
    plus: int  # the operator's token
    problems: Callable[[Tensor, Tensor, Tensor], Problems]  # called with a (most significant digit first), operators, b
    operands: Callable[[Problems], tuple[Tensor, Tensor, Tensor]]  # the inverse


@dataclass(frozen=True)
class Neighbours:
    """Sequences of class 1 if a relation holds between all adjacent tokens, and of class 0 otherwise."""

    values: int
    holds: Callable[[Tensor, Tensor], Tensor]  # called with the left and the right token


def token_errors(
    problems: Problems, written: Answers, trained: int, nouns: tuple[str, str, str], ends: bool, backwards: bool = False
) -> Errors:
    """Describes wrong tokens up to place `trained`, the last one in training, and past it. Answers with an end token
    have no such places; `backwards` counts places from the last token."""
    whole, tokens, place = nouns
    wrong = written != problems.answer
    if problems.scored is not None:
        wrong &= problems.scored
    if backwards:
        wrong = wrong.flip(1)
    bad = wrong.any(1)
    share, inside = float(wrong.float().mean()), float(wrong[:, :trained].float().mean())
    past = float(wrong[:, trained:].float().mean()) if wrong.shape[1] > trained else None
    first = int(wrong[bad].int().argmax(1).median()) + 1 if bad.any() else None
    symptoms = list[tuple[str | None, str]]()
    if ends or past is None:
        symptoms.append((None, f"{share:.1%} of all {tokens} are wrong"))
    elif past > 2 * inside:
        words = f"{past:.1%} of the {tokens} past {place} {trained} are wrong, {inside:.1%} of those up to it"
        symptoms.append((f"{place}s past training", words))
    elif wrong.any():
        words = f"{inside:.1%} of the {tokens} up to {place} {trained} are wrong, {past:.1%} of those past it"
        symptoms.append((None, words))
    if first is not None and not ends:
        symptoms.append((None, f"the first error of a wrong {whole} is in {place} {first} (median)"))
    evidence: Evidence = {
        f"{tokens}_wrong": share,
        f"{tokens}_wrong_in_trained_{place}s": inside,
        f"{tokens}_wrong_past_them": past,
        f"first_wrong_{place}": first,
    }
    rows = bad.nonzero()[:SHOWN, 0].tolist()
    examples = tuple(_show_difference(problems.answer[row], written[row], tokens[:-1]) for row in rows)
    return Errors(evidence, tuple(symptoms), None, examples)


def _show_difference(answer: Tensor, written: Tensor, token: str) -> str:
    """Shows the tokens around the first wrong one, in the order of the answer."""
    place = int((answer != written).int().argmax())
    near = slice(max(0, place - 3), place + 4)
    right, wrong = (" ".join(map(str, each[near].tolist())) for each in (answer, written))
    return f"from {token} {near.start} of the answer as written: expected {right}, got {wrong}"


def class_errors(problems: Problems, written: Answers, classes: int) -> Errors:
    """Describes wrong answers by their share among the problems of each class."""
    wrong, right = (written != problems.answer)[:, 0], problems.answer[:, 0]
    by_class = {str(n): share(wrong, right == n) for n in range(classes) if (right == n).any()}
    words = ", ".join(f"{percent(value)} of class {name}" for name, value in by_class.items())
    more = " …" if problems.source.shape[1] > 12 else ""
    examples = tuple(
        f"{' '.join(map(str, problems.source[row, :12].tolist()))}{more}: class {right[row]}, not {written[row, 0]}"
        for row in wrong.nonzero()[:SHOWN, 0].tolist()
    )
    return Errors({"wrong_by_class": by_class}, summary=f"wrong on {words}", examples=examples)


def share(part: Tensor, of: Tensor) -> float | None:
    """Returns the share of the rows `of` that are also in `part`; None if there are none."""
    return float((part & of).sum() / of.sum()) if of.any() else None


def percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f}%"
