"""The metrics of a subject other than exact match: a cost for each problem, larger where the answer is worse.

Only the scored answer tokens count.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.evaluation.verdicts import losses_of, mean_of_scored, tokens_wrong
from headway.plugins import load_function
from headway.runs.metrics import COSTS
from headway.tasks import Problems

Cost = Callable[[Tensor, Problems, Tensor | None], Tensor]
"""Takes logits, problems and, where needed, the logits with all heads open; returns a cost for each problem."""


@dataclass(frozen=True)
class Metric:
    name: str
    cost: Cost
    margin: float  # the increase that is negligible by default
    description: str = ""  # the cost in words, where the name does not say it
    needs_whole: bool = False  # whether it compares the logits with those of the whole model


def kl_divergence(logits: Tensor, problems: Problems, whole: Tensor | None) -> Tensor:
    """Returns the KL divergence of the answers from those with all heads open, in nats."""
    assert whole is not None
    before, after = whole.float().log_softmax(-1), logits.float().log_softmax(-1)
    return mean_of_scored((before.exp() * (before - after)).sum(-1), problems)


def negative_logit_difference(logits: Tensor, problems: Problems, _: Tensor | None) -> Tensor:
    """Returns the logit of the wrong answer, the second token of each answer, minus that of the right one."""
    if problems.answer.shape[1] < 2 or bool((problems.answer[:, 1] < 0).any()):
        raise HeadwayError("a logit difference needs a wrong answer for each right one; give 'wrong' with each problem")
    right, wrong = problems.answer[:, :1], problems.answer[:, 1:2]
    first = logits[:, 0]
    return (first.gather(1, wrong) - first.gather(1, right))[:, 0].float()


METRICS = {
    "loss": Metric("loss", lambda logits, problems, _: losses_of(logits, problems), 0.01),
    "accuracy": Metric("accuracy", lambda logits, problems, _: tokens_wrong(logits, problems), 0.01, COSTS["accuracy"]),
    "kl": Metric("kl", kl_divergence, 0.01, COSTS["kl"], needs_whole=True),
    "logit-difference": Metric("logit-difference", negative_logit_difference, 0.1, COSTS["logit-difference"]),
}


def find_metric(name: str) -> Metric | None:
    """Returns the metric of that name, or loads a user's from `file.py:function`; None means exact match."""
    if name == "exact":
        return None
    if ":" in name:
        return metric_from_function(load_function(name))
    if name not in METRICS:
        raise unknown("metric", name, ["exact", *METRICS])
    return METRICS[name]


def metric_from_function(function: Callable[[Tensor, Problems], Tensor], margin: float = 0.01) -> Metric:
    """Makes a metric of a user's function of logits and problems, which returns a cost for each problem."""
    name = getattr(function, "__name__", "own")

    def cost(logits: Tensor, problems: Problems, _: Tensor | None) -> Tensor:
        found = torch.as_tensor(function(logits, problems))
        if found.shape != (len(problems),):
            raise HeadwayError(f"the metric {name} returned {tuple(found.shape)}; return a number for each problem")
        return found.float()

    return Metric(name, cost, margin)
