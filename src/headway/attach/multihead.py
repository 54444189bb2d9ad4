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
from headway.models.sites import Site


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
            def attend(need: bool) -> tuple[Tensor, Tensor | None]:
                given = (query, key, value, key_padding_mask, need, attn_mask, False, is_causal)
                identity = torch.eye(attention.embed_dim, dtype=query.dtype, device=query.device)
                attention.__dict__["out_proj"] = SimpleNamespace(weight=identity, bias=None)  # shadows the module's own
                try:
                    return nn.MultiheadAttention.forward(attention, *given)
                finally:
                    del attention.__dict__["out_proj"]

            outputs, weights = attend(need_weights)
            maps = None
            if intervention.trace is not None:
                maps = weights if weights is not None else attend(True)[1]
                assert maps is not None
                maps = maps if maps.ndim == 4 else maps[None]  # batch head query key
            batched, first = query.ndim == 3, attention.batch_first
            z = (outputs if first else outputs.transpose(0, 1)) if batched else outputs[None]
            site = intervention.site_of_call(sites)
            z = intervention.apply(site, z.unflatten(-1, (attention.num_heads, -1)), maps).flatten(2)
            output = attention.out_proj(z.transpose(0, 1) if batched else z[0])  # query batch embed
            if need_weights and average_attn_weights and weights is not None:
                weights = weights.mean(dim=-3)
            return output.transpose(0, 1) if batched and first else output, weights

        with slow_path(), replace_forward(attention, forward):
            yield

    return hook
