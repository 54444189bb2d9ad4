"""The largest set of heads that can go together under one kind of ablation, and how such a set is confirmed.

What can go under one kind of ablation need not go under another, so each set names its kind, and says what the same
heads cost when their outputs are those of other problems (resample ablation).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway.evaluation.intervals import wilson
from headway.heads.ablation import DOUBT, Effect, Judge
from headway.heads.optimum import Optimum
from headway.heads.together import Curve
from headway.models import Head
from headway.models.sites import Closed, Part


@dataclass(frozen=True)
class Removal:
    """Heads, and the effect of removing all of them."""

    heads: tuple[Head, ...]
    effect: Effect

    @property
    def count(self) -> int:
        return len(self.heads)

    @property
    def accuracy(self) -> float:
        return self.effect.accuracy

    def to_json(self, exact: bool) -> dict[str, Any]:
        """Returns the heads and the accuracy without them, with no interval where that is exact."""
        return {
            "count": self.count,
            "heads": [str(head) for head in self.heads],
            **_accuracy_json(self.effect, exact),
            "loss_increase": self.effect.loss_increase,
            "held_out": self.effect.held_out_json(),
        }


@dataclass(frozen=True)
class FoundSet:
    """The largest set that was found within the margin under one kind of ablation."""

    ablation: str
    removal: Removal
    curve: Curve
    """the order of removal that it was selected from"""
    optimum: Optimum | None = None
    resampled: Effect | None = None
    """the effect of the same heads under resample ablation; None where that was not or cannot be measured"""

    @property
    def optimal(self) -> bool:
        return self.optimum is not None and self.optimum.proved

    def to_json(self, exact: bool) -> dict[str, Any]:
        """Returns the set, with its cost under resample ablation beside that under its own kind."""
        other, best = self.resampled, self.optimum
        resample = None if other is None else {**_accuracy_json(other, exact=False), "examples": other.examples}
        return {
            "ablation": self.ablation,
            **self.removal.to_json(exact),
            "optimal": self.optimal,
            "at_most": None if best is None else best.most,
            "resample": resample,
        }

    def how_sure(self, heads: int, doing: str = "removing") -> str:
        """Says in a sentence what is known about larger sets, of a model with so many heads."""
        best = self.optimum
        if best is None:
            order = self.curve.order
            how = "in rounds" if "rounds" in order else "one by one"
            return f"Found by {doing} them {how} ({order}); a larger set may exist."
        sure = f"with confidence {best.confidence:g}"
        if not best.proved or best.checked is None:
            why = "the search ran out of time" if best.out_of_time else "sets are too close to the margin to decide"
            return f"No set of more than {best.most} heads can, {sure}; between the two {why}."
        wrong = best.checked.examples - best.checked.right
        return (
            f"No larger set can, {sure}: all {2**heads:,} sets are accounted for, and this one has "
            f"{wrong:,} wrong of {best.checked.examples:,}."
        )


def last_confirmed(effects: Iterable[Effect], judge: Judge, doubt: float = DOUBT) -> Closed:
    """Returns the last set that is confirmed before the first that is not; none where the first one fails.

    The sets come in an order fixed beforehand, on other problems (`Curve.sets_to_confirm`). A set over the margin can
    only be confirmed if the first such set in this order is, so the chance of that is at most `doubt`, however many are
    tried.
    """
    confirmed = frozenset[Part]()
    for effect in effects:
        if not judge.confirms(effect, doubt):
            break
        confirmed = effect.closed
    return confirmed


def _accuracy_json(effect: Effect, exact: bool) -> dict[str, Any]:
    interval = None if exact else wilson(effect.right, effect.examples).to_json()
    return {"accuracy": effect.accuracy, "interval": interval}
