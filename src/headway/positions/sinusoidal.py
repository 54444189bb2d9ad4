"""Sinusoidal: fixed sines and cosines of the index, added to the embeddings (Vaswani et al., 2017)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.positions.positions import Positions, Unseen


def frequencies(d_model: int, device: torch.device | str = "cpu") -> Float[Tensor, " pair"]:
    """Returns the frequencies, in radians per index, of wavelengths from 2π to 10000 · 2π."""
    half = torch.arange(0, d_model, 2, device=device, dtype=torch.float64)
    return torch.exp(half * (-math.log(10_000.0) / d_model))


def sinusoids(index: Int[Tensor, "*shape"], d_model: int) -> Float[Tensor, "*shape {d_model}"]:
    """Returns interleaved sines and cosines of the index."""
    angle = index[..., None] * frequencies(d_model, index.device)  # … d_model/2
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :d_model]


def unseen_phases(frequencies: Float[Tensor, " pair"], trained: int, tokens: int) -> Unseen | None:
    """Counts the waves with less than a full period in the trained range, whose angles are new in longer sequences."""
    slow = int((frequencies * (trained - 1) < 2 * math.pi).sum())
    if tokens <= trained or not slow:
        return None
    return Unseen("waves are at angles that training never met", slow, len(frequencies))


class Sinusoidal(Positions):
    name = "sinusoidal"

    def embed(self, x: Tensor, index: Tensor) -> Tensor:
        return x + sinusoids(index, self.shape.d_model).to(x.dtype)

    def unseen(self, tokens: int) -> Unseen | None:
        return unseen_phases(frequencies(self.shape.d_model), self.shape.trained, tokens)
