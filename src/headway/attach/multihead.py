"""torch.nn.MultiheadAttention, gated.

It never *calls* its output projection, so nothing put there would fire, and in evaluation a fast path skips even the
module itself. For the time of a run it gets a forward of its own: PyTorch's own function computes the attention, with
an identity in place of the output projection, so that every mask, bias and layout is PyTorch's; what comes out are
the heads side by side, which pass their gates before the true projection mixes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.attach.intervention import Hook, Intervention, own_forward
from headway.errors import HeadwayError
from headway.models.sites import Site


@contextmanager
def slow_path() -> Iterator[None]:
    """Turns PyTorch's fast path of transformer layers off, and nested tensors with it, until it is left."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def at_multihead(site: Site, attention: nn.MultiheadAttention) -> Hook:
    """The hook that gates a MultiheadAttention."""
    if type(attention).forward is not nn.MultiheadAttention.forward:
        raise HeadwayError(
            f"{type(attention).__name__} at {site} has a forward of its own, not nn.MultiheadAttention's; name its "
            "output projection with Site(path, output=…, heads=…)"
        )

    @contextmanager
    def hook(intervention: Intervention) -> Iterator[None]:
        def forward(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            key_padding_mask: Tensor | None = None,
            need_weights: bool = True,
            attn_mask: Tensor | None = None,
            average_attn_weights: bool = True,
            is_causal: bool = False,
        ) -> tuple[Tensor, Tensor | None]:
            transposed = attention.batch_first and query.ndim == 3
            if transposed:  # PyTorch's function wants token batch embed
                query, key, value = _tokens_first(query, key, value)
            asked = (query, key, value, key_padding_mask, attn_mask)
            outputs, weights = _head_outputs(attention, *asked, need_weights, is_causal)
            maps = None
            if intervention.trace is not None:
                maps = weights if weights is not None else _head_outputs(attention, *asked, True, is_causal)[1]
                assert maps is not None
                maps = maps if maps.ndim == 4 else maps[None]  # batch head query key
            outputs = _gated(intervention, site, outputs, maps, attention.num_heads)
            output = attention.out_proj(outputs)
            if need_weights and average_attn_weights and weights is not None:
                weights = weights.mean(dim=-3)
            return output.transpose(0, 1) if transposed else output, weights

        with slow_path(), own_forward(attention, forward):
            yield

    return hook


def _gated(intervention: Intervention, site: Site, outputs: Tensor, maps: Tensor | None, heads: int) -> Tensor:
    batched = outputs if outputs.ndim == 3 else outputs[:, None]  # query batch embed
    z = batched.transpose(0, 1).unflatten(-1, (heads, -1))  # batch query head dim
    z = intervention.through(site, z, maps).flatten(2).transpose(0, 1)
    return z if outputs.ndim == 3 else z[:, 0]


def _tokens_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With tokens first; what was one tensor stays one, which PyTorch's function looks for."""
    if key is value:
        first = query.transpose(0, 1)
        both = first if query is key else key.transpose(0, 1)
        return first, both, both
    return query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)


def _head_outputs(
    attention: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    need_weights: bool,
    is_causal: bool,
) -> tuple[Tensor, Tensor | None]:
    """What the heads say, side by side, and their maps where asked."""
    same = attention.in_proj_weight is not None
    identity = torch.eye(attention.embed_dim, dtype=query.dtype, device=query.device)
    return F.multi_head_attention_forward(
        query,
        key,
        value,
        attention.embed_dim,
        attention.num_heads,
        attention.in_proj_weight,
        attention.in_proj_bias,
        attention.bias_k,
        attention.bias_v,
        attention.add_zero_attn,
        attention.dropout,
        identity,
        None,
        training=attention.training,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        attn_mask=attn_mask,
        use_separate_proj_weight=not same,
        q_proj_weight=None if same else attention.q_proj_weight,
        k_proj_weight=None if same else attention.k_proj_weight,
        v_proj_weight=None if same else attention.v_proj_weight,
        average_attn_weights=False,
        is_causal=is_causal,
    )
