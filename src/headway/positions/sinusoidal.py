"""Sinusoidal: fixed sines and cosines of the index, added to the embeddings (Vaswani et al., 2017)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.positions.positions import Positions


def sinusoids(index: Int[Tensor, "*shape"], d_model: int) -> Float[Tensor, "*shape {d_model}"]:
    """Sine and cosine side by side, at wavelengths from 2π to 10000 · 2π."""
    half = torch.arange(0, d_model, 2, device=index.device, dtype=torch.float64)
    angle = index[..., None] * torch.exp(half * (-math.log(10_000.0) / d_model))  # … d_model/2
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :d_model]


class Sinusoidal(Positions):
    name = "sinusoidal"

    def embed(self, x: Tensor, index: Tensor) -> Tensor:
        return x + sinusoids(index, self.shape.d_model).to(x.dtype)
