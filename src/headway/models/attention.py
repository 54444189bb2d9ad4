"""Attention, computed in this one place for every model.

A head's output z passes its gate, g·z + (1 − g)·r, before the output projection mixes the heads.
Nothing is patched or hooked: gates and traces are arguments. Where no map is requested, PyTorch's
fused attention is used; for a few keys the plain product was faster on the CPU we measured, and it is
the form that `torch.func.vmap` can differentiate. Compiled for a GPU, attention to a few keys is one
custom operator (few_keys.py). Tests check that all of them agree.

Axes: batch, head, query, key, token (query or key), dim (of a head), d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.nn import functional as F

from headway.kernels.few_keys import MOST_KEYS, few_keys
from headway.models.dropout import WEIGHTS, Dropout, number_of
from headway.models.linear import Linear, linear
from headway.models.narrowed import fill_narrowed, find_hidden
from headway.models.sites import Gate, Gates, Narrowing, Site, Trace
from headway.models.windowed import VisibleKeys, attend_in_window, find_visible_keys
from headway.positions import Positions, Relative

FEW_KEYS = 64
QueryStream = Float[Tensor, "batch query d_model"]
KeyStream = Float[Tensor, "batch key d_model"]
HeadOutputs = Float[Tensor, "batch query head dim"]
Maps = Float[Tensor, "batch head query key"]
Cache = dict[Site, tuple[Tensor, Tensor]]  # keys and values of earlier tokens, for decoding token by token


@dataclass(frozen=True)
class PassInputs:
    """The inputs of a pass through a stack, apart from its tokens."""

    gates: Gates | None = None
    trace: Trace | None = None
    memory: Float[Tensor, "batch source d_model"] | None = None  # cross-attention reads its keys and values from it
    cache: Cache | None = None
    dropout: Dropout | None = None  # only in training


PLAIN = PassInputs()


@dataclass
class Order:
    """The position encoding, position indices and causality of one attention."""

    positions: Positions | None
    query_index: Int[Tensor, "#batch query"]
    key_index: Int[Tensor, "#batch key"]
    causal: bool  # whether a query sees only keys up to itself

    def repeat(self, times: int) -> Order:
        """Returns the order of a batch that is repeated `times` times."""
        if max(len(self.query_index), len(self.key_index)) == 1:
            return self
        return replace(self, query_index=self.query_index.repeat(times, 1), key_index=self.key_index.repeat(times, 1))

    @property
    def is_windowed(self) -> bool:
        """Whether a fixed set of visible distances, and a bias for each, is all that the encoding adds to attention."""
        positions = self.positions
        if not isinstance(positions, Relative) or positions.offsets is None or positions.log_length is not None:
            return False
        kind = type(positions)
        return kind.bias is Relative.bias and kind.rotate is Positions.rotate and kind.temper is Positions.temper

    @cached_property
    def visible_keys(self) -> VisibleKeys:
        """The keys that each query of a windowed attention sees; the same in all layers."""
        assert self.positions is not None
        assert self.positions.offsets is not None
        return find_visible_keys(self.query_index, self.key_index, self.positions.offsets, self.causal)

    @cached_property
    def bias(self) -> Float[Tensor, "#batch #head query key"] | None:
        """The bias on the scores, the same in all layers: the encoding's bias, and −∞ where a key is masked."""
        bias = None if self.positions is None else self.positions.bias(self.query_index, self.key_index)
        if not self.causal:
            return bias
        queries, keys = self.query_index.shape[1], self.key_index.shape[1]
        hidden = torch.full((1, 1, queries, keys), -torch.inf, device=self.key_index.device).triu(1 + keys - queries)
        return hidden if bias is None else bias + hidden.to(bias.dtype)

    @cached_property
    def temper(self) -> Float[Tensor, "query 1"] | None:
        """The factor on the scores of each query."""
        if self.positions is None:
            return None
        queries, keys = self.query_index.shape[1], self.key_index.shape[1]
        seen = keys + self.causal * torch.arange(1 - queries, 1, device=self.query_index.device)
        tempered = self.positions.temper(seen)
        return None if tempered is None else tempered[:, None]


