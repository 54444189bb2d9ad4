"""Whisper's forward pass written out plainly, on weights in OpenAI's layout: what a converted model must equal."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import conv1d, gelu, layer_norm, linear

Weights = Mapping[str, Tensor]


def forward(dims: Mapping[str, int], weights: Weights, sound: Tensor, tokens: Tensor) -> Tensor:
    """Returns the logits after each token; `sound` is a log-mel spectrogram [row, mel, frame]."""
    weights = {name: weight.float() for name, weight in weights.items()}
    x = gelu(conv1d(sound, weights["encoder.conv1.weight"], weights["encoder.conv1.bias"], padding=1))
    x = gelu(conv1d(x, weights["encoder.conv2.weight"], weights["encoder.conv2.bias"], stride=2, padding=1))
    x = x.transpose(1, 2) + weights["encoder.positional_embedding"]
    for layer in range(dims["n_audio_layer"]):
        x = _block(weights, f"encoder.blocks.{layer}", x, None, dims["n_audio_head"])
    heard = _norm(weights, "encoder.ln_post", x)
    y = weights["decoder.token_embedding.weight"][tokens]
    y = y + weights["decoder.positional_embedding"][: tokens.shape[1]]
    for layer in range(dims["n_text_layer"]):
        y = _block(weights, f"decoder.blocks.{layer}", y, heard, dims["n_text_head"])
    return _norm(weights, "decoder.ln", y) @ weights["decoder.token_embedding.weight"].T


def _block(weights: Weights, name: str, x: Tensor, heard: Tensor | None, heads: int) -> Tensor:
    own = _norm(weights, f"{name}.attn_ln", x)
    x = x + _attend(weights, f"{name}.attn", own, own, heads, causal=heard is not None)
    if heard is not None:
        own = _norm(weights, f"{name}.cross_attn_ln", x)
        x = x + _attend(weights, f"{name}.cross_attn", own, heard, heads, causal=False)
    inner = gelu(_linear(weights, f"{name}.mlp.0", _norm(weights, f"{name}.mlp_ln", x)))
    return x + _linear(weights, f"{name}.mlp.2", inner)


def _attend(weights: Weights, name: str, x: Tensor, seen: Tensor, heads: int, causal: bool) -> Tensor:
    query, key, value = (
        _linear(weights, f"{name}.{part}", source).unflatten(-1, (heads, -1)).transpose(1, 2)
        for part, source in (("query", x), ("key", seen), ("value", seen))
    )
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5  # row head query key
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return _linear(weights, f"{name}.out", (scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])
