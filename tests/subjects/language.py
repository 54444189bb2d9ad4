"""Tiny causal language models with random weights, whose order can be changed: heads of 8 numbers, 64 positions."""

from __future__ import annotations

from typing import Any

import torch
from references import randomised
from torch import Tensor

WORDS, TRAINED, LENGTH = 40, 16, 48
TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": WORDS}
SHAPE: dict[str, Any] = {
    **TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
GROUPED: dict[str, Any] = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}
LOCAL: dict[str, Any] = {**GROUPED, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
OPTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GROUPED),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED),
    "Phi-3": ("Phi3Config", "Phi3ForCausalLM", {**SHAPE, "num_key_value_heads": 2}),
    "Mixtral": ("MixtralConfig", "MixtralForCausalLM", {**SHAPE, "num_key_value_heads": 2, "num_local_experts": 2}),
    "Gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", {**LOCAL, "attn_implementation": "eager"}),
    "Gemma 3": ("Gemma3TextConfig", "Gemma3ForCausalLM", LOCAL),
    "GPT-OSS": ("GptOssConfig", "GptOssForCausalLM", {**LOCAL, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "Mistral": ("MistralConfig", "MistralForCausalLM", {**GROUPED, "sliding_window": 12}),
    "GPT-NeoX": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {**SHAPE, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", {**TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}),
    "OPT": (
        "OPTConfig",
        "OPTForCausalLM",
        {**SHAPE, "ffn_dim": 24, "word_embed_proj_dim": 32, "max_position_embeddings": 24, "dropout": 0.0},
    ),
    "BLOOM": ("BloomConfig", "BloomForCausalLM", {**TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
}


def make(name: str, **changed: Any) -> Any:
    """Makes a model; the same weights whatever is changed in its config."""
    import transformers

    config, model, options = OPTIONS[name]
    return randomised(getattr(transformers, model)(getattr(transformers, config)(**{**options, **changed})))


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, WORDS, (2, length), generator=torch.Generator().manual_seed(7))


@torch.no_grad()
def logits(model: Any, length: int = LENGTH) -> Tensor:
    return model(input_ids=tokens(length), use_cache=False).logits
