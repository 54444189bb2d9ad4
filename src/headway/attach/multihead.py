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
                _check_self(site, query, key)
                seen = _visible(attn_mask, key_padding_mask, heads_of(value).shape[:3], query.device)
                return heads_of(attend(False, _narrow(narrowing, attn_mask, seen), False)[0])

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


def _check_self(site: Site, query: Tensor, key: Tensor) -> None:
    if key is not query and (key.shape != query.shape or not torch.equal(key, query)):
        raise HeadwayError(
            f"{site} attends to another sequence, in which no token is recent; narrow only heads of self-attention"
        )


def _visible(mask: Tensor | None, padding: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor:
    """Returns which keys each query sees, [row, head, query, key], under PyTorch's two masks."""
    rows, tokens, heads = shape
    seen = torch.ones(rows, heads, tokens, tokens, dtype=torch.bool, device=device)
    if mask is not None:
        shown = ~mask if mask.dtype == torch.bool else mask > -torch.inf
        seen = seen & (shown.view(rows, heads, tokens, tokens) if mask.ndim == 3 else shown)
    if padding is not None:
        shown = ~padding if padding.dtype == torch.bool else padding > -torch.inf
        seen = seen & shown.view(rows, 1, 1, tokens)
    return seen


def _narrow(narrowing: Narrowing, mask: Tensor | None, seen: Tensor) -> Tensor:
    """Returns the mask, [row and head, query, key], with which each head sees only what it is narrowed to."""
    rows, heads, tokens, _ = seen.shape
    hidden = ~narrow_mask(narrowing, seen, tokens).expand(rows, heads, -1, -1).flatten(0, 1)
    if mask is None or mask.dtype == torch.bool:
        return hidden
    return (mask if mask.ndim == 3 else mask[None]).masked_fill(hidden, -torch.inf)
