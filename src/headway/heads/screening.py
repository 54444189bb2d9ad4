"""A quick look at many heads: what the gradient of the loss says that each would cost, beside what it does cost.

One pass forward and one back give the gradient at every gate. To first order a head costs minus its gradient. How far
that can be believed is measured: the heads that seem to cost most and least are ablated, and the two orders compared.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.verdicts import losses_of
from headway.heads.ablation import Effect, measure
from headway.heads.gradients import gradients_at_gates
from headway.heads.variants import Variants
from headway.models import Head
from headway.models.sites import Closed
from headway.tasks import Problems


@dataclass(frozen=True)
class Screening:
    subject: str
    examples: int
    estimates: dict[Head, float]
    """what each head would cost by the gradient, in the loss or the metric"""
    exact: dict[Head, Effect]
    """what some of them do cost"""
    gradient_of: str
    """what the gradients are of: the metric, or the loss where the metric has none"""
    correlation: float
    """of the two orders, over the heads that were closed (Spearman)"""

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "examples": self.examples,
            "rank_correlation": self.correlation,
            "heads": [
                {"head": str(head), "label": head.label, "estimate": self.estimates[head],
                 "loss_increase": self.exact[head].loss_increase if head in self.exact else None}
                for head in sorted(self.estimates, key=self.estimates.__getitem__, reverse=True)
            ],
        }  # fmt: skip

    def findings(self) -> list[str]:
        return [
            f"By the gradients of the {self.gradient_of} in one pass over {self.examples:,} problems.",
            f"{len(self.exact)} heads at both ends were closed for real: the two orders have a rank correlation of "
            f"{self.correlation:.2f}.",
        ]


def screen(variants: Variants, problems: Problems, ends: int) -> Screening:
    """All heads by the gradient, and the `ends` highest and lowest also by ablating them."""
    if ends < 1:
        raise HeadwayError(f"screen is {ends}; it must be at least 1: so many heads at each end are closed for real")
    gradient_of = _differentiated(variants)
    estimates = _estimate(variants, problems, gradient_of == "loss")
    order = sorted(estimates, key=estimates.__getitem__)
    chosen = list(dict.fromkeys([*order[:ends], *order[-ends:]]))
    closed: list[Closed] = [frozenset({head}) for head in chosen]
    effects = measure(variants, [problems], closed)[1:]
    exact = dict(zip(chosen, effects, strict=True))
    found = _spearman([estimates[head] for head in chosen], [exact[head].loss_increase for head in chosen])
    return Screening(variants.subject.name, len(problems), estimates, exact, gradient_of, found)


def _estimate(variants: Variants, problems: Problems, by_loss: bool) -> dict[Head, float]:
    """Minus the gradient of the mean cost at each head's gate."""

    def cost(logits: Tensor, batch: Problems) -> Tensor:
        return losses_of(logits, batch) if by_loss else variants.costs(logits, batch, None)

    totals: dict[Head, float] = dict.fromkeys(variants.subject.heads, 0.0)
    for gradients in gradients_at_gates(variants.subject, problems, cost):
        for head, gradient in gradients.items():
            totals[head] -= float(gradient.sum()) / len(problems)
    return totals


def _differentiated(variants: Variants) -> str:
    """What the gradients are of. A divergence is flat where nothing is closed, and a share of tokens everywhere: there
    the loss stands in."""
    metric = variants.subject.measured_by
    return "loss" if metric is None or metric.name in ("loss", "kl", "accuracy") else metric.name


def _spearman(one: list[float], other: list[float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(one, other)[0]) if len(one) > 1 else 1.0  # pyright: ignore[reportArgumentType]
