"""Attention, computed in this one place for every model.

A head's output z leaves through its gate, g·z + (1 − g)·r, before the output projection mixes the heads.
Nothing is patched or hooked: gates and traces are arguments. Where the map is not asked for, PyTorch's
fused attention is used; for a few keys the plain product was faster on the CPU we measured, and it is
the form that `torch.func.vmap` can differentiate. Compiled for a GPU, a few keys are one operation of their
own (few_keys.py). Tests hold the ways equal.

Axes: batch, head, query, key, token (either), dim (of a head), d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.nn import functional as F

from headway.kernels.few_keys import MOST, few_keys
from headway.models.sites import Gate, Gates, Site, Trace
from headway.models.windowed import VisibleKeys, seen_keys, windowed
from headway.positions import Positions, Relative

FEW_KEYS = 64
QueryStream = Float[Tensor, "batch query d_model"]
KeyStream = Float[Tensor, "batch key d_model"]
HeadOutputs = Float[Tensor, "batch query head dim"]
Maps = Float[Tensor, "batch head query key"]
Cache = dict[Site, tuple[Tensor, Tensor]]  # keys and values of the tokens already read, for decoding token by token


@dataclass(frozen=True)
class PassInputs:
    """What a pass through a stack is given beside its tokens."""

    gates: Gates | None = None
    trace: Trace | None = None
    memory: Float[Tensor, "batch source d_model"] | None = None  # what cross-attentions look at
    cache: Cache | None = None


PLAIN = PassInputs()


@dataclass
class Order:
    """What a site is told about order."""

    positions: Positions | None
    query_index: Int[Tensor, "#batch query"]
    key_index: Int[Tensor, "#batch key"]
    causal: bool  # whether a query sees only keys up to itself

    def repeated(self, times: int) -> Order:
        """The same for a batch that is repeated so often."""
        if max(len(self.query_index), len(self.key_index)) == 1:
            return self
        return replace(self, query_index=self.query_index.repeat(times, 1), key_index=self.key_index.repeat(times, 1))

    @property
    def through_window(self) -> bool:
        """Whether a query sees only the keys at some distances, and nothing else is told."""
        positions = self.positions
        if not isinstance(positions, Relative) or positions.offsets is None or positions.log_length is not None:
            return False
        kind = type(positions)
        return kind.bias is Relative.bias and kind.rotate is Positions.rotate and kind.temper is Positions.temper

    @cached_property
    def seen(self) -> VisibleKeys:
        """Which keys those are, the same in all layers."""
        assert self.positions is not None
        assert self.positions.offsets is not None
        return seen_keys(self.query_index, self.key_index, self.positions.offsets, self.causal)

    @cached_property
    def bias(self) -> Float[Tensor, "#batch #head query key"] | None:
        """What is added to the scores, the same in all layers: the encoding's bias, and −∞ where a key is hidden."""
        bias = None if self.positions is None else self.positions.bias(self.query_index, self.key_index)
        if not self.causal:
            return bias
        queries, keys = self.query_index.shape[1], self.key_index.shape[1]
        hidden = torch.full((1, 1, queries, keys), -torch.inf, device=self.key_index.device).triu(1 + keys - queries)
        return hidden if bias is None else bias + hidden.to(bias.dtype)

    @cached_property
    def temper(self) -> Float[Tensor, "query 1"] | None:
        """What the scores of each query are multiplied by."""
        if self.positions is None:
            return None
        queries, keys = self.query_index.shape[1], self.key_index.shape[1]
        seen = keys + self.causal * torch.arange(1 - queries, 1, device=self.query_index.device)
        tempered = self.positions.temper(seen)
        return None if tempered is None else tempered[:, None]


