"""A cell: how one model answered the questions of one task at one length, with its interval.

Questions of one prompt share its context, so they may go wrong together. How much is measured: where the prompts differ
by more than chance, the answers count for fewer. No model is run here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.evaluation.intervals import Interval, exact_interval, tango
from headway.evaluation.shares import BEYOND, NEARLY


@dataclass(frozen=True)
class RecallCell:
    """The answers to the questions of one task at one length."""

    task: str
    length: int
    cure: str
    factor: float
    """target over training length, which the cure is set for"""
    chance: float
    right: Bool[Tensor, "prompt question"]
    depth: Int[Tensor, "prompt question"]
    commonest: int = -1
    """the commonest answer token"""
    given: float = 0.0
    """its share among the answers, and how often it is right"""
    wanted: float = 0.0
    cannot_run: str | None = None

    @property
    def answers(self) -> int:
        return self.right.numel()

    @property
    def accuracy(self) -> float | None:
        return None if self.cannot_run is not None else float(self.right.double().mean())

    @property
    def constant(self) -> bool:
        """Whether nearly every answer is the same token, more often than it is right."""
        return self.cannot_run is None and self.given >= NEARLY and self.given > self.wanted + BEYOND

    def interval(self, confidence: float = 0.95) -> Interval | None:
        if self.cannot_run is not None:
            return None
        return _interval(self.right.double(), confidence)

    def at_depth(self, depth: int) -> tuple[int, float, Interval]:
        """Returns the number of answers at a depth, the share of right ones and its 95% interval."""
        prompts = [row[self.depth[number] == depth].double() for number, row in enumerate(self.right)]
        table = torch.stack(prompts)  # every prompt asks equally often about every depth
        return table.numel(), float(table.mean()), _interval(table, 0.95)

    def share(self, accuracy: float | None, reference: float) -> float | None:
        """Returns how much of the reference's accuracy above chance is left."""
        if accuracy is None or reference <= self.chance:
            return None
        return (accuracy - self.chance) / (reference - self.chance)


def gain(before: RecallCell, after: RecallCell, confidence: float = 0.95) -> Interval | None:
    """Returns the interval of the gain from one cell to the other, on the same questions."""
    if before.cannot_run is not None or after.cannot_run is not None:
        return None
    change = after.right.double() - before.right.double()
    known = change.numel() / _design_effect(change)
    won, lost = (float((change == sign).double().mean()) * known for sign in (1, -1))
    examples = max(1, math.floor(known))
    counts = [min(examples, round(each)) for each in (lost, won)]
    counts[1] = min(counts[1], examples - counts[0])
    drop = tango(counts[0], counts[1], examples, confidence)
    return Interval(-drop.high, -drop.low)


def corrected(tests: int) -> float:
    """Returns the confidence of each of `tests` intervals that hold together with 95% confidence."""
    return 1 - 0.05 / max(1, tests)


def _interval(right: Tensor, confidence: float) -> Interval:
    """Returns the exact interval of a share, for as many answers as are as informative as these."""
    known = right.numel() / _design_effect(right)
    examples = max(1, math.floor(known))
    return exact_interval(min(examples, round(float(right.mean()) * examples)), examples, confidence)


def _design_effect(values: Tensor) -> float:
    """Returns by how much the variance between prompts exceeds that of independent answers; at least 1."""
    prompts, questions = values.shape
    inside = float(values.var(unbiased=False))
    if prompts < 2 or questions < 2 or inside == 0:
        return 1.0
    between = float(values.mean(1).var(unbiased=True))
    return min(max(1.0, between * questions / inside), float(questions))


def count_commonest(written: Sequence[int], wanted: Sequence[int]) -> tuple[int, float, float]:
    """Returns the commonest answer token, its share, and its share among the right answers."""
    if not written:
        return -1, 0.0, 0.0
    tokens, counts = torch.tensor(written).unique(return_counts=True)
    first = int(tokens[counts.argmax()])
    return first, float(counts.max()) / len(written), sum(each == first for each in wanted) / len(wanted)
