"""What a model's answer can depend on: derived from the masks that it really applies, through all its layers.

Two tokens of which one sees the other are neighbours; what a token depends on is whatever can be reached in as many
steps as there are layers. That the rest has no say is then also tried: it is replaced, and the answer must not move.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Classifier, Decoder, Model, Order
from headway.positions import Positions, Relative
from headway.tasks import Problems

SAME = 1e-9
"""logits that differ by no more are the same, in float64"""


class NotLocal(HeadwayError):
    """No certificate can be had: the reason why."""


def check_relative(model: Model) -> None:
    """Refuses a model that is told more of order than the distance of two tokens, or whose masks cannot be read off."""
    if not isinstance(model, Classifier | Decoder) or type(model) not in (Classifier, Decoder):
        raise NotLocal(f"a {type(model).__name__} is not one of the models whose masks are known: decoder, classifier")
    positions = model.positions
    name = type(positions).__name__
    if positions.log_length is not None:
        raise NotLocal("its scores grow with the number of keys (log-length), so every answer depends on the length")
    if type(positions).embed is not Positions.embed:
        raise NotLocal(f"{name} adds something to the tokens that depends on their absolute place")
    if type(positions).temper is not Positions.temper:
        raise NotLocal(f"{name} multiplies scores by a function of the number of keys")
    if type(positions).rotate is not Positions.rotate:
        raise NotLocal(f"{name} turns queries and keys by their absolute places; no window hides the far ones")
    if not isinstance(positions, Relative) or type(positions).bias is not Relative.bias:
        raise NotLocal(f"{name} is no bias of the distance alone")


@torch.no_grad()
def seen_directly(model: Model, order: Order) -> Bool[Tensor, "token token"]:
    """Which tokens each one looks at in a layer: where any head's score is not hidden."""
    bias = order.bias
    tokens = order.key_index.shape[1]
    if bias is None:
        return torch.ones(tokens, tokens, dtype=torch.bool)
    return (bias[0] > -torch.inf).any(0) | torch.eye(tokens, dtype=torch.bool, device=bias.device)


def depends_on(model: Model, order: Order) -> Bool[Tensor, "token token"]:
    """Which tokens can have a say in what the last layer writes at each token."""
    assert isinstance(model, Classifier | Decoder)
    step = seen_directly(model, order).float()
    reached = torch.eye(len(step), device=step.device)
    for _ in model.blocks:
        reached = ((step @ reached) > 0).float()
    return reached > 0


@torch.no_grad()
def check_influence(model: Model, problems: Problems, others: Problems, place: int, what: str) -> None:
    """Refuses a model whose answer at `place` differs between two batches that differ only in tokens that can have no
    say."""
    exact = copy.deepcopy(model).double()
    told, other = (exact(each.source, each.answer)[:, place] for each in (problems, others))
    moved = (told - other).abs().max()
    if float(moved) > SAME:
        raise NotLocal(
            f"{what} moves by {float(moved):.2g} when tokens outside its window are replaced: something in the model "
            "sees past the masks"
        )
