"""The leads of contexts in float64, each with a bound on the rounding of float32.

Only the tokens that a place depends on go through the model: in the last layer the place itself, in the one before the
tokens it sees, and so on. sensitivity.py bounds a block; this file puts the blocks of a model together.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.certify.locality import NotLocal, Stream
from headway.certify.outside import Outside
from headway.certify.rounding import LARGE, SLACK, TINY, Affine, U, length, normalise
from headway.certify.sensitivity import Attended, BlockBound, Enclosed, Fed, Reads
from headway.models import Order
from headway.models.blocks import Block

LARGEST = 2.0**30  # of a weight


class Leads(NamedTuple):
    """Leads, row × rival, and how far float32 can be away from each; of a classifier the one number it reports."""

    value: Tensor
    bound: Tensor


@dataclass(frozen=True)
class Sights:
    """The tokens that each layer needs: the first layer's inputs, then each layer's outputs; the last is the place."""

    places: list[list[int]]
    bias: Tensor  # head query key, of all tokens


class RoundingBound:
    """A model in float64 with a bound on the rounding of its leads."""

    def __init__(self, model: Stream, readout: nn.Linear, segments: Tensor | None = None, rivals: bool = True) -> None:
        """`readout` gives the logits; with `rivals` they are compared with each other, otherwise with 0."""
        self.blocks, self.last_norm = [], model.norm
        for block in model.blocks:
            assert isinstance(block, Block)
            self.blocks.append(BlockBound(block))
        self.readout = Affine(readout.weight, readout.bias)
        weight = self.readout.weight
        self.apart = weight[:, None] - weight if rivals else weight[None]  # right rival d
        self.tokens = embed(model.tokens.weight.detach().double(), segments)
        self.reads, self.heaviest = self._read(0, self.tokens), 0.0  # the largest share of attention outside so far

    def _read(self, layer: int, tokens: Enclosed) -> Reads | None:
        return self.blocks[layer].read(tokens) if self.blocks[layer].attention.heads else None

    @torch.no_grad()
    def __call__(
        self, tokens: Tensor, bias: Tensor, place: int, right: Tensor | None = None, outside: Outside | None = None
    ) -> Leads:
        """Returns the leads at a place of sequences, row × token, whose attentions have this bias, head × query × key.
        Tokens of the answer are numbered after those of the problem. `right` are the right answers of a decoder. With
        `outside`, the sequences of a model with one layer are parts of longer ones, of any tokens."""
        assert outside is None or len(self.blocks) == 1
        sights = self._sights(bias, place)
        states, reads, which = self.tokens, self.reads, tokens[:, sights.places[0]]  # row place: into states and reads
        for layer in range(len(self.blocks) - 1):
            asking = sights.places[layer + 1]
            steps = [self._step(layer, sights, at, states, reads, which) for at in asking]
            outputs = [self._output(layer, fed.after) for _, _, fed in steps]
            states = Enclosed(torch.cat([each.x for each in outputs]), torch.cat([each.r for each in outputs]))
            reads = self._read(layer + 1, states)
            which = torch.arange(len(states.x), device=tokens.device).view(len(asking), -1).T
        step = self._step(len(self.blocks) - 1, sights, place, states, reads, which, outside)
        return self._finish(*step, right=right)

    def _sights(self, bias: Tensor, place: int) -> Sights:
        places = [[place]]
        for block in reversed(self.blocks):
            heads = block.attention.head_numbers
            seen = (bias[heads][:, places[0]] != -torch.inf).any(0).any(0) if heads else bias.new_zeros(bias.shape[-1])
            places.insert(0, sorted({*seen.nonzero()[:, 0].tolist(), *places[0]}))
        return Sights(places, bias)

    def _step(
        self,
        layer: int,
        sights: Sights,
        at: int,
        states: Enclosed,
        reads: Reads | None,
        which: Tensor,
        outside: Outside | None = None,
    ) -> tuple[Enclosed, Attended | None, Fed]:
        """Runs a layer at one of the places that the next layer needs."""
        block, places = self.blocks[layer], sights.places[layer]
        asking = states[which[:, places.index(at)]]
        if reads is None:
            return asking, None, block.feed(asking, None)
        bias = sights.bias[block.attention.head_numbers][:, at]  # head key
        seen = [number for number, key in enumerate(places) if bool((bias[:, key] != -torch.inf).any())]
        query = which[:, places.index(at)]
        keys = Reads(*(tuple(part[which[:, seen]] for part in each) for each in (reads.query, reads.key, reads.value)))  # pyright: ignore
        asked = reads.query[0][query], reads.query[1][query]
        beyond = None if outside is None else (outside.of(block.attention.head_numbers), reads)
        attended = block.attend(asked, keys, bias[:, [places[number] for number in seen]], beyond)
        if attended.mass is not None:
            self.heaviest = max(self.heaviest, float(attended.mass.nan_to_num(nan=torch.inf).max()))
        return asking, attended, block.feed(asking, attended)

    def _output(self, layer: int, after: Enclosed) -> Enclosed:
        block = self.blocks[layer]
        if not block.post:
            return after
        norm = normalise(after.x, after.r, block.norm("feed"))
        return Enclosed(norm.value, norm.radius)

    def _finish(self, asking: Enclosed, attended: Attended | None, fed: Fed, right: Tensor | None) -> Leads:
        block = self.blocks[-1]
        last = block.norm("feed") if block.post else self.last_norm
        assert isinstance(last, nn.LayerNorm)
        norm = normalise(fed.after.x, fed.after.r, last)
        rounding = self.readout.rounding(norm.value.abs() + norm.radius[:, None])
        logits = self.readout(norm.value)
        c = self.apart[torch.zeros_like(asking.r, dtype=torch.long) if right is None else right]  # row rival d
        of_stream, slack = norm.pull(c)
        bound = block.pull(of_stream, asking, attended, fed) + slack + rounding
        if right is None:
            return Leads(logits, _settled(bound))
        picked = right[:, None]
        bound = _settled(bound + rounding.gather(1, picked))
        value = logits.gather(1, picked) - logits
        return Leads(value.scatter(1, picked, torch.inf), bound.scatter(1, picked, 0.0))


def embed(tokens: Tensor, segments: Tensor | None) -> Enclosed:
    """Returns the stream at every token; with segments, in the problem and then in the answer."""
    if segments is None:
        return Enclosed(tokens, tokens.new_zeros(len(tokens)))
    x = torch.cat([tokens + each for each in segments.detach().double()])
    return Enclosed(x, U * length(x) + TINY)


def bias_of(order: Order) -> Tensor:
    """Returns the bias of an attention, head × query × key, −∞ where a key is masked."""
    assert order.bias is not None
    return order.bias[0].detach()


def _settled(bound: Tensor) -> Tensor:
    """Returns the bound with room for the rounding of float64; what is not a number is without bound."""
    bound = SLACK * bound
    return bound.where(bound < LARGE, torch.inf)


def check_weights(model: nn.Module) -> None:
    """Rejects weights to which the theorem about float32 does not apply."""
    for name, weight in model.state_dict().items():
        if weight.dtype != torch.float32:
            raise NotLocal(
                f"{name} is {str(weight.dtype).removeprefix('torch.')}; the bound on rounding is for float32"
            )
        size = weight.double().abs()
        if not bool((size <= LARGEST).all()):
            raise NotLocal(f"{name} contains NaN, infinity or a number above 2^30")
        bits = weight.contiguous().view(torch.int32) & 0x7FFFFFFF  # by the bits: a comparison may flush to 0
        if bool(((bits > 0) & (bits < 0x00800000)).any()):
            raise NotLocal(f"{name} contains a number so small, below 2^-126, that some machines take it for 0")
