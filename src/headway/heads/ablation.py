"""What it costs to take a part out: measured on the same problems with and without it.

A drop comes with a paired interval, at a level corrected for the number of heads, and a verdict against a margin:
critical where the whole interval lies above it, redundant where it lies below, unclear otherwise. That a drop is
"not significant" does not make a head redundant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.exact import Watch
from headway.evaluation.intervals import Interval, needed_examples, tango
from headway.heads.variants import Closed, Variants
from headway.tasks import Problems

Verdict = Literal["critical", "redundant", "unclear"]
CONFIDENCE = 0.95
LEAST_FOR_LOSS = 500  # examples, for a normal approximation to stand


@dataclass(frozen=True)
class Margin:
    """How much a removal may cost: in accuracy, or in loss."""

    drop: float = 0.01
    loss: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.drop < 1:
            raise HeadwayError(f"max_drop is {self.drop}; it must lie between 0 and 1, such as 0.01")
        if self.loss is not None and not 0 < self.loss < math.inf:
            raise HeadwayError(f"max_loss_increase is {self.loss}; it must be above 0")


@dataclass(frozen=True)
class Effect:
    """One variant beside the whole model, problem by problem."""

    closed: Closed
    examples: int
    right: int
    lost: int
    """right before and wrong without the parts"""
    gained: int
    loss: float
    """mean over the problems"""
    loss_increase: float
    loss_spread: float
    """standard error of the mean increase"""
    by_stratum: dict[str, tuple[int, int]]
    """name=value: problems, right ones"""

    @property
    def accuracy(self) -> float:
        return self.right / self.examples

    @property
    def drop(self) -> float:
        return (self.lost - self.gained) / self.examples

    def interval(self, confidence: float) -> Interval:
        return tango(self.lost, self.gained, self.examples, confidence)

    def loss_interval(self, confidence: float) -> Interval:
        from scipy.stats import norm

        reach = float(norm.ppf((1 + confidence) / 2)) * self.loss_spread
        return Interval(self.loss_increase - reach, self.loss_increase + reach)


def measure(
    variants: Variants,
    chunks: Iterable[Problems],
    closed: Sequence[Closed],
    base: Closed = frozenset(),
    watch: Watch | None = None,
    total: int = 0,
) -> list[Effect]:
    """The effect of closing each of `closed`, beside `base` alone."""
    wanted = [frozenset[Any](), *closed]
    sums: dict[str, Tensor] = {}
    strata: dict[str, tuple[int, Tensor]] = {}
    examples = 0
    for chunk in chunks:
        outcome = variants(chunk, wanted, base)
        whole, increase = outcome.right[0], (outcome.loss - outcome.loss[0]).double()
        counted = {
            "right": outcome.right.sum(1),
            "lost": (whole & ~outcome.right).sum(1),
            "gained": (~whole & outcome.right).sum(1),
            "loss": outcome.loss.double().sum(1),
            "increase": increase.sum(1),
            "squares": increase.square().sum(1),
        }
        sums = {name: sums[name] + value if name in sums else value for name, value in counted.items()}
        for name, values in variants.subject.strata(chunk).items():
            for value in values.unique().tolist():
                rows = values == value
                before = strata.get(f"{name}={value}", (0, torch.zeros_like(sums["right"])))
                strata[f"{name}={value}"] = (before[0] + int(rows.sum()), before[1] + outcome.right[:, rows].sum(1))
        examples += len(chunk)
        if watch is not None:
            watch(examples, total)
    table = {name: value.tolist() for name, value in sums.items()}
    effects = []
    for place, parts in enumerate(wanted):
        mean = table["increase"][place] / examples
        variance = max(table["squares"][place] - examples * mean * mean, 0.0) / max(1, examples - 1)
        effects.append(
            Effect(
                parts,
                examples,
                int(table["right"][place]),
                int(table["lost"][place]),
                int(table["gained"][place]),
                table["loss"][place] / examples,
                mean,
                math.sqrt(variance / examples),
                {name: (count, int(right[place])) for name, (count, right) in sorted(strata.items())},
            )
        )
    return effects


@dataclass(frozen=True)
class Judge:
    """Gives verdicts; `exact` where every problem there is was looked at."""

    margin: Margin
    comparisons: int
    exact: bool

    @property
    def confidence(self) -> float:
        """Of each interval, so that all of them hold together with 95%."""
        return 1 - (1 - CONFIDENCE) / self.comparisons

    @property
    def limit(self) -> float:
        return self.margin.drop if self.margin.loss is None else self.margin.loss

    def cost(self, effect: Effect) -> float:
        """What the margin is about: the drop in accuracy, or the increase in loss."""
        return effect.drop if self.margin.loss is None else effect.loss_increase

    def check(self, examples: int, baseline: float, chance: float) -> None:
        """Refuses where no verdict could be given; `chance` is what the best constant answer gets."""
        needed = needed_examples(self.margin.drop, self.confidence)
        if not self.exact and self.margin.loss is None and examples < needed:
            raise HeadwayError(
                f"{examples:,} examples cannot tell a drop of {self.margin.drop:g} from none at this level; take at "
                f"least {needed:,}, or a wider --max-drop"
            )
        if not self.exact and self.margin.loss is not None and examples < LEAST_FOR_LOSS:
            raise HeadwayError(f"{examples:,} examples are too few for an interval of the loss; take {LEAST_FOR_LOSS}")
        if baseline <= chance + self.margin.drop:
            raise HeadwayError(
                f"the model is right on {baseline:.4f} of the examples, where a constant answer gets {chance:.4f}; "
                "that is too little to rank heads by what they cost: train it first"
            )

    def interval(self, effect: Effect) -> Interval | None:
        if self.exact:
            return None
        if self.margin.loss is not None:
            return effect.loss_interval(self.confidence)
        return effect.interval(self.confidence)

    def verdict(self, effect: Effect) -> Verdict:
        found = self.interval(effect) or Interval(self.cost(effect), self.cost(effect))
        if found.low > self.limit:
            return "critical"
        return "redundant" if found.high < self.limit else "unclear"
