"""What a model's answer can depend on: derived from the masks that it really applies, through all its layers.

Two tokens of which one sees the other are neighbours; what a token depends on is whatever can be reached in as many
steps as there are layers. That the rest has no say is then also tried: it is replaced, and the answer must not move.
"""

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.models import MODELS, Attention, Classifier, Decoder, Model, Order
from headway.positions import Positions, Relative
from headway.tasks import Problems

SAME = 1e-9  # logits that differ by no more are the same, in float64
FAR = (100, 100_000)  # distances over which a window is looked at
STREAMS = ("decoder", "classifier")  # kinds of models that read everything in one sequence, through one stack

Stream = Decoder | Classifier
Reading = Callable[[Any, Problems], Tensor]
"""What a model says at each place, rows by places: called with the model and problems."""


class NotLocal(HeadwayError):
    """No certificate can be had: the reason why."""


def check_relative(model: Model) -> Stream:
    """Refuses a model that is told more of order than the distance of two tokens, or whose masks cannot be read off."""
    if model.config.kind not in STREAMS or type(model) is not MODELS[model.config.kind]:
        raise NotLocal(f"a {type(model).__name__} is not one of the models whose masks are known: decoder, classifier")
    stream = cast(Stream, model)
    positions = stream.positions
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
    if positions.offsets is None:
        raise NotLocal(f"{name} hides no key from some head: neighbourhoods grow with the length, without bound")
    _check_window(positions, positions.offsets)
    return stream


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


def find_reach(model: Stream) -> tuple[int, int]:
    """How far behind and ahead, in numbers of the index, the window reaches through all layers that have heads."""
    offsets = model.positions.offsets
    assert offsets is not None
    layers = len(_attentions(model))
    return layers * -offsets[0], layers * offsets[-1]


def _attentions(model: Stream) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention) and module.heads]


@torch.no_grad()
def depends_on(model: Stream, order: Order) -> Bool[Tensor, "token token"]:
    """Which tokens can have a say in what the last layer writes at each token: in every layer, those at which the score
    of some head that is left is not hidden."""
    bias = order.bias
    assert bias is not None
    itself = reached = torch.eye(bias.shape[-1], device=bias.device)
    for attention in _attentions(model):
        seen = ~(bias[0, attention.head_numbers] == -torch.inf).all(0) | itself.bool()
        reached = ((seen.float() @ reached) > 0).float()
    return reached > 0


@torch.no_grad()
def check_outside(read: Reading, model: Stream, problems: Problems, others: Problems, place: int, what: str) -> None:
    """Refuses a model that says something else at a place in two batches that differ only in tokens that can have no
    say there."""
    exact = copy.deepcopy(model).double()
    moved = float((read(exact, problems)[:, place] - read(exact, others)[:, place]).abs().max())
    if not moved <= SAME:  # what is no number is refused as well
        why = "something in the model sees past the masks"
        raise NotLocal(f"{what} moves by {moved:.2g} when tokens outside its window are replaced: {why}")


@torch.no_grad()
def measure_rounding(
    read: Reading, model: Stream, problems: Problems, longer: Problems, alone: int, shared: slice
) -> float:
    """The largest difference at a place between many problems at once, some of them one at a time, and problems so long
    that attention gathers its keys; of the places that see the same in both. Infinite where one is no number."""
    many = read(model, problems)
    one = torch.cat([read(model, problems[row : row + 1]) for row in range(alone)])
    return largest(one - many[:alone], read(model, longer)[:, shared] - many[:, shared])
