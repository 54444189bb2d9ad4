"""Gates for torch.nn.MultiheadAttention.

It never *calls* its output projection, so a hook there would not fire, and in evaluation a fast path skips even the
module itself. For the duration of a run its forward is replaced: PyTorch's forward computes the attention, with an
identity in place of the output projection, so that every mask, bias and layout is PyTorch's; the result is the heads'
concatenated outputs, which pass their gates before the real projection mixes them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from headway.attach.intervention import Hook, Intervention, replace_forward
from headway.errors import HeadwayError
from headway.models.narrowed import narrow_mask
from headway.models.sites import Narrowing, Site


@contextmanager
def slow_path() -> Iterator[None]:
    """Disables PyTorch's fast path of transformer layers, and nested tensors with it, inside the context."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def multihead_hook(sites: Sequence[Site], attention: nn.MultiheadAttention) -> Hook:
    """Returns the hook that gates a MultiheadAttention; `sites` are those of its turns, mostly one."""
    if type(attention).forward is not nn.MultiheadAttention.forward:
        raise HeadwayError(
            f"{type(attention).__name__} at {sites[0]} overrides nn.MultiheadAttention.forward; name its "
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
            batched, first = query.ndim == 3, attention.batch_first
            site = intervention.site_of_call(sites)

            def attend(
                need: bool, mask: Tensor | None = attn_mask, causal: bool = is_causal
            ) -> tuple[Tensor, Tensor | None]:
                given = (query, key, value, key_padding_mask, need, mask, False, causal)
                identity = torch.eye(attention.embed_dim, dtype=query.dtype, device=query.device)
                attention.__dict__["out_proj"] = SimpleNamespace(weight=identity, bias=None)  # shadows the module's own
                try:
                    return nn.MultiheadAttention.forward(attention, *given)
                finally:
                    del attention.__dict__["out_proj"]

            def heads_of(outputs: Tensor) -> Tensor:
                z = (outputs if first else outputs.transpose(0, 1)) if batched else outputs[None]
                return z.unflatten(-1, (attention.num_heads, -1))  # batch query head dim

            def narrow(narrowing: Narrowing) -> Tensor:
                if key is not query and (key.shape != query.shape or not torch.equal(key, query)):
                    raise HeadwayError(
                        f"{site} attends to another sequence, in which no token is recent; narrow only heads of "
                        "self-attention"
                    )
                tokens, rows = query.shape[-2 if not batched or first else 0], 1
                if batched:
                    rows = query.shape[0 if first else 1]
                seen = _visible(attn_mask, key_padding_mask, rows, attention.num_heads, tokens, query)
                mask = narrow_mask(narrowing, seen, tokens).expand(rows, attention.num_heads, -1, -1).flatten(0, 1)
                if attn_mask is None or attn_mask.dtype == torch.bool:
                    return heads_of(attend(False, ~mask, False)[0])
                added = attn_mask if attn_mask.ndim == 3 else attn_mask[None]
                return heads_of(attend(False, added.masked_fill(~mask, -torch.inf), False)[0])

            outputs, weights = attend(need_weights)
            maps = None
            if intervention.trace is not None:
                maps = weights if weights is not None else attend(True)[1]
                assert maps is not None
                maps = maps if maps.ndim == 4 else maps[None]  # batch head query key
            z = intervention.apply(site, heads_of(outputs), maps, narrow).flatten(2)
            output = attention.out_proj(z.transpose(0, 1) if batched else z[0])  # query batch embed
            if need_weights and average_attn_weights and weights is not None:
                weights = weights.mean(dim=-3)
            return output.transpose(0, 1) if batched and first else output, weights

        with slow_path(), replace_forward(attention, forward):
            yield

    return hook


def _visible(mask: Tensor | None, padding: Tensor | None, rows: int, heads: int, tokens: int, query: Tensor) -> Tensor:
    """Returns which keys each query sees, [row, head, query, key], under PyTorch's two masks."""
    seen = torch.ones(rows, heads, tokens, tokens, dtype=torch.bool, device=query.device)
    if mask is not None:
        shown = ~mask if mask.dtype == torch.bool else mask > -torch.inf
        seen = seen & (shown.view(rows, heads, tokens, tokens) if mask.ndim == 3 else shown)
    if padding is not None:
        shown = ~padding if padding.dtype == torch.bool else padding > -torch.inf
        seen = seen & shown.view(rows, 1, 1, tokens)
    return seen
