"""Norms around a point: the gradient of a norm's output, and bounds on everything that is not linear about it.

For N(x) = w(x − μ)/σ + b, σ² = variance + ε, q = (x − μ)/σ, and cw = c∘w without its mean, a deviation Δ of x with
‖Δ‖ ≤ r moves c·N(x) by G·Δ + rest, G = (cw − (cw·q)q/n)/σ. With ρ = r/(√n σ), the new deviation σ′ = mσ lies within
|m − 1| ≤ ρ, and m² = 1 + 2t + s, t = q·Δ/(nσ), 0 ≤ s ≤ ρ². The two parts of the rest are (cw·Δ)(1/σ′ − 1/σ), at most
√n‖cw‖ρ²/(1 − ρ), and (cw·q)((m − 1)/m − t) = (cw·q)(s/2 − (m − 1)²(m + 2)/(2m)), at most |cw·q|ρ²(3 − ρ)/(2(1 − ρ)).
For an RMS norm the same holds without the mean. Rounding is bounded by certify/rounding.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.certify.digits.description import NormWeights
from headway.certify.rounding import ACCURATE, LARGE, RSQRT_ULPS, TINY, U, gamma, length, normalise


class Pulled(NamedTuple):
    """Functionals of a norm's input in place of functionals of its output, and what is not linear."""

    c: Tensor  # row m d
    bent: Tensor  # row m: at most so much is not linear, in exact arithmetic
    rounded: Tensor  # row m: at most so much is rounding in float32


@dataclass(frozen=True)
class NormPoint:
    """A norm at a batch of points, each with a radius."""

    value: Tensor  # row d
    q: Tensor  # row d
    weight: Tensor  # d
    sigma: Tensor  # row 1
    share: Tensor  # row 1: ρ
    scale: Tensor  # row 1: rounding of 1/σ, relative
    shift: Tensor  # row 1: rounding of the mean, over σ
    own: Tensor  # row d: rounding of each output apart from these two
    radius: Tensor  # row: how far the output can move, as a 2-norm, rounding included
    centred: bool

    def pull(self, c: Tensor) -> Pulled:
        """Pulls functionals of the output back to the input; c is row × m × d, or m × d for all rows."""
        weighted = c * self.weight
        mean = weighted.mean(-1, keepdim=True)
        total = mean[..., 0].abs() * c.shape[-1]
        if self.centred:
            weighted = weighted - mean
        along = torch.einsum("rd,rmd->rm" if c.ndim == 3 else "rd,md->rm", self.q, weighted)
        n, size, share = self.q.shape[-1], length(weighted), self.share
        gradient = (weighted - along[..., None] / n * self.q[:, None]) / self.sigma[..., None]
        bent = share**2 * (n**0.5 * size + along.abs() * (3 - share) / 2) / (1 - share)
        largest = along.abs() + size * share * n**0.5 / (1 - share)
        own = torch.einsum("rd,rmd->rm" if c.ndim == 3 else "rd,md->rm", self.own, c.abs())
        rounded = self.scale * largest + self.shift * total + own
        return Pulled(gradient, bent.where(share < 3 * ACCURATE, torch.inf), rounded)


@dataclass(frozen=True)
class NoNorm:
    """The absence of a norm."""

    value: Tensor
    radius: Tensor

    def pull(self, c: Tensor) -> Pulled:
        nothing = self.value.new_zeros(len(self.value), c.shape[-2])
        return Pulled(c.expand(len(self.value), *c.shape[-2:]), nothing, nothing)


def norm_at(norm: NormWeights | None, x: Tensor, r: Tensor) -> NormPoint | NoNorm:
    """Returns a norm at points x, row × d, whose inputs may be r away in float32."""
    if norm is None:
        return NoNorm(x, r)
    if norm.kind == "layer":
        holder = nn.LayerNorm(x.shape[-1], norm.epsilon, dtype=torch.float64)
        holder.weight.data, bias = norm.weight, norm.bias
        holder.bias.data = torch.zeros_like(norm.weight) if bias is None else bias
        at = normalise(x, r, holder)
        return NormPoint(
            at.value, at.q, norm.weight, at.sigma, at.share, at.scale, at.shift, at.own, at.radius, centred=True
        )
    return _rms_at(norm, x, r[:, None])


def _rms_at(norm: NormWeights, x: Tensor, r: Tensor) -> NormPoint:
    n, weight = x.shape[-1], norm.weight
    bias = torch.zeros_like(weight) if norm.bias is None else norm.bias
    sigma = (x.square().mean(-1, keepdim=True) + norm.epsilon).sqrt()
    share = r / (math.sqrt(n) * sigma)
    low = sigma * (1 - share)
    off = gamma(n + 6)  # of the mean square and of ε added to it
    scale = torch.full_like(sigma, off / 2 * (1 + off) + 2.2 * RSQRT_ULPS * U)
    size = weight.abs() * (x.abs() + r) / low
    own = gamma(6) * (1.06 * size + bias.abs()) + TINY
    own = own.where((share < 3 * ACCURATE) & (size < LARGE), torch.inf)
    q, moved = x / sigma, weight.abs().max() * r / low
    radius = moved * (1 + scale) + length(own + scale * (weight * q).abs())[:, None]
    shift = torch.zeros_like(sigma)
    return NormPoint(q * weight + bias, q, weight, sigma, share, scale, shift, own, radius[:, 0], centred=False)
