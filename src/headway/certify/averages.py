"""The leads of an adder whose heads average, in float64, each with a bound on the rounding of float32.

There are so few operations that errors are simply carried forward through each of them: with every number goes a bound
on how far float32 can be away, for any order of summation. Axes: row (a context), digit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.certify.leads import LARGE, Leads
from headway.certify.rounding import SLACK, TINY, U, gamma
from headway.models import AveragingDecoder
from headway.models.averaging import Averages, Bend

TANH_ULPS = 32  # an ulp is at most 2u; PyTorch's own err by 1 or 2
FLOAT64 = 2.0**-45  # more than the rounding of 1 − tanh² in float64


@dataclass(frozen=True)
class Near:
    """Numbers, and how far float32 can be away from each."""

    x: Tensor
    r: Tensor

    def __getitem__(self, which: Tensor) -> "Near":
        return Near(self.x[which], self.r[which])

    @property
    def size(self) -> Tensor:
        return self.x.abs() + self.r

    def __add__(self, other: "Near") -> "Near":
        return _rounded(self.x + other.x, self.r + other.r)

    def __sub__(self, other: "Near") -> "Near":
        return _rounded(self.x - other.x, self.r + other.r)


def _rounded(x: Tensor, r: Tensor) -> Near:
    return Near(x, r + U * (x.abs() + r) + TINY)


def average(keys: list[Near]) -> Near:
    """A softmax of equal scores: exp(0) = 1, their sum is exact, and a key passes a division, a product and a sum."""
    n = len(keys)
    r = sum((key.r for key in keys), torch.zeros(())) / n
    size = sum((key.size for key in keys), torch.zeros(())) / n
    return Near(sum((key.x for key in keys), torch.zeros(())) / n, r + gamma(n + 4) * size + TINY)


def product(weight: Tensor, inputs: list[Near]) -> list[Near]:
    """A linear map without bias, out × in, of this many inputs: every product passes at most n + 1 roundings."""
    made = []
    for row in weight:
        x = sum((w * each.x for w, each in zip(row, inputs, strict=True)), torch.zeros(()))
        r = sum((w.abs() * each.r for w, each in zip(row, inputs, strict=True)), torch.zeros(()))
        size = sum((w.abs() * each.size for w, each in zip(row, inputs, strict=True)), torch.zeros(()))
        made.append(Near(x, r + gamma(len(inputs) + 2) * size + TINY))
    return made


def bend(x: Near) -> Near:
    """The slope of tanh is at most that at the end of the interval which is nearest to 0."""
    value, nearest = x.x.tanh(), (x.x.abs() - x.r).clamp(min=0)
    slope = 1 - nearest.tanh().square() + FLOAT64
    return Near(value, slope * x.r + 2 * TANH_ULPS * U * (value.abs() + x.r) + TINY)


def square(x: Near) -> Near:
    value = x.x.square()
    return _rounded(value, 2 * x.x.abs() * x.r + x.r.square())


class AverageBound:
    """The model in float64, with the bounds on its rounding."""

    def __init__(self, model: AveragingDecoder) -> None:
        block = model.blocks[0]
        attention, feed = block.attentions["self"], block.feed  # pyright: ignore
        assert isinstance(attention, Averages)
        assert isinstance(feed, Bend)
        self.heads, self.out = attention.head_numbers, attention.out.weight.detach().double()
        self.into, self.back = (part.weight.detach().double() for part in (feed.into, feed.out))
        self.scale = model.nearest.scale.detach().double()
        self.points = self._points(model)

    def _points(self, model: AveragingDecoder) -> Near:
        (weight,) = (each.detach().double() for each in model.tokens.parameters())
        if model.config.points == "table":
            return Near(weight, torch.zeros_like(weight))
        x = torch.arange(model.tokens.digits, device=weight.device) + weight
        return _rounded(x, torch.zeros_like(x))

    @torch.no_grad()
    def __call__(self, own: list[Tensor], right: list[Tensor], written: Tensor, answer: Tensor) -> Leads:
        """Returns the leads of the right answers over every digit, row × rival: given the operand digits of the own
        column and of the one to its right, and the answer digit written last."""
        last = self.points[written]
        every = average([self.points[d] for d in own]), average([*(self.points[d] for d in right), last])
        (moved,) = product(self.out, [every[number] for number in self.heads])
        x = last + moved
        hidden = [bend(each) for each in product(self.into, [x])]
        (bent,) = product(self.back, hidden)
        (scaled,) = product(self.scale[None], [x + bent])
        away = Near(scaled.x[:, None], scaled.r[:, None]) - Near(self.points.x[None], self.points.r[None])
        logits, picked = square(away), answer[:, None]
        value = logits.x - logits.x.gather(1, picked)
        bound = SLACK * (logits.r + logits.r.gather(1, picked))
        bound = bound.where((bound < LARGE) & (logits.size < LARGE), torch.inf)
        return Leads(value.scatter(1, picked, torch.inf), bound.scatter(1, picked, 0.0))
