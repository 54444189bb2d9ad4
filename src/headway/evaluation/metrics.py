"""What a subject is measured by, besides whole answers right: a number for each problem, larger where it is worse.

Only the positions that matter are looked at: the scored answer tokens.
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
"""Called with logits, problems and, where asked for, the logits with all heads open: a cost for each problem."""


@dataclass(frozen=True)
class Metric:
    name: str
    cost: Cost
    margin: float  # how much more of it is taken for nothing, where nothing else is said
    says: str = ""  # what the cost is, in words; the name where that is it
    beside_whole: bool = False  # whether it holds the logits against those with all heads open


def divergence(logits: Tensor, problems: Problems, whole: Tensor | None) -> Tensor:
    """How far the answers' distributions are from those with all heads open: KL, in nats."""
    assert whole is not None
    before, after = whole.float().log_softmax(-1), logits.float().log_softmax(-1)
    return mean_of_scored((before.exp() * (before - after)).sum(-1), problems)


def margin_lost(logits: Tensor, problems: Problems, _: Tensor | None) -> Tensor:
    """How far the wrong answer is above the right one: the logit difference, turned; `wrong` stands behind the right
    tokens in the answers."""
    if problems.answer.shape[1] < 2 or bool((problems.answer[:, 1] < 0).any()):
        raise HeadwayError("a logit difference needs a wrong answer beside each right one; give 'wrong' with each")
    right, wrong = problems.answer[:, :1], problems.answer[:, 1:2]
    first = logits[:, 0]
    return (first.gather(1, wrong) - first.gather(1, right))[:, 0].float()


METRICS = {
    "loss": Metric("loss", lambda logits, problems, _: losses_of(logits, problems), 0.01),
    "accuracy": Metric("accuracy", lambda logits, problems, _: tokens_wrong(logits, problems), 0.01, COSTS["accuracy"]),
    "kl": Metric("kl", divergence, 0.01, COSTS["kl"], beside_whole=True),
    "logit-difference": Metric("logit-difference", margin_lost, 0.1, COSTS["logit-difference"]),
}


def metric_named(name: str) -> Metric | None:
    """The metric of that name, or a user's own as `file.py:function`; None for exact match, which needs none."""
    if name == "exact":
        return None
    if ":" in name:
        return own_metric(load_function(name))
    if name not in METRICS:
        raise unknown("metric", name, ["exact", *METRICS])
    return METRICS[name]


def own_metric(function: Callable[[Tensor, Problems], Tensor], margin: float = 0.01) -> Metric:
    """A user's function of logits and problems, which returns a cost for each problem."""
    name = getattr(function, "__name__", "own")

    def cost(logits: Tensor, problems: Problems, _: Tensor | None) -> Tensor:
        found = torch.as_tensor(function(logits, problems))
        if found.shape != (len(problems),):
            raise HeadwayError(f"the metric {name} returned {tuple(found.shape)}; return a number for each problem")
        return found.float()

    return Metric(name, cost, margin)
