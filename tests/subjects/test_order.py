"""How a causal language model tells order is read off the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES
from language import make, tokens

from headway import HeadwayError
from headway.attach.cures import cures_for, shams_for
from headway.attach.order import Setting, TokenOrder, find_order

ROTARY = ("none", "interpolation", "ntk", "dynamic-ntk", "yarn", "log-length", "window")
FOUND = {
    "Llama": TokenOrder("rotary", ("model.rotary_emb",), None, 64, None, 2),
    "Qwen2": TokenOrder("rotary", ("model.rotary_emb",), None, 64, None, 2),
    "Gemma 2": TokenOrder("rotary", ("model.rotary_emb",), None, 64, None, 2),
    "Gemma 3": TokenOrder("rotary", ("model.rotary_emb",), None, 64, None, 2),
    "Mistral": TokenOrder("rotary", ("model.rotary_emb",), None, 64, 12, 2),
    "GPT-NeoX": TokenOrder("rotary", ("gpt_neox.rotary_emb",), None, 64, None, 2),
    "GPT-2": TokenOrder("table", ("transformer.wpe",), 24, 24, None, 2),
    "OPT": TokenOrder("table", ("model.decoder.embed_positions",), 24, 24, None, 2),
    "BLOOM": TokenOrder(
        "alibi", tuple(f"transformer.h.{layer}.self_attention" for layer in (0, 1)), None, None, None, 2
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_order_of_families(name: str) -> None:
    assert find_order(make(name)) == FOUND[name]


def test_the_table_ends_where_the_model_ends() -> None:
    for name in ("GPT-2", "OPT"):
        model, longest = make(name), FOUND[name].longest
        assert longest is not None
        model(input_ids=tokens(longest), use_cache=False)
        with pytest.raises(IndexError):
            model(input_ids=tokens(longest + 1), use_cache=False)


def test_cures_of_each_kind() -> None:
    assert cures_for(FOUND["Llama"]) == ROTARY
    assert cures_for(FOUND["Mistral"]) == (*ROTARY, "sinks")
    assert cures_for(FOUND["GPT-2"]) == ("none", "interpolation", "clamp", "reuse", "log-length", "window")
    assert cures_for(FOUND["BLOOM"]) == ("none", "interpolation", "clamp", "log-length", "window")
    assert {cure: shams_for(FOUND["Mistral"], cure) for cure in cures_for(FOUND["Mistral"])} == {
        "none": None,
        **dict.fromkeys(("interpolation", "ntk", "dynamic-ntk", "yarn"), "interpolation-in-range"),
        "log-length": "temperature",
        "window": None,
        "sinks": "sinks-elsewhere",
    }
    assert shams_for(FOUND["OPT"], "clamp") == "interpolation-in-range"
    assert shams_for(FOUND["BLOOM"], "interpolation") == "temperature"


def test_a_training_length_in_the_rope_parameters_wins() -> None:
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    order = find_order(make("Llama", rope_parameters=scaled))
    assert order.claimed == 16
    assert cures_for(order) == ROTARY


def test_frequencies_that_follow_the_length_are_not_cured() -> None:
    order = find_order(make("Llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}))
    assert "already change with the length" in order.fixed
    assert cures_for(order) == ("none", "log-length", "window")


def other(config: str, model: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options))


def test_other_models_are_refused_in_one_sentence() -> None:
    small: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1}
    with pytest.raises(HeadwayError, match=r"^T5ForConditionalGeneration reads and writes with two stacks; a length"):
        find_order(FAMILIES["T5"][0]())
    with pytest.raises(HeadwayError, match=r"^BertForSequenceClassification is not a causal language model; load"):
        find_order(FAMILIES["BERT, classifying"][0]())
    bert: dict[str, Any] = {**small, "num_attention_heads": 2, "intermediate_size": 8}
    with pytest.raises(HeadwayError, match=r"^BertLMHeadModel reads in both directions; load it with is_decoder=True"):
        find_order(other("BertConfig", "BertLMHeadModel", **bert))
    assert (
        "position_ids also ends at 512"
        in find_order(other("BertConfig", "BertLMHeadModel", **bert, is_decoder=True)).fixed
    )
    with pytest.raises(HeadwayError, match=r"^MambaForCausalLM has no attention that compares tokens"):
        find_order(other("MambaConfig", "MambaForCausalLM", **small, state_size=4))
    with pytest.raises(HeadwayError, match=r"^GPTJForCausalLM tells order in a way that Headway does not know"):
        find_order(other("GPTJConfig", "GPTJForCausalLM", vocab_size=40, n_embd=16, n_layer=1, n_head=2, rotary_dim=4))
    with pytest.raises(HeadwayError, match=r"^Linear is not a transformers model"):
        find_order(torch.nn.Linear(2, 2))


def test_a_model_that_cannot_be_longer_says_so() -> None:
    options: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_heads": 2, "num_layers": 1}
    order = find_order(
        other(
            "GPTNeoConfig",
            "GPTNeoForCausalLM",
            **options,
            attention_types=[[["global"], 1]],
            max_position_embeddings=32,
        )
    )
    assert order.kind == "table"
    assert "bias also ends at 32 positions" in order.fixed
    assert cures_for(order) == ("none",)
    falcon: dict[str, Any] = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert cures_for(find_order(other("FalconConfig", "FalconForCausalLM", **falcon, alibi=True))) == ("none",)
    rotary = find_order(other("FalconConfig", "FalconForCausalLM", **falcon))
    assert cures_for(rotary) == ("none", "interpolation", "ntk", "dynamic-ntk", "yarn")
    mpt = find_order(
        other("MptConfig", "MptForCausalLM", vocab_size=40, d_model=16, n_heads=2, n_layers=1, max_seq_len=32)
    )
    assert (mpt.kind, mpt.longest, cures_for(mpt)) == ("alibi", 32, ("none",))


def test_a_factor_is_at_least_one() -> None:
    assert Setting(16, 64).factor == 4
    assert Setting(16, 8).factor == 1
    with pytest.raises(HeadwayError, match="at least 2 tokens, not 1"):
        Setting(1, 8)
