"""Attention of some heads to some keys: scaled dot products, with the softcaps and learned sinks that families have.

A query at place i sees the key at place j, where j is at most i, if i − j is less than its window or j is one of the
first real tokens of its row. What the model's own mask hides stays hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import HeadwayError

NOT_KNOWN = ("position_bias", "indices")
"""options of attention that change its scores or its keys in ways that parts of a cache do not follow"""


@dataclass(frozen=True)
class Scoring:
    """How the heads of an attention module turn queries and keys into weights."""

    scaling: float | None
    softcap: float | None
    sinks: Tensor | None
    """a learned score of each head that takes weight from all keys"""
    dropout: float

    @classmethod
    def of(cls, module: nn.Module, options: Mapping[str, Any]) -> "Scoring":
        """Reads the options that a family gives its attention; raises for those that cannot be followed."""
        if unknown := [name for name in NOT_KNOWN if options.get(name) is not None]:
            raise HeadwayError(
                f"{type(module).__name__} attends with {unknown[0]}, which a cache of windows cannot follow"
            )
        given = {"scaling": options.get("scaling"), "softcap": options.get("softcap"), "sinks": options.get("s_aux")}
        return cls(**given, dropout=options.get("dropout") or 0.0)

    def of_heads(self, heads: Tensor) -> "Scoring":
        """Returns the scoring of some of the heads."""
        if self.sinks is None:
            return self
        return Scoring(self.scaling, self.softcap, self.sinks[heads], self.dropout)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attends with queries [batch, head, query, dim] to the keys of their groups [batch, group, key, dim].

    `mask` is true where a query sees a key; `causal` stands for the mask of a whole text.
    """
    batch, heads, queries, _ = query.shape
    each = heads // key.shape[1]
    if scoring.softcap is not None or scoring.sinks is not None:
        seen = torch.ones(queries, queries, dtype=torch.bool, device=query.device).tril_() if causal else mask
        return _attend_slowly(query, key, value, scoring, seen)
    if causal:
        shared = each > 1 and key.shape[-1] == value.shape[-1] <= 256  # what the fast kernels take
        if each > 1 and not shared:
            key, value = key.repeat_interleave(each, dim=1), value.repeat_interleave(each, dim=1)
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=scoring.dropout, is_causal=True, scale=scoring.scaling, enable_gqa=shared
        )
    folded = query.reshape(batch, key.shape[1], each * queries, -1)  # the heads of a group are further queries
    if mask is not None and each > 1 and queries > 1:
        mask = mask.repeat(1, 1, each, 1)
    z = F.scaled_dot_product_attention(folded, key, value, mask, dropout_p=scoring.dropout, scale=scoring.scaling)
    return z.reshape(batch, heads, queries, -1)


def _attend_slowly(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, mask: Tensor | None) -> Tensor:
    each = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(each, dim=1), value.repeat_interleave(each, dim=1)
    scaling = query.shape[-1] ** -0.5 if scoring.scaling is None else scoring.scaling
    scores = query @ key.transpose(-1, -2) * scaling  # batch head query key
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    if scoring.sinks is not None:
        learned = scoring.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, learned.to(scores.dtype)), dim=-1)
    wide = torch.promote_types(scores.dtype, torch.float32)
    maps = scores.softmax(-1, dtype=wide)[..., : key.shape[2]].to(query.dtype)
    return F.dropout(maps, scoring.dropout) @ value
