"""From the stream after attention to the leads of the right digit, over a whole box of problems at once.

At a point of the box everything is computed exactly. Around it the rest of the model is linear plus remainders: a lead
moves by c·δ, δ the deviation of the stream, and by at most what the norms and the units are bent. What c·δ can be is
the business of attention (scene.py), which knows the functional c as a whole, so nothing that cancels is lost.
Rounding in float32 enters as further deviations and is added up apart.

Axes: row (a box), m (functionals), d, unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headway.certify.digits.description import FeedWeights, OneLayer
from headway.certify.digits.norms import NoNorm, NormPoint, norm_at
from headway.certify.rounding import EXP_ULPS, LARGE, SLACK, TINY, Affine, U, length


class Movement(NamedTuple):
    """How far functionals of the stream after attention can move, row × m."""

    low: Tensor  # at most 0 unless the point lies at the border of the box
    high: Tensor
    rounded: Tensor  # by rounding in float32, in either direction


@dataclass(frozen=True)
class Stream:
    """The stream after attention at points of boxes."""

    x: Tensor  # row d
    radius: Tensor  # row: how far it can move, as a 2-norm, rounding included
    local: Tensor  # row d: rounding of the last sums
    rough: Callable[[Tensor], Movement]  # quickly, for many functionals
    fine: Callable[[Tensor], Movement]  # closely


@dataclass(frozen=True)
class Bounds:
    """The leads of the right digit over each other token, row × id."""

    at: Tensor  # at the point
    low: Tensor  # everywhere in the box, in exact arithmetic
    rounded: Tensor  # what rounding in float32 can take away
    c: Tensor  # row id d: the functionals of the stream after attention
    rest: Tensor  # the part of `low` that is not linear: low = at + rest + (the low end of c)

    @property
    def margin(self) -> Tensor:
        """The smallest lead in exact arithmetic, row."""
        return self.low.amin(1)

    @property
    def proved(self) -> Tensor:
        return (self.low > self.rounded).all(1)


class Units(NamedTuple):
    """The feed-forward units at the points, row × unit; all remainders are at least 0."""

    value: Tensor
    slopes: list[Tensor]  # by each of the inputs: `into`, and `gate` where there is one
    below: Tensor  # the units move by slopes · deviations − below … + above
    above: Tensor
    moved: Tensor  # how far a unit moves in all
    rounded: Tensor  # rounding of a unit's value, its input's included


class Finish:
    """Everything after attention, with bounds."""

    def __init__(self, model: OneLayer) -> None:
        self.model, self.feed = model, model.feed
        self.readout = Affine(model.readout, model.readout_bias)
        self.apart = model.readout[:, None] - model.readout  # right rival d
        self.into = [] if self.feed is None else _inputs(self.feed)
        self.back = None if self.feed is None else Affine(self.feed.out, self.feed.out_bias)
        post = model.norm == "post"
        self.first, self.last = (model.attention_norm, model.feed_norm) if post else (model.feed_norm, model.last_norm)

    def bound(self, stream: Stream, right: Tensor) -> Bounds:
        """Bounds the leads of the right tokens, one for each row."""
        norm = norm_at(self.first, stream.x, stream.radius)
        kept, radius = (norm.value, norm.radius) if self.model.norm == "post" else (stream.x, stream.radius)
        units, local = None, torch.zeros_like(kept)
        if self.back is not None:
            units = self._units(stream, norm)
            kept = kept + self.back(units.value)
            radius = radius + self.back.norm * length(units.moved)
            local = (1 + U) * self.back.rounding(units.value.abs() + units.moved)
            local = local + U * (kept.abs() + radius[:, None]) + TINY
        last = norm_at(self.last, kept, radius + length(local))
        logits = self.readout(last.value)
        picked = right[:, None]
        at = logits.gather(1, picked) - logits
        of_logits = self.readout.rounding(last.value.abs() + last.radius[:, None])
        c, bent, rounded = last.pull(self.apart[right])
        rounded = rounded + of_logits + of_logits.gather(1, picked) + (c.abs() @ local[..., None])[..., 0]
        c, bent, rounded = self._pull(c, units, norm, bent, rounded)
        found = stream.fine(c)
        rounded = SLACK * (rounded + found.rounded + (c.abs() @ stream.local[..., None])[..., 0])
        rest = -SLACK * bent
        low = at + rest + found.low
        bad = ~(low.isfinite() & (rounded < LARGE))
        low, rounded = low.masked_fill(bad, -torch.inf), rounded.masked_fill(bad, torch.inf)
        own = torch.arange(logits.shape[1]) == picked
        return Bounds(
            at.masked_fill(own, torch.inf), low.masked_fill(own, torch.inf), rounded.masked_fill(own, 0), c, rest
        )

    def _units(self, stream: Stream, norm: NormPoint | NoNorm) -> Units:
        assert self.feed is not None
        values, errors, roundings = [], [], []
        for linear in self.into:
            c, bent, rounded = norm.pull(linear.weight)
            found = stream.rough(c)
            rounded = rounded + found.rounded + (c.abs() @ stream.local[..., None])[..., 0]
            rounded = rounded + linear.rounding(norm.value.abs() + norm.radius[:, None])
            values.append(linear(norm.value))
            errors.append(SLACK * (torch.maximum(found.high, -found.low).clamp(min=0) + bent + rounded))
            roundings.append(rounded)
        act, slope, below, above, steepest = _activate(self.feed.activation, values[-1], errors[-1])
        local = ACTIVATION_ROUNDING[self.feed.activation] * U * (values[-1].abs() + errors[-1])
        moved, passed = steepest * errors[-1] + local, slope.abs() * roundings[-1] + local
        if self.feed.gate is None:
            quiet = (self.feed.activation == "relu") & (values[0] + errors[0] <= 0)
            return Units(act, [slope], below, above, moved.masked_fill(quiet, 0), passed)
        up, e = values[0], errors[0]
        rest = up.abs() * torch.maximum(below, above) + moved * e
        product = 2 * U * (act.abs() + moved) * (up.abs() + e)
        rounded = act.abs() * roundings[0] + up.abs() * passed + product
        moved = act.abs() * e + up.abs() * moved + moved * e + product
        return Units(act * up, [act, up * slope], rest, rest, moved, rounded)

    def _pull(
        self, c: Tensor, units: Units | None, norm: NormPoint | NoNorm, bent: Tensor, rounded: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Pulls functionals of the stream before the last norm back to the stream after attention."""
        post, through = self.model.norm == "post", torch.zeros_like(c)
        if units is not None and self.feed is not None:
            of_units = c @ self.feed.out
            for linear, slope in zip(self.into, units.slopes, strict=True):
                through = through + (of_units * slope[:, None]) @ linear.weight
            bent = bent + (of_units.clamp(min=0) @ units.below[..., None])[..., 0]
            bent = bent + (of_units.clamp(max=0).abs() @ units.above[..., None])[..., 0]
            rounded = rounded + (of_units.abs() @ units.rounded[..., None])[..., 0]
        if units is None and not post:
            return c, bent, rounded
        pulled = norm.pull(through + c if post else through)
        return pulled.c if post else pulled.c + c, bent + pulled.bent, rounded + pulled.rounded


