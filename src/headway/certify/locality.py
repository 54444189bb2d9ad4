"""The tokens that a model's answer can depend on, derived from the masks that it applies, through all its layers.

Two tokens are neighbours if one attends to the other; a token depends on whatever can be reached in as many steps as
there are layers. That the rest has no influence is also tested: it is replaced, and the answer must not change.
"""

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.models import MODELS, Attention, AveragingDecoder, Classifier, Decoder, Model, Order
from headway.positions import Positions, Relative
from headway.tasks import Problems

SAME = 1e-9  # logits that differ by no more count as equal, in float64
FAR = (100, 100_000)  # distances up to which a window is checked
STREAMS = ("decoder", "classifier")  # kinds of models that read everything in one sequence, through one stack

Stream = Decoder | Classifier
Certifiable = Stream | AveragingDecoder
Reading = Callable[[Any, Problems], Tensor]
"""Called with a model and problems; returns the model's output at each place, rows by places."""


class NotLocal(HeadwayError):
    """There can be no certificate; the message is the reason."""


def check_relative(model: Model) -> Stream:
    """Rejects a model that uses more than the distance between tokens, or whose masks are not known."""
    if model.config.kind not in STREAMS or type(model) is not MODELS[model.config.kind]:
        raise NotLocal(f"{type(model).__name__} is not one of the models whose masks are known: decoder, classifier")
    stream = cast(Stream, model)
    positions = stream.positions
    name = type(positions).__name__
    if positions.log_length is not None:
        raise NotLocal("its scores grow with the number of keys (log-length), so every answer depends on the length")
    if type(positions).embed is not Positions.embed:
        raise NotLocal(f"{name} adds a signal of the absolute position to the tokens")
    if type(positions).temper is not Positions.temper:
        raise NotLocal(f"{name} multiplies scores by a function of the number of keys")
    if type(positions).rotate is not Positions.rotate:
        raise NotLocal(f"{name} rotates queries and keys by their absolute positions; no window masks distant keys")
    if not isinstance(positions, Relative) or type(positions).bias is not Relative.bias:
        known = positions.fall()
        why = known if isinstance(known, str) else f"{name} is not a bias that depends on the distance alone"
        raise NotLocal(why)
    return stream


def check_windowed(model: Stream) -> None:
    """Rejects a model with a head that masks no key, and windows that are not what they say."""
    positions, name = model.positions, type(model.positions).__name__
    assert isinstance(positions, Relative)
    if positions.offsets is None:
        raise NotLocal(f"{name} has a head that masks no key: neighbourhoods grow with the length, without bound")
    _check_window(positions, positions.offsets)


@torch.no_grad()
def _check_window(positions: Relative, offsets: range) -> None:
    """Rejects a window with a gap, one that exceeds its offsets, and a bias that depends on other distances."""
    device = next(positions.parameters()).device
    inside = torch.tensor(offsets, device=device)
    alone = positions.of_distance(inside)
    if not bool(alone.isfinite().all()):
        raise NotLocal("a bias inside the window is not finite: it masks a key, or is NaN")
    for far in FAR:
        every = torch.arange(-far, far + 1, device=device)
        found = positions.of_distance(every)
        outside = (every < offsets[0]) | (every > offsets[-1])
        if not bool((found[:, outside] == -torch.inf).all()):
            raise NotLocal(f"a key at a distance outside {offsets[0]} to {offsets[-1]} is not masked")
        if not torch.equal(found[:, ~outside], alone):
            raise NotLocal("the bias at a distance depends on the other distances (normalised distances)")


def find_reach(model: Stream) -> tuple[int, int]:
    """Returns how far behind and ahead, in index steps, the window reaches through all layers that have heads."""
    offsets = model.positions.offsets
    assert offsets is not None
    layers = len(_attentions(model))
    return layers * -offsets[0], layers * offsets[-1]


def _attentions(model: Stream) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention) and module.heads]


@torch.no_grad()
def depends_on(model: Stream, order: Order) -> Bool[Tensor, "token token"]:
    """Returns which tokens can influence the last layer's output at each token: in every layer, those that some
    remaining head does not mask."""
    bias = order.bias
    assert bias is not None
    itself = reached = torch.eye(bias.shape[-1], device=bias.device)
    for attention in _attentions(model):
        seen = ~(bias[0, attention.head_numbers] == -torch.inf).all(0) | itself.bool()
        reached = ((seen.float() @ reached) > 0).float()
    return reached > 0


@torch.no_grad()
def read_exactly(read: Reading, model: Certifiable, problems: Problems) -> Tensor:
    """Returns the model's outputs in float64."""
    return read(copy.deepcopy(model).double(), problems)


@torch.no_grad()
def check_outside(
    read: Reading, model: Certifiable, problems: Problems, others: Problems, place: int, what: str
) -> None:
    """Rejects a model whose output at a place differs between two batches that differ only in tokens that cannot
    influence it."""
    exact = copy.deepcopy(model).double()
    moved = float((read(exact, problems)[:, place] - read(exact, others)[:, place]).abs().max())
    if not moved <= SAME:  # also rejects NaN
        why = "something in the model sees past the masks"
        raise NotLocal(f"{what} changes by {moved:.2g} when tokens outside its window are replaced: {why}")


@torch.no_grad()
def measure_rounding(
    read: Reading, model: Certifiable, problems: Problems, longer: Problems, alone: int, shared: slice
) -> float:
    """Measures rounding: the largest difference at a place between a batch, some of its problems one at a time, and
    problems so long that attention gathers its keys, at places with the same context. Infinite if one is NaN."""
    many = read(model, problems)
    one = torch.cat([read(model, problems[row : row + 1]) for row in range(alone)])
    return largest(one - many[:alone], read(model, longer)[:, shared] - many[:, shared])
