"""What it costs to take a part out: measured on the same problems with and without it.

A drop comes with a paired interval, at a level corrected for the number of heads, and a verdict against a margin:
critical where the whole interval lies above it, redundant where it lies below, unclear otherwise. That a drop is
"not significant" does not make a head redundant.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.intervals import Interval, needed_examples, tango
from headway.heads.question import Margin
from headway.heads.variants import Outcome, Variants
from headway.models.sites import Closed, Part
from headway.progress import SILENT, Watch
from headway.tasks import Problems

Verdict = Literal["critical", "redundant", "unclear"]
CONFIDENCE = 0.95
LEAST_FOR_LOSS = 500  # examples, for a normal approximation to stand


class TooWeak(HeadwayError):
    """The subject is hardly ever right: nothing can be said about its heads."""


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
        from scipy.stats import t

        reach = float(t.ppf((1 + confidence) / 2, self.examples - 1)) * self.loss_spread
        return Interval(self.loss_increase - reach, self.loss_increase + reach)


class EffectSums:
    """Adds up outcomes under variants, of which the first closes nothing; of many models by a leading axis `model`."""

    def __init__(self) -> None:
        self.examples = 0
        self.sums: dict[str, Tensor] = {}  # *model variant
        self.strata: dict[str, tuple[int, Tensor]] = {}

    def add(self, outcome: Outcome, strata: dict[str, Int[Tensor, " row"]]) -> None:
        right, whole = outcome.right, outcome.right[..., :1, :]
        increase = (outcome.loss - outcome.loss[..., :1, :]).double()
        counted = {
            "right": right.sum(-1),
            "lost": (whole & ~right).sum(-1),
            "gained": (~whole & right).sum(-1),
            "loss": outcome.loss.double().sum(-1),
            "increase": increase.sum(-1),
            "squares": increase.square().sum(-1),
        }
        self.sums = {name: value + self.sums.get(name, 0) for name, value in counted.items()}
        for name, values in strata.items():
            for value in values.unique().tolist():
                rows = values == value
                count, before = self.strata.get(f"{name}={value}", (0, 0))
                self.strata[f"{name}={value}"] = count + int(rows.sum()), before + right[..., rows].sum(-1)
        self.examples += right.shape[-1]

    def to_cpu(self) -> None:
        """Brings the sums of many models over at once."""
        self.sums = {name: value.cpu() for name, value in self.sums.items()}
        self.strata = {name: (count, right.cpu()) for name, (count, right) in self.strata.items()}

    def effects(self, closed: Sequence[Closed], member: int | EllipsisType = ...) -> list[Effect]:
        """Of the first variant, which closes nothing, and of `closed`."""
        table = {name: value[member].tolist() for name, value in self.sums.items()}
        strata = {name: (count, right[member].tolist()) for name, (count, right) in sorted(self.strata.items())}
        examples, effects = self.examples, []
        for place, parts in enumerate([frozenset[Part](), *closed]):
            mean = table["increase"][place] / examples
            variance = max(table["squares"][place] - examples * mean * mean, 0.0) / max(1, examples - 1)
            right, lost, gained = (table[name][place] for name in ("right", "lost", "gained"))
            loss, spread = table["loss"][place] / examples, math.sqrt(variance / examples)
            by_stratum = {name: (count, own[place]) for name, (count, own) in strata.items()}
            effects.append(Effect(parts, examples, right, lost, gained, loss, mean, spread, by_stratum))
        return effects


def measure(
    variants: Variants,
    chunks: Iterable[Problems],
    closed: Sequence[Closed],
    watch: Watch = SILENT,
    total: int = 0,
    measured: Callable[[Problems, Sequence[Closed]], Outcome] | None = None,
) -> list[Effect]:
    """The effect of closing each of `closed`, beside nothing, which comes first. `measured` may know outcomes."""
    tally = EffectSums()
    for chunk in chunks:
        tally.add((measured or variants)(chunk, [frozenset(), *closed]), variants.subject.strata(chunk))
        watch(tally.examples, total)
    return tally.effects(closed)


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
        self.check_count(examples)
        if baseline <= chance + self.margin.drop:
            raise TooWeak(
                f"the model is right on {baseline:.4f} of the examples, where a constant answer gets {chance:.4f}; "
                "that is too little to rank heads by what they cost: train it first"
            )

    def check_count(self, examples: int, least_for_loss: int = LEAST_FOR_LOSS) -> None:
        """Refuses where there are too few examples for a verdict."""
        needed = needed_examples(self.margin.drop, self.confidence)
        if not self.exact and self.margin.loss is None and examples < needed:
            raise HeadwayError(
                f"{examples:,} examples cannot tell a drop of {self.margin.drop:g} from none at this level; take at "
                f"least {needed:,}, or a wider `max_drop`"
            )
        if not self.exact and self.margin.loss is not None and examples < least_for_loss:
            raise HeadwayError(f"{examples:,} examples are too few for an interval of the loss; take {least_for_loss}")

    def _interval(self, effect: Effect, confidence: float) -> Interval:
        return effect.interval(confidence) if self.margin.loss is None else effect.loss_interval(confidence)

    def interval(self, effect: Effect) -> list[float] | None:
        return None if self.exact else self._interval(effect, self.confidence).to_json()

    def confirms(self, effect: Effect) -> bool:
        """Whether a removal is within the margin by its whole interval (of this one effect, at 95%)."""
        return self._interval(effect, CONFIDENCE).high < self.limit

    def verdict(self, effect: Effect) -> Verdict:
        low, high = self.interval(effect) or [self.cost(effect)] * 2
        return "critical" if low > self.limit else "redundant" if high < self.limit else "unclear"
