"""Sandwich: sinusoidal attention without its cross terms, Σ cos(d / 10000^(2i/128)) for i from 1 to
64, minus its value at distance 0, divided by 8h/H for head h of H (Chi et al., 2023). Symmetric: in an encoder it
cannot tell a sequence from its reverse."""

import torch
from torch import Tensor

from headway.positions.positions import Relative

WAVES = 128  # the published number of sines and cosines


class Sandwich(Relative):
    name = "sandwich"
    reversible = True

    def of_distance(self, distance: Tensor) -> Tensor:
        waves = 10_000.0 ** (-torch.arange(2, WAVES + 1, 2, device=distance.device, dtype=torch.float64) / WAVES)
        fall = (distance[..., None] * waves).cos().sum(-1) - len(waves)
        ratio = 8 * torch.arange(1, self.shape.heads + 1, device=distance.device) / self.shape.heads
        return fall.float() / ratio.view(-1, *[1] * distance.ndim)
