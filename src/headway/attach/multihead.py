"""torch.nn.MultiheadAttention, gated.

It never *calls* its output projection, so nothing put there would fire, and in evaluation a fast path skips even the
module itself. For the time of a run it gets a forward of its own: PyTorch's own forward computes the attention, with
an identity in place of the output projection, so that every mask, bias and layout is PyTorch's; what comes out are
the heads side by side, which pass their gates before the true projection mixes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch import Tensor, nn

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
            def attend(need: bool) -> tuple[Tensor, Tensor | None]:
                given = (query, key, value, key_padding_mask, need, attn_mask, False, is_causal)
                identity = torch.eye(attention.embed_dim, dtype=query.dtype, device=query.device)
                attention.__dict__["out_proj"] = SimpleNamespace(weight=identity, bias=None)  # before the module's own
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
            z = intervention.through(site, z.unflatten(-1, (attention.num_heads, -1)), maps).flatten(2)
            output = attention.out_proj(z.transpose(0, 1) if batched else z[0])  # query batch embed
            if need_weights and average_attn_weights and weights is not None:
                weights = weights.mean(dim=-3)
            return output.transpose(0, 1) if batched and first else output, weights

        with slow_path(), own_forward(attention, forward):
            yield

    return hook