class _Constant(nn.Linear):
    """An output projection whose heads are all pruned: only its bias is left. (nn.Linear with no inputs would warn.)"""

    def __init__(self, d_model: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = 0, d_model
        self.weight, self.bias = Parameter(torch.empty(d_model, 0)), Parameter(torch.zeros(d_model))


class Attention(nn.Module):
    """Multi-head attention. Queries, keys and values have no bias terms: a key's cancels in the softmax, and a
    value's can be absorbed into the output's."""

    def __init__(self, site: Site, d_model: int, dim: int, head_numbers: Sequence[int]) -> None:
        """`head_numbers` are the numbers of the heads that were not pruned."""
        super().__init__()
        self.site, self.head_numbers, self.heads, self.dim = site, list(head_numbers), len(head_numbers), dim
        self.query = Parameter(torch.randn(self.heads * dim, d_model) * d_model**-0.5)
        self.key_value = Parameter(torch.randn(2, self.heads * dim, d_model) * d_model**-0.5)
        self.out = Linear(self.heads * dim, d_model) if head_numbers else _Constant(d_model)
        self.place = number_of(site)

    def forward(self, x: QueryStream, context: KeyStream, order: Order, inputs: PassInputs = PLAIN) -> QueryStream:
        if self.heads == 0:  # all heads are pruned: only a constant is left
            return self.out.bias.expand_as(x)
        trace = inputs.trace
        wants_map = trace is not None
        z, attention = self.head_outputs(x, context, order, inputs.cache, wants_map, inputs.dropout)
        if trace is not None and attention is not None:
            trace.maps[self.site], trace.ungated[self.site] = attention, z
        gate = None if inputs.gates is None else inputs.gates.get(self.site)
        z = apply_gate(
            z, fill_narrowed(gate, self.site, partial(self.narrowed_outputs, x, context, order, inputs.cache))
        )
        if trace is not None:
            trace.outputs[self.site] = z
        return self.out(z.flatten(2))

    def head_outputs(
        self,
        x: QueryStream,
        context: KeyStream,
        order: Order,
        cache: Cache | None = None,
        wants_map: bool = False,
        dropout: Dropout | None = None,
    ) -> tuple[HeadOutputs, Maps | None]:
        """Returns the output of each head, before its gate, and its map if requested."""
        wants_map = wants_map or dropout is not None  # the weights themselves are dropped
        query = linear(x, self.query).unflatten(-1, (self.heads, self.dim))  # batch query head dim
        if cache is None and not wants_map and self._fits_one_kernel(x, context, order):
            return few_keys(query, self._project_keys_values(context), order.causal, self.dim**-0.5)[0], None
        key, value = self.keys_values(context, cache)
        if not wants_map and order.is_windowed and key.shape[2] > FEW_KEYS and not is_batchedtensor(query):
            assert order.positions is not None
            scale, seen = self.dim**-0.5, order.visible_keys
            return attend_in_window(query, key, value, order.positions, seen, scale, self.head_numbers), None
        drop = None if dropout is None else lambda weights: dropout(weights, self.place + WEIGHTS)
        return self._attend(query, key, value, order, None, wants_map, drop)

    def narrowed_outputs(
        self, x: QueryStream, context: KeyStream, order: Order, cache: Cache | None, narrowing: Narrowing
    ) -> HeadOutputs:
        """Returns the output of each head where it sees only its sinks and its recent tokens; a cache already has the
        keys and values of these tokens."""
        query = linear(x, self.query).unflatten(-1, (self.heads, self.dim))  # batch query head dim
        key, value = self.keys_values(context, None) if cache is None else cache[self.site]
        hidden = find_hidden(narrowing, query.shape[1], key.shape[2])
        return self._attend(query, key, value, order, hidden, wants_map=False)[0]

    def _attend(
        self,
        query: HeadOutputs,
        key: Tensor,
        value: Tensor,
        order: Order,
        hidden: Bool[Tensor, "#batch head query key"] | None,
        wants_map: bool,
        drop: Callable[[Maps], Maps] | None = None,
    ) -> tuple[HeadOutputs, Maps | None]:
        """Applies the order to queries and keys, and attends; `hidden` are keys to hide besides those it hides."""
        query = query.transpose(1, 2)  # batch head query dim
        if order.positions is not None:
            query, key = order.positions.rotate(query, key, order.query_index, order.key_index)
        if order.temper is not None:
            query = query * order.temper.to(query.dtype)
        bias = order.bias
        if bias is not None and bias.shape[1] not in (1, self.heads):
            bias = bias[:, self.head_numbers]
        if hidden is not None:
            bias = torch.zeros((), device=query.device, dtype=query.dtype) if bias is None else bias
            narrowed = bias.masked_fill(hidden, -torch.inf)
            bias = torch.where(narrowed.isneginf().all(-1, keepdim=True), bias, narrowed)  # never nothing at all
        z, attention = attend(query, key, value, self.dim**-0.5, bias, wants_map, drop)
        return z.transpose(1, 2), attention

    def _fits_one_kernel(self, x: Tensor, context: Tensor, order: Order) -> bool:
        """Returns whether `few_keys` applies: when compiled, or on a GPU without gradients."""
        plain = order.positions is None or order.positions.only_embeds
        fast = is_compiling() or (x.is_cuda and torch.is_inference_mode_enabled() and x.dtype != torch.float64)
        return plain and fast and max(x.shape[1], context.shape[1]) <= MOST_KEYS and self.dim & (self.dim - 1) == 0

    def _project_keys_values(self, context: Tensor) -> Tensor:
        both = linear(context, self.key_value.flatten(0, 1))
        return both.unflatten(-1, (2, self.heads, self.dim))  # batch key two head dim

    def keys_values(self, context: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        past = None if cache is None else cache.get(self.site)
        if past is not None and self.site.kind == "cross":
            return past
        key, value = self._project_keys_values(context).permute(2, 0, 3, 1, 4).unbind(0)  # batch head key dim
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        if cache is not None:
            cache[self.site] = key, value
        return key, value


def apply_gate(z: HeadOutputs, gate: Gate | None) -> HeadOutputs:
    """Returns g·z + (1 − g)·r for a gate g with replacement r."""
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
    drop: Callable[[Maps], Maps] | None = None,
) -> tuple[Float[Tensor, "batch head query dim"], Maps | None]:
    """Returns the heads' outputs, and their maps if requested."""
    if key.shape[2] > FEW_KEYS and not wants_map:
        mask = None if bias is None else bias.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale), None
    scores = (query * scale) @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if torch.is_grad_enabled() or scores.device.type != "cpu" or scores.shape[-1] > FEW_KEYS:
        attention = scores.softmax(-1)
    else:  # on a CPU a softmax over columns is several times faster than one over rows of a few keys: transpose twice
        attention = scores.flatten(0, 2).t().contiguous().softmax(0).t().unflatten(0, scores.shape[:3])
    dropped = attention if drop is None else drop(attention)
    return dropped @ value, attention if wants_map else None
