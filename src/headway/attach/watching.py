"""Reads the attention maps of a user's model while it runs, without knowing its sites.

PyTorch's own attention functions and any softmax over keys are watched, so hand-written attention,
`nn.MultiheadAttention` and the layers of `nn.TransformerEncoder` (whose fast path PyTorch then leaves aside) need no
names. Nothing is changed; the model computes what it computes. Where sites are known, attach/intervention.py names the
heads as well.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class AttentionWatch(TorchFunctionMode):
    """Collects the map of every attention over at least `tokens` keys, [batch, head, query, key], in order."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.maps: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is F.multi_head_attention_forward:
            return self._watch_multihead(func, args, named)
        result = func(*args, **named)
        if func is F.scaled_dot_product_attention:
            self._add(weigh_keys(*args, **named))
        elif getattr(func, "__name__", "") == "softmax" and isinstance(result, Tensor):
            self._add(result)
        return result

    def _watch_multihead(self, func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        wanted, averaged = named.get("need_weights", True), named.get("average_attn_weights", True)
        output, weights = func(*args, **{**named, "need_weights": True, "average_attn_weights": False})
        self._add(weights)
        if not wanted:
            return output, None
        return output, weights.mean(dim=-3) if averaged else weights

    def _add(self, weights: Tensor) -> None:
        """Adds a map; what is no distribution over the keys of a sequence is left aside."""
        weights = weights.detach().float()
        if weights.ndim == 3 and weights.shape[-1] == weights.shape[-2]:
            weights = weights[:, None]  # one head
        if weights.ndim != 4 or weights.shape[-1] < self.tokens:
            return
        if bool(((weights.sum(-1) - 1).abs() < 1e-2).all()):
            self.maps.append(weights)


def weigh_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Returns the weights with which `scaled_dot_product_attention` averages its values."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if masked else scores + attn_mask
    return scores.softmax(-1)


def watch_maps(call: Callable[[], Any], tokens: int) -> list[Tensor]:
    """Returns the maps of every attention in a call."""
    with torch.no_grad(), AttentionWatch(tokens) as watch:
        call()
    return watch.maps