class _Constant(nn.Linear):
    """What remains of an output projection without heads: its bias. (A Linear of no inputs warns when it is made.)"""

    def __init__(self, d_model: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = 0, d_model
        self.weight, self.bias = Parameter(torch.empty(d_model, 0)), Parameter(torch.zeros(d_model))


class Attention(nn.Module):
    """Multi-head attention. Queries, keys and values have no bias terms: a key's cancels in the softmax, a
    value's is the output's bias again."""

    def __init__(self, site: Site, d_model: int, dim: int, kept: Sequence[int]) -> None:
        """`kept` are the numbers of its heads: all, but for those that were pruned."""
        super().__init__()
        self.site, self.kept, self.heads, self.dim = site, list(kept), len(kept), dim
        self.query = Parameter(torch.randn(self.heads * dim, d_model) * d_model**-0.5)
        self.key_value = Parameter(torch.randn(2, self.heads * dim, d_model) * d_model**-0.5)
        self.out = nn.Linear(self.heads * dim, d_model) if kept else _Constant(d_model)

    def forward(self, x: QueryStream, context: KeyStream, order: Order, inputs: PassInputs = PLAIN) -> QueryStream:
        if self.heads == 0:  # all pruned: what is left is the constant that it adds
            return self.out.bias.expand_as(x)
        trace = inputs.trace
        z, attention = self.head_outputs(x, context, order, inputs.cache, wants_map=trace is not None)
        z = gated(z, None if inputs.gates is None else inputs.gates.get(self.site))
        if trace is not None and attention is not None:
            trace.maps[self.site], trace.outputs[self.site] = attention, z
        return self.out(z.flatten(2))

    def head_outputs(
        self, x: QueryStream, context: KeyStream, order: Order, cache: Cache | None = None, wants_map: bool = False
    ) -> tuple[HeadOutputs, Maps | None]:
        """The output of each head, before its gate, and its map where asked."""
        query = F.linear(x, self.query).unflatten(-1, (self.heads, self.dim))  # batch query head dim
        if cache is None and not wants_map and self._at_once(x, context, order):
            return few_keys(query, self._both(context), order.causal, self.dim**-0.5)[0], None
        key, value = self.keys_values(context, cache)
        if not wants_map and order.through_window and key.shape[2] > FEW_KEYS and not is_batchedtensor(query):
            assert order.positions is not None
            return windowed(query, key, value, order.positions, order.seen, self.dim**-0.5, self.kept), None
        query = query.transpose(1, 2)  # batch head query dim
        if order.positions is not None:
            query, key = order.positions.rotate(query, key, order.query_index, order.key_index)
        if order.temper is not None:
            query = query * order.temper.to(query.dtype)
        bias = order.bias
        if bias is not None and bias.shape[1] not in (1, self.heads):
            bias = bias[:, self.kept]
        z, attention = attend(query, key, value, self.dim**-0.5, bias, wants_map)
        return z.transpose(1, 2), attention

    def _at_once(self, x: Tensor, context: Tensor, order: Order) -> bool:
        """Whether one operation does it all: compiled, or on a GPU where no gradient is wanted."""
        plain = order.positions is None or order.positions.only_embeds
        fast = is_compiling() or (x.is_cuda and torch.is_inference_mode_enabled() and x.dtype != torch.float64)
        return plain and fast and max(x.shape[1], context.shape[1]) <= MOST and self.dim & (self.dim - 1) == 0

    def _both(self, context: Tensor) -> Tensor:
        both = F.linear(context, self.key_value.flatten(0, 1))
        return both.unflatten(-1, (2, self.heads, self.dim))  # batch key two head dim

    def keys_values(self, context: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        past = None if cache is None else cache.get(self.site)
        if past is not None and self.site.kind == "cross":
            return past
        key, value = self._both(context).permute(2, 0, 3, 1, 4).unbind(0)  # batch head key dim
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        if cache is not None:
            cache[self.site] = key, value
        return key, value


def gated(z: HeadOutputs, gate: Gate | None) -> HeadOutputs:
    """What the gate lets pass of each head, and what it puts in its place."""
    if gate is None:
        return z
    passed = gate.passed if gate.passed.ndim == 3 else gate.passed[:, None]
    passed = passed[..., None].to(z.dtype)  # batch query head 1
    return passed * z if gate.replacement is None else passed * z + (1 - passed) * gate.replacement


def attend(
    query: Float[Tensor, "batch head query wide"],
    key: Float[Tensor, "batch head key wide"],
    value: Float[Tensor, "batch head key dim"],
    scale: float,
    bias: Float[Tensor, "#batch #head query key"] | None,
    wants_map: bool,
) -> tuple[Float[Tensor, "batch head query dim"], Maps | None]:
    """The heads' outputs, and their maps where asked."""
    if key.shape[2] > FEW_KEYS and not wants_map:
        mask = None if bias is None else bias.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale), None
    scores = (query * scale) @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if torch.is_grad_enabled() or scores.device.type != "cpu" or scores.shape[-1] > FEW_KEYS:
        attention = scores.softmax(-1)
    else:  # on a CPU PyTorch is several times faster across many columns than along a few keys: key row, and back
        attention = scores.flatten(0, 2).t().contiguous().softmax(0).t().unflatten(0, scores.shape[:3])
    return attention @ value, attention if wants_map else None
