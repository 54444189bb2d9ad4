"""Verdicts and losses as functions of logits and problems alone.

Only the scored answer tokens count.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.tasks import Problems

IGNORED = -100  # the target of an answer token that does not count

NARROW = {torch.bfloat16: 2.0, torch.float32: 0.1}
"""margins that a pass in this precision does not decide; results/populations.md has the measured differences with all
heads open (up to 0.11 in bfloat16). With heads closed, as in the search of all sets, bfloat16 moves margins further,
which tests/heads/test_kinds_of_ablation.py holds below the 2 used here (measured there: 0.04 open, 0.55 with 300
random sets closed)"""

Logits = Float[Tensor, "row answer token"]


def same_answer(written: Int[Tensor, "*model row answer"], problems: Problems) -> Bool[Tensor, "*model row"]:
    """Says which written answers are right, up to the end token where there is one."""
    return _all_scored(written == problems.answer, problems)


def right(logits: Logits, problems: Problems) -> Bool[Tensor, " row"]:
    """Says which problems have every scored answer token right."""
    return same_answer(logits.argmax(-1), problems)


def right_or_tied(logits: Logits, problems: Problems) -> Bool[Tensor, " row"]:
    """Says which problems have no token likelier than the right one; much faster over a large vocabulary."""
    answer = problems.answer.clamp(min=0)
    if logits.shape[:2] != answer.shape or int(answer.max()) >= logits.shape[-1]:
        return torch.zeros(len(problems), dtype=torch.bool, device=logits.device)  # the model does not answer in tokens
    return _all_scored(logits.gather(-1, answer[..., None])[..., 0] >= logits.amax(-1), problems)


def margins(logits: Logits, problems: Problems) -> Float[Tensor, " row"]:
    """Returns the lead of the right token over the best other one, where that is smallest among the scored tokens."""
    each = leads(logits, problems.answer)
    return (each if problems.scored is None else each.masked_fill(~problems.scored, torch.inf)).amin(-1)


def leads(logits: Logits, answer: Int[Tensor, "row answer"]) -> Float[Tensor, "row answer"]:
    """Returns the lead of the right token over the best other one."""
    target = answer.long()[..., None]
    return logits.gather(-1, target)[..., 0] - logits.scatter(-1, target, -torch.inf).amax(-1)


def _all_scored(same: Bool[Tensor, "*model row answer"], problems: Problems) -> Bool[Tensor, "*model row"]:
    return (same if problems.scored is None else same | ~problems.scored).all(-1)


def loss(logits: Logits, problems: Problems) -> Float[Tensor, ""]:
    """Returns the mean cross-entropy over the scored answer tokens of all problems."""
    target = problems.answer if problems.scored is None else problems.answer.where(problems.scored, IGNORED)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def losses_of(logits: Logits, problems: Problems) -> Float[Tensor, " row"]:
    """Returns the mean cross-entropy of each problem over its scored answer tokens."""
    each = F.cross_entropy(logits.flatten(0, 1).float(), problems.answer.clamp(min=0).flatten(), reduction="none")
    return mean_of_scored(each.view(problems.answer.shape), problems)


def tokens_wrong(logits: Logits, problems: Problems) -> Float[Tensor, " row"]:
    """Returns the share of each problem's scored answer tokens that are wrong."""
    return mean_of_scored((logits.argmax(-1) != problems.answer).float(), problems)


def mean_of_scored(values: Float[Tensor, "row answer"], problems: Problems) -> Float[Tensor, " row"]:
    """Returns the mean of each problem's values over its scored answer tokens."""
    if problems.scored is None:
        return values.mean(1)
    return (values * problems.scored).sum(1) / problems.scored.sum(1)


def best_constant(problems: Problems) -> float:
    """Returns the accuracy of always giving the commonest whole answer."""
    _, counts = problems.answer.unique(dim=0, return_counts=True)
    return int(counts.max()) / len(problems)


def largest(*differences: Tensor) -> float:
    """Returns the largest absolute value of these tensors; infinite where one holds a NaN."""
    return max(float(each.abs().nan_to_num(nan=torch.inf).max()) for each in differences)
