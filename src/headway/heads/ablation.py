"""Measures what removing a part costs, on the same problems with and without it.

Each drop has a paired interval, at a level corrected for everything that gets a verdict (heads, whole parts, kinds of
ablation), and a verdict against a margin: critical where the whole interval lies above it, redundant where it lies
below, unclear otherwise. A drop that is "not significant" does not make a head redundant.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.exact import HELD_OUT
from headway.evaluation.intervals import Interval, needed_examples, tango
from headway.heads.question import Margin
from headway.heads.variants import Outcome, Variants
from headway.models.sites import Closed, Part
from headway.progress import SILENT, Watch
from headway.subjects.subject import Subject
from headway.tasks import Problems

Verdict = Literal["critical", "redundant", "unclear"]
CONFIDENCE = 0.95
DOUBT = (1 - CONFIDENCE) / 2
"""the largest chance that a set over the margin is confirmed under the kind of ablation asked for; all other kinds that
a study searches share as much again, so that one study confirms such a set with a chance of at most 5%"""
LEAST_FOR_LOSS = 500  # examples, for the normal approximation to hold


class TooWeak(HeadwayError):
    """The accuracy of a subject is too low to say anything about its heads."""


@dataclass(frozen=True)
class Effect:
    """The effect of one variant, compared with the whole model problem by problem."""

    closed: Closed
    examples: int
    right: int
    lost: int
    """problems that are right with all parts and wrong without these"""
    gained: int
    loss: float
    """the mean over the problems"""
    loss_increase: float
    loss_spread: float
    """the standard error of the mean increase"""
    by_stratum: dict[str, tuple[int, int]]
    """by name=value: the number of problems, and of those that are right"""
    held_out: tuple[int, int] | None = None
    """the same for the problems that training never uses; None where that is not known"""
    whole_spread: float = 0.0
    """the standard error of the mean loss of the whole model"""
    joint_spread: float = 0.0
    """the covariance of that mean and the mean increase"""

    def held_out_json(self) -> dict[str, int] | None:
        if self.held_out is None:
            return None
        count, right = self.held_out
        return {"examples": count, "errors": count - right}

    @property
    def accuracy(self) -> float:
        return self.right / self.examples

    @property
    def drop(self) -> float:
        return (self.lost - self.gained) / self.examples

    def interval(self, confidence: float) -> Interval:
        return tango(self.lost, self.gained, self.examples, confidence)

    @property
    def whole_loss(self) -> float:
        """The mean loss of the whole model, on the same problems."""
        return self.loss - self.loss_increase

    def loss_interval(self, confidence: float, share: float = 0.0) -> Interval:
        """Returns an interval of the mean increase. With `share`, the margin is that share of the whole model's loss,
        which is measured on the same problems and is uncertain as well: then the interval is of the increase minus the
        margin, problem by problem, drawn around the increase."""
        from scipy.stats import t

        variance = self.loss_spread**2 - 2 * share * self.joint_spread + (share * self.whole_spread) ** 2
        half = float(t.ppf((1 + confidence) / 2, self.examples - 1)) * math.sqrt(max(variance, 0.0))
        return Interval(self.loss_increase - half, self.loss_increase + half)


class EffectSums:
    """Sums outcomes over problems; the first variant closes nothing. Many models have a leading axis `model`."""

    def __init__(self) -> None:
        self.examples = 0
        self.sums: dict[str, Tensor] = {}  # *model variant
        self.strata: dict[str, tuple[int, Tensor]] = {}

    def add(self, outcome: Outcome, strata: dict[str, Int[Tensor, " row"]]) -> None:
        right, whole = outcome.right, outcome.right[..., :1, :]
        increase, base = (outcome.loss - outcome.loss[..., :1, :]).double(), outcome.loss[..., :1, :].double()
        counted = {
            "right": right.sum(-1),
            "lost": (whole & ~right).sum(-1),
            "gained": (~whole & right).sum(-1),
            "loss": outcome.loss.double().sum(-1),
            "increase": increase.sum(-1),
            "squares": increase.square().sum(-1),
            "whole squares": base.square().sum(-1).expand_as(increase[..., 0]),
            "products": (base * increase).sum(-1),
        }
        self.sums = {name: value + self.sums.get(name, 0) for name, value in counted.items()}
        for name, values in strata.items():
            for value in values.unique().tolist():
                rows = values == value
                count, before = self.strata.get(f"{name}={value}", (0, 0))
                self.strata[f"{name}={value}"] = count + int(rows.sum()), before + right[..., rows].sum(-1)
        self.examples += right.shape[-1]

    def to_cpu(self) -> None:
        """Copies the sums of all models to the CPU at once."""
        self.sums = {name: value.cpu() for name, value in self.sums.items()}
        self.strata = {name: (count, right.cpu()) for name, (count, right) in self.strata.items()}

    def effects(self, closed: Sequence[Closed], member: int | EllipsisType = ...) -> list[Effect]:
        """Returns the effect of the first variant, which closes nothing, and of each of `closed`."""
        table = {name: value[member].tolist() for name, value in self.sums.items()}
        strata = {name: (count, right[member].tolist()) for name, (count, right) in sorted(self.strata.items())}
        examples, effects = self.examples, []
        for place, parts in enumerate([frozenset[Part](), *closed]):
            mean, whole = table["increase"][place] / examples, table["loss"][0] / examples
            squares = [table[name][place] for name in ("squares", "whole squares", "products")]
            means = zip(squares, (mean * mean, whole * whole, mean * whole), strict=True)
            scale = examples * max(1, examples - 1)
            own, base, joint = ((square - examples * product) / scale for square, product in means)
            right, lost, gained = (table[name][place] for name in ("right", "lost", "gained"))
            loss, spreads = table["loss"][place] / examples, [math.sqrt(max(each, 0.0)) for each in (own, base)]
            by_stratum = {name: (count, own[place]) for name, (count, own) in strata.items()}
            held_out = by_stratum.pop(f"{HELD_OUT}=1", None)
            if by_stratum.pop(f"{HELD_OUT}=0", None) is not None:
                held_out = held_out or (0, 0)
            counts, also = (examples, right, lost, gained), (by_stratum, held_out, spreads[1], joint)
            effects.append(Effect(parts, *counts, loss, mean, spreads[0], *also))
        return effects


def strata_of(subject: Subject, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
    """Returns the strata of problems, and which of them training never uses, where the subject says so."""
    if subject.held_out is None:
        return subject.strata(problems)
    return {**subject.strata(problems), HELD_OUT: subject.held_out(problems).long()}


def measure(
    variants: Variants,
    chunks: Iterable[Problems],
    closed: Sequence[Closed],
    watch: Watch = SILENT,
    total: int = 0,
    run: Callable[[Problems, Sequence[Closed]], Outcome] | None = None,
) -> list[Effect]:
    """Measures the effect of closing nothing, then of closing each of `closed`; `run` may replace `variants`."""
    sums = EffectSums()
    for chunk in chunks:
        sums.add((run or variants)(chunk, [frozenset(), *closed]), strata_of(variants.subject, chunk))
        watch(sums.examples, total)
    return sums.effects(closed)


@dataclass(frozen=True)
class Judge:
    """Gives verdicts on effects; `exact` says that every possible problem was tested."""

    margin: Margin
    comparisons: int
    """the number of verdicts of the study: of heads and whole parts, under every kind of ablation"""
    exact: bool

    @property
    def confidence(self) -> float:
        """The confidence of each interval, such that all of them hold at once with 95%."""
        return 1 - (1 - CONFIDENCE) / self.comparisons

    def limit(self, effect: Effect) -> float:
        """Returns the largest cost allowed on the problems of this effect."""
        return self.margin.limit(effect.whole_loss)

    def cost(self, effect: Effect) -> float:
        """Returns the cost that the margin limits: the drop in accuracy, or the increase in loss."""
        return effect.loss_increase if self.margin.by_loss else effect.drop

    def is_cheap(self, effect: Effect) -> bool:
        """Whether the cost is below the margin, whatever the interval."""
        return self.cost(effect) < self.limit(effect)

    def check_share(self, whole: float, metric: str) -> None:
        """Raises where a share of the loss of the whole model is no margin, as that loss is not above 0."""
        if self.margin.share is not None and not 0 < whole < math.inf:
            raise HeadwayError(
                f"the whole model's {metric} is {whole:.4g}, and a share of that is no margin; give an amount such as "
                "`max_loss_increase=0.01`"
            )

    def check(self, examples: int, baseline: float, chance: float) -> None:
        """Raises where no verdict could be given; `chance` is the accuracy of the best constant answer."""
        self.check_count(examples)
        if baseline <= chance + self.margin.drop:
            raise TooWeak(
                f"the accuracy of the model is {baseline:.4f}, and a constant answer reaches {chance:.4f}; that is too "
                "little to rank heads by their cost: train it first"
            )

    def check_count(self, examples: int, least_for_loss: int = LEAST_FOR_LOSS) -> None:
        """Raises where there are too few examples for a verdict."""
        needed = needed_examples(self.margin.drop, self.confidence)
        if not self.exact and not self.margin.by_loss and examples < needed:
            raise HeadwayError(
                f"{examples:,} examples cannot distinguish a drop of {self.margin.drop:g} from none; use at least "
                f"{needed:,}, or a larger `max_drop`"
            )
        if not self.exact and self.margin.by_loss and examples < least_for_loss:
            raise HeadwayError(f"{examples:,} examples are too few for an interval of the loss; use {least_for_loss}")

    def _interval(self, effect: Effect, confidence: float) -> Interval:
        if self.margin.by_loss:
            return effect.loss_interval(confidence, self.margin.share or 0.0)
        return effect.interval(confidence)

    def interval(self, effect: Effect) -> list[float] | None:
        return None if self.exact else self._interval(effect, self.confidence).to_json()

    def confirms(self, effect: Effect, doubt: float = DOUBT) -> bool:
        """Whether this one effect is within the margin; it says so of one over the margin with chance `doubt`."""
        return self._interval(effect, 1 - 2 * doubt).high < self.limit(effect)

    def verdict(self, effect: Effect) -> Verdict:
        low, high = self.interval(effect) or [self.cost(effect)] * 2
        limit = self.limit(effect)
        return "critical" if low > limit else "redundant" if high < limit else "unclear"
