"""A quick look at many heads: what the gradient of the loss says that each would cost, beside what it does cost.

One pass forward and one back give the gradient at every gate. To first order a head costs minus its gradient. How far
that can be believed is measured: the heads that seem to cost most and least are ablated, and the two orders compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.verdicts import losses_of
from headway.heads.ablation import Effect, measure
from headway.heads.variants import Variants
from headway.models import Gate, Head
from headway.subjects.subject import Subject
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
    from scipy.stats import spearmanr

    if ends < 1:
        raise HeadwayError(f"screen is {ends}; it must be at least 1: so many heads at each end are closed for real")
    subject, metric = variants.subject, variants.subject.measured_by
    # a divergence is flat where nothing is closed, and a share of tokens everywhere: there the loss stands in
    gradient_of = "loss" if metric is None or metric.name in ("loss", "kl", "accuracy") else metric.name

    def cost(logits: Tensor, batch: Problems) -> Tensor:
        return losses_of(logits, batch) if gradient_of == "loss" else variants.costs(logits, batch, None)

    estimates = sum_at_gates(subject, problems, cost, lambda gradient: -float(gradient.sum()) / len(problems))
    order = sorted(estimates, key=estimates.__getitem__)
    chosen = list(dict.fromkeys([*order[:ends], *order[-ends:]]))
    effects = measure(variants, [problems], [frozenset({head}) for head in chosen])[1:]
    costs = [[estimates[head] for head in chosen], [effect.loss_increase for effect in effects]]
    correlation = float(spearmanr(*costs)[0]) if len(chosen) > 1 else 1.0  # pyright: ignore[reportArgumentType]
    exact = dict(zip(chosen, effects, strict=True))
    return Screening(subject.name, len(problems), estimates, exact, gradient_of, correlation)


def sum_at_gates(
    subject: Subject, problems: Problems, cost: Callable[[Tensor, Problems], Tensor], summed: Callable[[Tensor], float]
) -> dict[Head, float]:
    """For each of a subject's heads what `summed` makes of the gradients at its gate, one for each problem of a batch,
    of a cost that is a function of the logits; added up over the batches."""
    runner, totals = subject.runner, dict.fromkeys(subject.heads, 0.0)
    for batch in runner.batches(problems):
        passed = {
            site: torch.ones(len(batch), runner.width[site], device=subject.device, requires_grad=True)
            for site in subject.sites
        }
        with torch.enable_grad():
            value = cost(runner.run(batch, {site: Gate(each) for site, each in passed.items()}), batch).sum()
            if not value.requires_grad:
                raise HeadwayError("the metric has no gradient; leave out `screen`, or take `metric=loss`")
            gradients = dict(zip(passed, torch.autograd.grad(value, list(passed.values())), strict=True))
        for head in totals:
            totals[head] += summed(gradients[head.site][:, head.number])
    return totals
