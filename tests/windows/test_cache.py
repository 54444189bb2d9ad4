"""A model with a cache of windows gives the logits of a deep copy whose heads are masked, token by token."""

from __future__ import annotations

import pytest
import torch
from masked_models import FAMILIES, Masked, draw, largest, mixed_budget, pad_left, small_model
from torch import Tensor

import headway
from headway import Budget

CLOSE = 1e-9
"""The models compute in float64; some families take the softmax in float32."""


@torch.no_grad()
def logits_in_parts(
    model: torch.nn.Module, budget: Budget, tokens: Tensor, mask: Tensor | None, sizes: list[int]
) -> Tensor:
    """Runs a text in parts of these sizes through one cache."""
    found, begin = [], 0
    with headway.cache(model, budget) as cache:
        for size in sizes:
            end = begin + size
            seen = None if mask is None else mask[:, :end]
            found.append(model(tokens[:, begin:end], attention_mask=seen, past_key_values=cache).logits)
            begin = end
    assert begin == tokens.shape[1]
    return torch.cat(found, dim=1)


PARTS = {
    "at once": [24],
    "token by token": [1] * 24,
    "prefill, then tokens": [13, *[1] * 11],
    "chunks": [4, 9, 1, 1, 2, 7],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_the_masked_copy(family: str) -> None:
    model, tokens = small_model(family), draw(3, 24)
    budget = mixed_budget(model)
    reference = Masked(model, budget)
    masked, whole = reference.logits(tokens), model(tokens).logits
    assert largest(masked - whole) > 1e-2  # the windows do hide something
    padding = pad_left([24, 17, 20], 24)
    masked_padded, real = reference.logits(tokens, padding), padding.bool()
    limit = 1e-5 * max(1.0, largest(masked))
    for sizes in PARTS.values():
        assert largest(logits_in_parts(model, budget, tokens, None, sizes) - masked) < limit
        found = logits_in_parts(model, budget, tokens, padding, sizes)
        assert largest((found - masked_padded)[real]) < limit
