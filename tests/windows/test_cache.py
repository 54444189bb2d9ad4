"""A model with a cache of windows gives the logits of a deep copy whose heads are masked, token by token."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
import torch
from masked_models import FAMILIES, Masked, draw, largest, mixed_budget, pad_left, small_model
from torch import Tensor

import headway
from headway import Budget
from headway.windows import parts
from headway.windows.switching import narrowed

QUICK = ("Llama", "Qwen2", "Mistral", "Gemma2", "GPTNeoX", "GPT2", "Phi3")
PARTS = {"at once": [20], "chunks and tokens": [1, 3, 8, 1, 1, 1, 1, 4]}


@torch.no_grad()
def logits_in_parts(model: Any, budget: Budget, tokens: Tensor, mask: Tensor | None, sizes: list[int]) -> Tensor:
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


@pytest.mark.parametrize(
    "family", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_every_family_equals_the_masked_copy(family: str) -> None:
    model, tokens = small_model(family), draw(2, 20)
    budget = mixed_budget(model)
    reference = Masked(model, budget)
    masked, whole = reference.logits(tokens), model(tokens).logits
    assert largest(masked - whole) > 1e-2  # the windows do hide something
    padding = pad_left([20, 14], 20)
    masked_padded, real = reference.logits(tokens, padding), padding.bool()
    limit = 1e-5 * max(1.0, largest(masked))
    for sizes in PARTS.values():
        assert largest(logits_in_parts(model, budget, tokens, None, sizes) - masked) < limit
        found = logits_in_parts(model, budget, tokens, padding, sizes)
        assert largest((found - masked_padded)[real]) < limit


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
@pytest.mark.parametrize("seed", range(2))
def test_the_size_of_parts_and_blocks_changes_nothing(family: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(parts, "BLOCK", dice.randint(1, 5))
    monkeypatch.setattr(parts, "SMALLEST_STEP", dice.randint(1, 3))
    model, tokens, sizes = small_model(family), draw(2, 26), []
    while (left := 26 - sum(sizes)) > 0:
        sizes.append(min(left, dice.choice((1, 1, 2, 5, 11))))
    budget = mixed_budget(model, dice.randint(0, 4), (None, *dice.sample(range(1, 9), 3)))
    padding = pad_left([26, dice.randint(3, 25)], 26)
    masked, real = Masked(model, budget).logits(tokens, padding), padding.bool()
    found = logits_in_parts(model, budget, tokens, padding, sizes)
    assert largest((found - masked)[real]) < 1e-5 * max(1.0, largest(masked))


def test_an_open_cache_leaves_other_passes_as_they_were() -> None:
    """Without a cache of windows the model computes the same bits; closed, its own attention is restored."""
    model, tokens = small_model("Llama"), draw(2, 12)
    whole, before = model(tokens).logits, model.config._attn_implementation
    first = headway.cache(model, mixed_budget(model))
    with headway.cache(model, mixed_budget(model)) as second:
        model(tokens, past_key_values=second)
        assert torch.equal(model(tokens).logits, whole)
    assert model.config._attn_implementation != before
    first.close()
    assert model.config._attn_implementation == before
    assert not model.base_model._forward_pre_hooks
    assert torch.equal(model(tokens).logits, whole)


def test_a_cache_that_was_dropped_unclosed_does_no_harm() -> None:
    model, tokens = small_model("Llama"), draw(1, 6)
    whole, budget = model(tokens).logits, mixed_budget(model)
    for _ in range(3):
        model(tokens, past_key_values=headway.cache(model, budget))
        gc.collect()
    assert torch.equal(model(tokens).logits, whole)
    headway.cache(model, budget).close()
    assert model.config._attn_implementation == "sdpa"
    assert not model.base_model._forward_pre_hooks


def test_narrowed_passes_equal_the_masked_copy() -> None:
    """Without a cache of its own, each pass gets one; a pass beside it is as before."""
    model, tokens = small_model("Mistral"), draw(2, 20)
    budget, whole = mixed_budget(model), model(tokens).logits
    masked = Masked(model, budget).logits(tokens)
    with narrowed(model, budget):
        for use_cache in (True, False):
            assert largest(model(tokens, use_cache=use_cache).logits - masked) < 1e-5
            gc.collect()
    assert torch.equal(model(tokens).logits, whole)


def test_two_conversations_do_not_mix() -> None:
    model, budget, one, two = small_model("Qwen2"), mixed_budget(small_model("Qwen2")), draw(1, 12, 1), draw(1, 12, 2)
    with headway.cache(model, budget) as left, headway.cache(model, budget) as right:
        both = [
            (model(one[:, [n]], past_key_values=left).logits, model(two[:, [n]], past_key_values=right).logits)
            for n in range(12)
        ]
    for text, found in zip((one, two), zip(*both, strict=True), strict=True):
        assert largest(torch.cat(found, dim=1) - Masked(model, budget).logits(text)) < 1e-5


@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_the_stored_bytes_are_those_predicted(family: str) -> None:
    """Within 3% from a thousand tokens on, in a prefill and while the text grows; the full cache takes more."""
    model = small_model(family).float()
    budget = mixed_budget(model, 4, (None, 64, 256))
    with headway.cache(model, budget) as cache, torch.no_grad():
        for length in (1024, 1025, 1100, 1500):
            model.base_model(draw(2, length - cache.get_seq_length()), past_key_values=cache)
            assert abs(cache.nbytes / cache.predict_bytes(length, 2) - 1) < 0.03
    assert cache.predict_bytes(1500, 2) < 0.8 * cache.predict_bytes(1500, 2, full=True)
    dynamic = model.base_model(draw(2, 300), use_cache=True).past_key_values
    if family == "Llama":
        full = sum(each.nbytes for layer in dynamic.layers for each in (layer.keys, layer.values))
        assert full == cache.predict_bytes(300, 2, full=True)
        assert cache.predict_bytes(300) / cache.predict_bytes(300, full=True) == pytest.approx(budget.cache_share(300))
