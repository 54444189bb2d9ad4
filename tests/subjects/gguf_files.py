"""Writes a tiny Llama as a GGUF file, the way llama.cpp's converter does: with its names, and with the rows of queries
and keys in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from torch import Tensor

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(LETTERS) + 4, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=96, max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def write_gguf(model: Any, path: Path, kind: GGMLQuantizationType = GGMLQuantizationType.Q8_0) -> None:
    """Writes a model; its matrices are quantised, its norms are not."""
    writer, config = GGUFWriter(path, "llama"), model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(16)
    tokens = ["<unk>", "<s>", "</s>", *LETTERS, "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(LETTERS) + 1))
    writer.add_token_merges(["a b"])
    for name, number in (("unk", 0), ("bos", 1), ("eos", 2), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(number)
    for name, weight in model.state_dict().items():
        parts = name.removesuffix(".weight").split(".")
        block = f"blk.{parts[2]}." if "layers" in parts else ""
        known = NAMES[".".join(parts[3:] if block else parts)]
        rows = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(known)
        numbers = (weight if rows is None else _interleave(weight, rows)).detach().float().numpy()
        if weight.ndim == 2:
            writer.add_tensor(f"{block}{known}.weight", quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{block}{known}.weight", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleave(weight: Tensor, heads: int) -> Tensor:
    """Orders rows as llama.cpp does: the two halves that a rotary encoding turns together stand side by side."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
