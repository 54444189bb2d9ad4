"""A quick look at many heads: what the loss's slope says that each would cost, held against the cost itself.

One pass forward and one back give the slope at every gate. To first order a head costs minus its slope. How far that
can be believed is measured: the heads that seem to cost most and least are closed for real, and the orders compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.evaluation.verdicts import losses_of
from headway.heads.ablation import Effect, measure
from headway.heads.variants import Variants
from headway.models import Gate, Head
from headway.models.sites import Closed
from headway.tasks import Problems


@dataclass(frozen=True)
class Screening:
    subject: str
    examples: int
    estimates: dict[Head, float]
    """what each head would cost by the slope, in the loss or the metric"""
    exact: dict[Head, Effect]
    """what some of them do cost"""
    slope_of: str
    """what the slopes are of: the metric, or the loss where the metric has none"""
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
            f"By the slopes of the {self.slope_of} in one pass over {self.examples:,} problems.",
            f"{len(self.exact)} heads at both ends were closed for real: the two orders have a rank correlation of "
            f"{self.correlation:.2f}.",
        ]


def screen(variants: Variants, problems: Problems, ends: int) -> Screening:
    """All heads by the slope, and the `ends` that seem to cost most and least by closing them."""
    if ends < 1:
        raise HeadwayError(f"screen is {ends}; it must be at least 1: so many heads at each end are closed for real")
    estimates = estimated(variants, problems)
    order = sorted(estimates, key=estimates.__getitem__)
    chosen = list(dict.fromkeys([*order[:ends], *order[-ends:]]))
    closed: list[Closed] = [frozenset({head}) for head in chosen]
    effects = measure(variants, [problems], closed)[1:]
    exact = dict(zip(chosen, effects, strict=True))
    found = _spearman([estimates[head] for head in chosen], [exact[head].loss_increase for head in chosen])
    return Screening(variants.subject.name, len(problems), estimates, exact, _sloped(variants), found)


def estimated(variants: Variants, problems: Problems) -> dict[Head, float]:
    """Minus the slope of the mean loss at each head's gate."""
    subject, flat = variants.subject, _sloped(variants) == "loss"
    totals: dict[Head, float] = dict.fromkeys(subject.heads, 0.0)
    for batch in subject.runner.batches(problems):
        passed = {site: torch.ones(1, variants.width[site], device=subject.device) for site in subject.sites}
        for gate in passed.values():
            gate.requires_grad_()
        with torch.enable_grad():
            logits = subject.runner.run(batch, {site: Gate(gate) for site, gate in passed.items()})
            costs = losses_of(logits, batch) if flat else variants.costs(logits, batch, None)
            value = costs.sum()
            if not value.requires_grad:
                raise HeadwayError("the metric has no slope; leave out `screen`, or take `metric=loss`")
            slopes = torch.autograd.grad(value, list(passed.values()))
        for site, slope in zip(passed, slopes, strict=True):
            for number, size in enumerate(slope[0].tolist()):
                if Head(site, number) in totals:
                    totals[Head(site, number)] -= size / len(problems)
    return totals


def _sloped(variants: Variants) -> str:
    """A divergence is flat where nothing is closed, and a share of tokens everywhere: there the loss stands in."""
    metric = variants.subject.measured_by
    return "loss" if metric is None or metric.name in ("loss", "kl", "accuracy") else metric.name


def _spearman(one: list[float], other: list[float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(one, other)[0]) if len(one) > 1 else 1.0  # pyright: ignore[reportArgumentType]
