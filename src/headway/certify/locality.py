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
from headway.models import Attention, Classifier, Decoder, Model, Order
from headway.positions import Positions, Relative
from headway.tasks import Problems

SAME = 1e-9
"""logits that differ by no more are the same, in float64"""


FAR = (100, 100_000)
"""distances over which a window is looked at"""


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
    if isinstance(model, Classifier) and model.config.index != "sequential":
        raise NotLocal(f"with the index {model.config.index} neighbours in the sequence are no neighbours to a window")
    if positions.offsets is None:
        raise NotLocal(f"{name} hides no key from some head: neighbourhoods grow with the length, without bound")
    _check_window(positions, positions.offsets)


@torch.no_grad()
def _check_window(positions: Relative, offsets: range) -> None:
    """Refuses a window with a gap, or one that sees past its offsets, or whose bias depends on how far others are."""
    device = next(positions.parameters()).device
    inside = torch.tensor(offsets, device=device)
    alone = positions.of_distance(inside)
    if not bool(alone.isfinite().all()):
        raise NotLocal("a bias inside the window is not a number that could be gone through: it hides, or is no number")
    for far in FAR:
        every = torch.arange(-far, far + 1, device=device)
        found = positions.of_distance(every)
        outside = (every < offsets[0]) | (every > offsets[-1])
        if not bool((found[:, outside] == -torch.inf).all()):
            raise NotLocal(f"a key at a distance outside {offsets[0]} to {offsets[-1]} is seen")
        if not torch.equal(found[:, ~outside], alone):
            raise NotLocal("the bias at a distance depends on which other distances there are (normalised distances)")


def reach_of(model: Classifier | Decoder) -> tuple[int, int]:
    """How far behind and ahead, in numbers of the index, the window reaches through all layers that have heads."""
    assert model.positions.offsets is not None
    layers = sum(attention.heads > 0 for attention in _attentions(model))
    return layers * -model.positions.offsets[0], layers * model.positions.offsets[-1]


def _attentions(model: Classifier | Decoder) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


@torch.no_grad()
def depends_on(model: Classifier | Decoder, order: Order) -> Bool[Tensor, "token token"]:
    """Which tokens can have a say in what the last layer writes at each token: in every layer, those at which the score
    of some head that is left is not hidden."""
    bias = order.bias
    assert bias is not None
    reached = torch.eye(bias.shape[-1], device=bias.device)
    for attention in _attentions(model):
        if attention.heads:
            seen = ~(bias[0, attention.kept] == -torch.inf).all(0) | torch.eye(len(reached), device=bias.device).bool()
            reached = ((seen.float() @ reached) > 0).float()
    return reached > 0


@torch.no_grad()
def check_influence(model: Model, problems: Problems, others: Problems, place: int, what: str) -> None:
    """Refuses a model whose answer at `place` differs between two batches that differ only in tokens that can have no
    say."""
    exact = copy.deepcopy(model).double()
    told, other = (exact(each.source, each.answer)[:, place] for each in (problems, others))
    moved = (told - other).abs().max()
    if not float(moved) <= SAME:  # what is no number is refused as well
        raise NotLocal(
            f"{what} moves by {float(moved):.2g} when tokens outside its window are replaced: something in the model "
            "sees past the masks"
        )
