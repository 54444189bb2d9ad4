"""`model.generate` with a cache of windows writes what the masked copy writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from masked_models import Masked, draw, mixed_budget, pad_left, small_model
from torch import Tensor
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

import headway
from headway import Budget, HeadwayError

NEW = 12


def generate(model: Any, tokens: Tensor, budget: Budget, mask: Tensor | None = None, **options: Any) -> Tensor:
    with headway.cache(model, budget) as cache:
        return model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens) if mask is None else mask,
            past_key_values=cache,
            **{"max_new_tokens": NEW, "do_sample": False, **options},
        )


@pytest.mark.parametrize("family", ["Mistral", "GPT2"])
def test_greedy_decoding_of_a_padded_batch(family: str) -> None:
    model, tokens, mask = small_model(family), draw(3, 10), pad_left([10, 6, 1], 10)
    budget = mixed_budget(model)
    masked = Masked(model, budget).greedy(tokens, mask, NEW)
    assert torch.equal(generate(model, tokens, budget, mask), masked)
    assert torch.equal(generate(model, tokens, budget, mask, prefill_chunk_size=4), masked)
    assert not torch.equal(model.generate(tokens, attention_mask=mask, max_new_tokens=NEW, do_sample=False), masked)


def test_sampling_and_beam_search_equal_those_without_a_cache() -> None:
    """The masked copy has no cache: `generate` runs whole texts there."""
    model, tokens = small_model("Qwen2"), draw(2, 9)
    budget = mixed_budget(model)
    choices: tuple[dict[str, Any], ...] = (
        {"do_sample": True, "top_k": 5},
        {"num_beams": 3},
        {"num_beams": 2, "num_return_sequences": 2},
    )
    for options in choices:
        torch.manual_seed(0)
        found = generate(model, tokens, budget, **options)
        torch.manual_seed(0)
        assert torch.equal(found, masked_generate(model, tokens, budget, **options))


def masked_generate(model: Any, tokens: Tensor, budget: Budget, **options: Any) -> Tensor:
    reference = Masked(model, budget)
    plain = reference.model.forward

    def forward(input_ids: Tensor, **given: Any) -> Any:
        reference.see(torch.ones_like(input_ids))
        return plain(input_ids=input_ids, **given)

    reference.model.forward = forward
    given = {"max_new_tokens": NEW, "do_sample": False, **options}
    return reference.model.generate(tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **given)


def test_a_conversation_is_continued_with_the_same_cache() -> None:
    model, budget = small_model("Llama"), mixed_budget(small_model("Llama"))
    reference = Masked(model, budget)
    text = masked = draw(1, 8)
    with headway.cache(model, budget) as cache:
        for turn in range(3):
            said = draw(1, 5, seed=turn)
            text, masked = torch.cat((text, said), 1), torch.cat((masked, said), 1)
            ones = torch.ones_like(text)
            text = model.generate(text, attention_mask=ones, past_key_values=cache, max_new_tokens=4, do_sample=False)
            masked = reference.greedy(masked, ones, 4)
            assert torch.equal(text, masked)


def test_assisted_decoding_is_refused() -> None:
    model = small_model("Llama")
    with pytest.raises(HeadwayError, match="cannot take tokens back"):
        generate(model, draw(1, 8), mixed_budget(model), assistant_model=small_model("Llama", 1))


TINY: Any = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
NOT_FITTING = {
    "AttentionInterface": lambda: BloomForCausalLM(BloomConfig(vocab_size=61, hidden_size=16, n_layer=1, n_head=2)),
    "two stacks": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=61, d_model=16, d_kv=8, d_ff=16, num_layers=1)
    ),
    "does not write": lambda: LlamaModel(LlamaConfig(**TINY, intermediate_size=16)),
    "not a transformers model": lambda: torch.nn.Linear(2, 2),
}


@pytest.mark.parametrize("named", NOT_FITTING)
def test_families_that_cannot_have_one_are_refused(named: str) -> None:
    with pytest.raises(HeadwayError, match=named):
        headway.cache(NOT_FITTING[named](), Budget(4, {"decoder.0.self": (None, 16)}))


def test_a_budget_that_does_not_fit_is_refused() -> None:
    model = small_model("Llama")
    budget = mixed_budget(model)
    windows = dict(budget.windows)
    for wrong, named in (
        ({**windows, "decoder.9.self": (4,)}, r"decoder\.9\.self, which the model does not have"),
        ({**windows, "decoder.1.self": (4, 4, 4, 4)}, r"4 windows, but it has 2"),
        ({"decoder.0.self": (4, 4)}, r"no windows for decoder\.1\.self"),
    ):
        with pytest.raises(HeadwayError, match=named):
            headway.cache(model, Budget(2, wrong))
    with pytest.raises(HeadwayError, match="no budget"):
        headway.cache(model)
    assert model.config._attn_implementation == "sdpa"  # nothing was switched


def test_wrong_use_is_refused_in_a_sentence() -> None:
    model, other, tokens = small_model("Llama"), small_model("Llama", 1), draw(1, 6)
    cache = headway.cache(model, mixed_budget(model))
    with pytest.raises(HeadwayError, match="attention mask has shape"):
        model(tokens, attention_mask=torch.ones(1, 1, 6, 6, dtype=torch.bool), past_key_values=cache)
    with pytest.raises(HeadwayError, match="outside its model"):
        other(tokens, past_key_values=cache)
    cache.close()
    with pytest.raises(HeadwayError, match="closed"):
        model(tokens, past_key_values=cache)
