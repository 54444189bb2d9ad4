"""The rounding of single operations in float32, bounded for any order of summation.

The model of arithmetic is the standard one: a result of + − × ÷, fused or not, is the exact one times 1 + δ, |δ| ≤ u =
2^-24, and may become 0 below 2^-126. exp errs by at most EXP_ULPS ulps, 1/sqrt by RSQRT_ULPS. A value that passes k
roundings errs by at most γ(k) = ku/(1 − ku), relative. The bounds are computed in float64, whose own rounding is 2^-29
as large; SLACK pays for it.
docs/certificates.md derives the bound of a norm.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

U = 2.0**-24
EXP_ULPS, RSQRT_ULPS = 32, 4  # an ulp is at most 2u; some kernels use an exp of 20 ulps
TINY = 2.0**-100  # more than underflow can change in an operation on at most 2^20 numbers
LARGE = 2.0**50  # squares of larger numbers could overflow
SLACK = 1 + 2.0**-20  # for the rounding of float64
ACCURATE = 0.1  # relative errors above this are not bounded any further


def gamma(roundings: int) -> float:
    """Returns the relative error after so many roundings."""
    return roundings * U / (1 - roundings * U)


def length(x: Tensor) -> Tensor:
    """Returns the 2-norm over the last axis."""
    return torch.linalg.vector_norm(x, dim=-1)


class Affine:
    """Wx + b: every product passes at most as many roundings as there are inputs, in any order, and two for b."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight.detach().double()
        self.bias = self.weight.new_zeros(len(weight)) if bias is None else bias.detach().double()
        self.size, self.norm = self.weight.abs(), 0.0
        if weight.numel():
            self.norm = float(torch.linalg.matrix_norm(self.weight, 2)) * SLACK

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias

    def rounding(self, size: Tensor) -> Tensor:
        """Returns the rounding of each output, given a bound on the size of each input."""
        largest = size @ self.size.T + self.bias.abs()
        return (gamma(self.weight.shape[1] + 2) * largest + TINY).where(largest < LARGE, torch.inf)


class Functional(NamedTuple):
    """What the bound of a norm needs to know about functionals c of its output: each is a number per row and c."""

    length: Tensor  # ‖cw‖, where cw is c times the weight of the norm, without its mean
    along: Tensor  # cw · q
    total: Tensor  # |Σ c times the weight|
    own: Tensor  # |c| · own


@dataclass(frozen=True)
class Normed:
    """A layer norm at a batch of exact inputs x, each within the 2-norm r of what float32 has there."""

    value: Tensor  # row d
    q: Tensor  # row d: (x − mean)/σ, σ² = variance + ε
    weight: Tensor  # d
    sigma: Tensor  # row 1
    share: Tensor  # row 1: r/(√n σ), how far σ can move
    scale: Tensor  # row 1: relative error of 1/σ
    shift: Tensor  # row 1: error of the mean, over σ
    own: Tensor  # row d: the rounding of each output apart from these two
    radius: Tensor  # row: 2-norm of the error of the output

    def describe(self, c: Tensor) -> tuple[Functional, Tensor]:
        """Describes functionals of each row's output, row × m × d; returns them with their centred weights cw."""
        weighted = c * self.weight
        mean = weighted.mean(-1, keepdim=True)
        centred = weighted - mean
        along = torch.einsum("rmd,rd->rm", centred, self.q)
        own = torch.einsum("rmd,rd->rm", c.abs(), self.own)
        return Functional(length(centred), along, mean[..., 0].abs() * c.shape[-1], own), centred

    def describe_all(self, c: Tensor) -> tuple[Functional, Tensor]:
        """Describes functionals m × d that are the same for every row."""
        weighted = c * self.weight
        mean = weighted.mean(-1, keepdim=True)
        centred = weighted - mean
        fixed = length(centred)[None], mean[None, :, 0].abs() * c.shape[-1]
        return Functional(fixed[0], self.q @ centred.T, fixed[1], self.own @ c.abs().T), centred

    def slack(self, c: Functional) -> Tensor:
        """Bounds how far c · (the output in float32 − the exact output) differs from G · (the same of the input), where
        G = (cw − (cw · q) q/n)/σ is the gradient."""
        n, share, along = self.q.shape[-1], self.share, c.along.abs()
        bent = (n**0.5 * c.length + along) / (1 - share) + 2 * along / (2 - share)
        scaled = along + c.length * share * n**0.5 / (1 - share)
        return share**2 * bent + self.scale * scaled + self.shift * c.total + c.own

    def pull(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the gradients G of functionals c, row × m × d, and their slack."""
        described, centred = self.describe(c)
        n = self.q.shape[-1]
        return (centred - described.along[..., None] / n * self.q[:, None]) / self.sigma[..., None], self.slack(
            described
        )


def normalise(x: Tensor, r: Tensor, norm: nn.LayerNorm) -> Normed:
    """Runs a layer norm with two passes, or with means and variances merged along any tree (docs/certificates.md)."""
    n, weight, bias = x.shape[-1], norm.weight.detach().double(), norm.bias.detach().double()
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    sigma, r = (variance + norm.eps).sqrt(), r[:, None]
    share = r / (math.sqrt(n) * sigma)
    low, middle, spread = sigma * (1 - share), mean.abs() + r / n**0.5, variance.sqrt() + r / n**0.5
    shift = gamma(n + 6) * (2 * middle + 2.7 * spread) + TINY  # of the mean
    off = 1.01 * U * (n + 4) * spread * (8 * spread + 5.4 * middle) / low**2  # of σ², relative
    off = off + 1.01 * (shift / low) ** 2 + gamma(n + 10)
    scale = off / 2 * (1 + off) + 2.2 * RSQRT_ULPS * U
    # (x − m)·s·weight + bias, or x·s·weight + (bias − m·s·weight): every number passes at most six roundings
    size = weight.abs() * (x.abs() + middle + 2 * r + shift) / low
    own = gamma(6) * (1.06 * size + bias.abs()) + TINY
    q = (x - mean) / sigma
    own = own.where((share < ACCURATE * 3) & (off < ACCURATE) & (size < LARGE), torch.inf)
    moved = weight.abs().max() * r / low
    radius = moved * (1 + scale) + length(own + scale * (weight * q).abs() + 1.06 * shift / low * weight.abs())[:, None]
    shift = 1.06 * shift / low
    return Normed(q * weight + bias, q, weight, sigma, share, scale, shift, own, radius[:, 0])
