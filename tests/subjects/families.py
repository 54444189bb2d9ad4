"""Families of transformers as tiny models with random weights, and the inputs of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from references import randomised
from torch import Tensor, nn

WORDS = 40
SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED: dict[str, Any] = {
    **SHAPE,
    **TOKENS,
    "vocab_size": WORDS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
READER: dict[str, Any] = {**SHAPE, **TOKENS, "vocab_size": WORDS, "max_position_embeddings": 32}
TRANSLATOR = {
    **TOKENS,
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


def _factory(config: str, model: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        return randomised(getattr(transformers, model)(getattr(transformers, config)(**options)))

    return make


Family = tuple[Callable[[], nn.Module], str]
GPT2: dict[str, Any] = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, **TOKENS}
WHISPER = {**TRANSLATOR, "num_mel_bins": 4, "max_source_positions": 6, "max_target_positions": 16}
WHISPER = {name: value for name, value in WHISPER.items() if name != "max_position_embeddings"}
T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, **TOKENS}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8}
FAMILIES: dict[str, Family] = {
    "GPT-2": (_factory("GPT2Config", "GPT2LMHeadModel", **GPT2), "dispatch"),
    "Llama": (_factory("LlamaConfig", "LlamaForCausalLM", **GROUPED), "dispatch"),
    "Qwen2": (_factory("Qwen2Config", "Qwen2ForCausalLM", **GROUPED), "dispatch"),
    "Qwen3": (_factory("Qwen3Config", "Qwen3ForCausalLM", head_dim=6, **GROUPED), "dispatch"),
    "Gemma 2": (
        _factory(
            "Gemma2Config", "Gemma2ForCausalLM", head_dim=6, attn_implementation="eager", sliding_window=4, **GROUPED
        ),
        "dispatch",
    ),
    "Gemma 3": (_factory("Gemma3TextConfig", "Gemma3ForCausalLM", head_dim=6, sliding_window=4, **GROUPED), "dispatch"),
    "Mistral": (_factory("MistralConfig", "MistralForCausalLM", sliding_window=4, **GROUPED), "dispatch"),
    "GPT-NeoX": (_factory("GPTNeoXConfig", "GPTNeoXForCausalLM", **READER), "dispatch"),
    "GPT-OSS": (
        _factory(
            "GptOssConfig", "GptOssForCausalLM", head_dim=6, num_local_experts=2, num_experts_per_tok=1, **GROUPED
        ),
        "dispatch",
    ),
    "BERT": (_factory("BertConfig", "BertForMaskedLM", **READER), "dispatch"),
    "BERT, classifying": (_factory("BertConfig", "BertForSequenceClassification", **READER), "dispatch"),
    "DistilBERT": (
        _factory(
            "DistilBertConfig",
            "DistilBertForMaskedLM",
            **TOKENS,
            vocab_size=WORDS,
            dim=16,
            n_layers=2,
            n_heads=4,
            hidden_dim=24,
            max_position_embeddings=32,
        ),
        "dispatch",
    ),
    "RoBERTa": (_factory("RobertaConfig", "RobertaForMaskedLM", **READER), "dispatch"),
    "DeBERTa": (_factory("DebertaConfig", "DebertaForMaskedLM", **READER, **DEBERTA), "projection"),
    "DeBERTa 2": (_factory("DebertaV2Config", "DebertaV2ForMaskedLM", **READER, **DEBERTA), "projection"),
    "BLOOM": (
        _factory("BloomConfig", "BloomForCausalLM", **TOKENS, vocab_size=WORDS, hidden_size=16, n_layer=2, n_head=4),
        "projection",
    ),
    "T5": (_factory("T5Config", "T5ForConditionalGeneration", **T5), "dispatch"),
    "BART": (_factory("BartConfig", "BartForConditionalGeneration", **TRANSLATOR), "dispatch"),
    "Marian": (_factory("MarianConfig", "MarianMTModel", **TRANSLATOR), "dispatch"),
    "Whisper": (_factory("WhisperConfig", "WhisperForConditionalGeneration", **WHISPER), "dispatch"),
    "ViT": (_factory("ViTConfig", "ViTForImageClassification", **SHAPE, image_size=8, patch_size=4), "dispatch"),
}
TWO_STACKS = ("T5", "BART", "Marian", "Whisper")
CAUSAL_ONES = ("GPT-2", "Llama", "Qwen2", "Qwen3", "Gemma 2", "Gemma 3", "Mistral", "GPT-NeoX", "GPT-OSS", "BLOOM")


def inputs_of(name: str) -> dict[str, Tensor]:
    """Makes inputs other than those used for attaching, with one row padded."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(3, WORDS, (2, 9), generator=generator)
    seen = torch.ones_like(tokens)
    seen[1, 6:] = 0
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator)}
    answer = {"decoder_input_ids": torch.randint(3, WORDS, (2, 6), generator=generator)} if name in TWO_STACKS else {}
    if name == "Whisper":
        return {"input_features": torch.randn(2, 4, 12, generator=generator), **answer}
    return {"input_ids": tokens, "attention_mask": seen, **answer}


def expected_sites(name: str) -> list[str]:
    if name in TWO_STACKS:
        decoder = [f"decoder.{layer}.{kind}" for layer in (0, 1) for kind in ("self", "cross")]
        return ["encoder.0.self", "encoder.1.self", *decoder]
    return [f"{'decoder' if name in CAUSAL_ONES else 'encoder'}.{layer}.self" for layer in (0, 1)]
