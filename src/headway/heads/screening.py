"""Screens many heads quickly: estimates what each would cost by the gradient of the loss, and checks the estimate.

One forward and one backward pass give the gradient at every gate. To first order a head costs minus its gradient. To
measure how reliable that is, the k highest and the k lowest heads are ablated, and the two rankings are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.verdicts import losses_of
from headway.heads.ablation import Effect, measure
from headway.heads.question import WindowSize
from headway.heads.variants import Variants
from headway.models import Gate, Head
from headway.models.sites import Narrowing
from headway.subjects.subject import Subject
from headway.tasks import Problems


@dataclass(frozen=True)
class Screening:
    subject: str
    examples: int
    estimates: dict[Head, float]
    """the cost of each head by the gradient, in the loss or the metric"""
    exact: dict[Head, Effect]
    """the measured effect of those that were ablated"""
    gradient_of: str
    """the name of what was differentiated: the metric, or the loss where the metric has no gradient"""
    correlation: float
    """Spearman's rank correlation of estimate and measurement, over the heads that were ablated"""

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
            f"Estimated by the gradients of the {self.gradient_of} in one pass over {self.examples:,} problems.",
            f"The {len(self.exact)} heads with the highest and lowest estimates were ablated: the rank correlation of "
            f"estimate and measured cost is {self.correlation:.2f}.",
        ]


def screen(variants: Variants, problems: Problems, ends: int) -> Screening:
    """Estimates the cost of all heads by the gradient, and ablates the `ends` highest and the `ends` lowest."""
    from scipy.stats import spearmanr

    if ends < 1:
        raise HeadwayError(f"screen is {ends}; it must be at least 1: the number of heads to ablate at each end")
    subject, metric = variants.subject, variants.subject.measured_by
    # the gradient of a divergence is zero where nothing is closed, that of a share of tokens everywhere: use the loss
    gradient_of = "loss" if metric is None or metric.name in ("loss", "kl", "accuracy") else metric.name

    def cost(logits: Tensor, batch: Problems) -> Tensor:
        return losses_of(logits, batch) if gradient_of == "loss" else variants.costs(logits, batch, None)

    def mean(gradient: Tensor) -> float:
        return -float(gradient.sum()) / len(problems)

    estimates = sum_gate_gradients(subject, problems, cost, mean, variants.ablation.window)
    ranking = sorted(estimates, key=estimates.__getitem__)
    chosen = list(dict.fromkeys([*ranking[:ends], *ranking[-ends:]]))
    effects = measure(variants, [problems], [frozenset({head}) for head in chosen])[1:]
    costs = [[estimates[head] for head in chosen], [effect.loss_increase for effect in effects]]
    correlation = float(spearmanr(*costs)[0]) if len(chosen) > 1 else 1.0  # pyright: ignore[reportArgumentType]
    exact = dict(zip(chosen, effects, strict=True))
    return Screening(subject.name, len(problems), estimates, exact, gradient_of, correlation)


def sum_gate_gradients(
    subject: Subject,
    problems: Problems,
    cost: Callable[[Tensor, Problems], Tensor],
    reduce: Callable[[Tensor], float],
    window: WindowSize | None = None,
) -> dict[Head, float]:
    """Sums over batches, for each head of a subject, what `reduce` makes of the gradients at its gate, one for each
    problem of a batch; `cost` is the function of the logits to differentiate. A closed gate narrows a head to `window`,
    if there is one."""

    def narrowing(heads: int) -> Narrowing | None:
        if window is None:
            return None
        return Narrowing(window.sink, torch.full((1, heads), window.recent, device=subject.device))

    runner, totals = subject.runner, dict.fromkeys(subject.heads, 0.0)
    for batch in runner.batches(problems):
        passed = {
            site: torch.ones(len(batch), runner.width[site], device=subject.device, requires_grad=True)
            for site in dict.fromkeys(head.site for head in subject.heads)
        }
        gates = {site: Gate(each, narrowing=narrowing(each.shape[1])) for site, each in passed.items()}
        with torch.enable_grad():
            value = cost(runner.run(batch, gates), batch).sum()
            if not value.requires_grad:
                raise HeadwayError("the metric has no gradient; leave out `screen`, or use `metric=loss`")
            gradients = dict(zip(passed, torch.autograd.grad(value, list(passed.values())), strict=True))
        for head in totals:
            totals[head] += reduce(gradients[head.site][:, head.number])
    return totals