ACTIVATION_ROUNDING = {"relu": 0, "gelu": 64, "silu": 2 * EXP_ULPS + 8}
"""in units of 2^-24, relative to the input: erf errs by at most 32 ulps of 1"""
STEEPEST = {"relu": 1.0, "gelu": 1.13, "silu": 1.1}
BENDING = {"gelu": 0.8, "silu": 0.5}
"""bounds on the first and the second derivative: 1.1289 and 2/√(2π) = 0.7979; 1.0998 and 1/2"""


def _activate(name: str, h: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Returns activations, slopes, the remainders below and above the tangent, and the steepest slope."""
    if name == "relu":
        # a unit passes on its deviation or not, as its sign says; past the kink it is above that line, never below
        return h.clamp(min=0), (h > 0).double(), torch.zeros_like(h), (e - h.abs()).clamp(min=0), 1.0
    if name == "gelu":
        inner = 0.5 * (1 + torch.erf(h / 2**0.5))
        slope = inner + h * torch.exp(-h.square() / 2) / (2 * torch.pi) ** 0.5
    else:
        inner = h.sigmoid()
        slope = inner * (1 + h * (1 - inner))
    rest = torch.minimum(BENDING[name] / 2 * e.square(), (STEEPEST[name] + slope.abs()) * e)
    return h * inner, slope, rest, rest, STEEPEST[name]


def _inputs(feed: FeedWeights) -> list[Affine]:
    """Returns the linear maps into the units; the one that is activated comes last."""
    into = Affine(feed.into, feed.into_bias)
    return [into] if feed.gate is None else [into, Affine(feed.gate, feed.gate_bias)]
