"""Narrowed attention: a head that sees only the first few tokens of its row, its sinks, and the most recent ones.

A narrowed head outputs what it would if its mask hid everything else, computed from the queries, keys and values of
this very pass. So that is a replacement of the head's output like any other (`Gate`), and a variant stays a batch row.
The place of a token is its place in the row, whatever number its position has; padding is no token.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.errors import HeadwayError
from headway.models.sites import Gate, Narrowing, Site


def find_hidden(
    narrowing: Narrowing, queries: int, keys: int, real: Bool[Tensor, "#batch key"] | None = None
) -> Bool[Tensor, "#batch head query key"]:
    """Returns which keys narrowed heads do not see; the last query is the last key. `real` marks tokens that are no
    padding, where there is any."""
    recent = narrowing.recent
    place = torch.arange(keys, device=recent.device)
    distance = (place[keys - queries :, None] - place).abs()  # query key
    real = torch.ones(1, keys, dtype=torch.bool, device=recent.device) if real is None else real
    sinks = real & (real.cumsum(1) <= narrowing.sink)  # batch key
    return (distance >= recent[:, :, None, None]) & ~sinks[:, None, None]


def narrow_mask(
    narrowing: Narrowing,
    mask: Tensor | None,
    tokens: int,
    causal: bool = False,
) -> Float[Tensor, "batch head token token"] | Bool[Tensor, "batch head token token"]:
    """Narrows a mask of self-attention, [batch, 1 or head, token, token]: numbers that are added to the scores, or
    booleans that are true where a key is seen. A query that would see nothing, as padding may, sees what it saw."""
    if mask is None:
        mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device=narrowing.recent.device)
        mask = mask.tril() if causal else mask
    mask = mask[..., :tokens]
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    hidden = find_hidden(narrowing, tokens, tokens, seen.diagonal(dim1=-2, dim2=-1)[:, 0])
    left = seen & ~hidden
    left = left | (seen & ~left.any(-1, keepdim=True))
    if mask.dtype == torch.bool:
        return left
    return mask.expand(left.shape).masked_fill(seen & ~left, torch.finfo(mask.dtype).min)


def fill_narrowed(gate: Gate | None, site: Site, outputs: Callable[[Narrowing], Tensor] | None) -> Gate | None:
    """Returns the gate with what narrowed heads output as its replacement; `outputs` is None where a site's scores
    cannot be masked."""
    if gate is None or gate.narrowing is None:
        return gate
    if site.kind != "self":
        raise HeadwayError(
            f"{site} attends to another sequence, in which no token is recent; narrow only heads of self-attention"
        )
    if outputs is None:
        raise HeadwayError(f"{site} cannot be narrowed: its scores cannot be masked; leave its heads out")
    return replace(gate, replacement=outputs(gate.narrowing))
