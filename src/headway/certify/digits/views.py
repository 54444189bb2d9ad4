"""What one query of a one-layer decoder sees: the score and the value of every token that may stand at every place.

A token's query, key and value depend on the token and its place alone, so there are finitely many, and each comes with
a bound on its rounding in float32. Beyond this file a model's attention is nothing but these tables.

Axes: place, id (a token), head, dim, d.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headway.certify.digits.description import OneLayer
from headway.certify.digits.norms import norm_at
from headway.certify.rounding import EXP_ULPS, TINY, Affine, U, gamma, length


@dataclass(frozen=True)
class QueryView:
    """The tables of one query: that of an answer digit, after a given token."""

    place: int  # of the query
    token: int
    x: Tensor  # d: the stream at the query
    scores: Tensor  # head place id
    values: Tensor  # head place id d, through the output projection; one place where all are alike
    wobble: Tensor  # head: how far a score can be off, the rounding of exp and of softmax included
    value_error: Tensor  # head dim: of a head's output, apart from its weights
    stream_error: Tensor  # d: rounding of the stream at the query

    def value(self, place: int, token: int) -> Tensor:
        """Returns a token's values, head × d."""
        return self.values[:, place if self.values.shape[1] > 1 else 0, token]


class QueryViews:
    """All queries of a model."""

    def __init__(self, model: OneLayer) -> None:
        self.model = model
        self.heads, self.dim = model.query.shape[:2]
        self.out = Affine(model.out, model.out_bias)
        everywhere = model.tokens[None] if model.places is None else model.tokens + model.places[:, None]
        self.x = everywhere  # place id d
        self.x_error = torch.zeros_like(everywhere)
        if model.places is not None:
            self.x_error = gamma(3) * (model.tokens.abs() + model.places[:, None].abs()) + TINY
        (self.query, self.query_error), (key, key_error), (self.value, self.value_error) = self._read()
        self.key, self.key_error = self._rotate(key, key_error)

    def _read(self) -> list[tuple[Tensor, Tensor]]:
        """Returns queries, keys and values with their errors, place × id × head × dim, before rotation."""
        model, flat, error = self.model, self.x.flatten(0, 1), self.x_error.flatten(0, 1)
        norm = norm_at(model.attention_norm if model.norm == "pre" else None, flat, length(error))
        reads = []
        named = (model.query, model.query_bias), (model.key, model.key_bias), (model.value, model.value_bias)
        for weight, bias in named:
            linear = Affine(weight.flatten(0, 1), None if bias is None else bias.flatten())
            c, bent, rounded = norm.pull(linear.weight)
            off = bent + rounded + (c.abs() @ error[..., None])[..., 0]
            off = off + linear.rounding(norm.value.abs() + norm.radius[:, None])
            shape = (*self.x.shape[:2], self.heads, self.dim)
            reads.append((linear(norm.value).view(shape), off.view(shape)))
        return reads

    def _rotate(self, x: Tensor, error: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rotates queries or keys, place × id × head × dim; errors include those of the cosines, two ulps each."""
        model = self.model
        if model.cosine is None or model.sine is None:
            return x, error
        place = torch.arange(len(model.cosine)) if places is None else places
        turned = model.rotate(x.expand(len(place), *x.shape[1:]), place[:, None])
        halves = (lambda y: (y[..., 0::2], y[..., 1::2])) if model.pairs == "adjacent" else (lambda y: y.chunk(2, -1))
        shape = (len(place), *x.shape[1:])
        (e1, e2), (x1, x2) = halves(error.expand(shape)), halves(x.abs().expand(shape))
        cosine, sine = (part[place][:, None, None].abs() + 4 * U for part in (model.cosine, model.sine))
        first = cosine * e1 + sine * e2 + gamma(8) * (cosine * (x1 + e1) + sine * (x2 + e2)) + 4 * U * (x1 + x2)
        second = cosine * e2 + sine * e1 + gamma(8) * (cosine * (x2 + e2) + sine * (x1 + e1)) + 4 * U * (x1 + x2)
        both = torch.stack((first, second), -1).flatten(-2)
        return turned, both if model.pairs == "adjacent" else torch.cat((first, second), -1)

    @cached_property
    def values(self) -> Tensor:
        """The values through the output projection, head × place × id × d."""
        return torch.einsum("pihe,dhe->hpid", self.value, self.model.out.unflatten(1, (self.heads, self.dim)))

    def possible(self, number: int) -> Tensor:
        """Returns which tokens may stand at each place that the query of answer digit `number` sees, place × id."""
        model = self.model
        places = len(model.source) + number
        found = torch.zeros(places, len(model.tokens), dtype=torch.bool)
        for place in range(places):
            slot = model.source[place] if place < len(model.source) else None
            found[place, [slot] if isinstance(slot, int) else list(model.digit_tokens)] = True
        return found

    def at(self, number: int, token: int) -> QueryView:
        """Returns the tables of the query of answer digit `number`, which reads this token."""
        model, dim = self.model, self.dim
        place = len(model.source) - 1 + number
        row = place if len(self.x) > 1 else 0
        query, dq = self._rotate(
            self.query[row : row + 1, token : token + 1], self.query_error[row : row + 1, token : token + 1],
            torch.tensor([place]),
        )  # fmt: skip
        query, dq, seen = query[0, 0], dq[0, 0], self.possible(number)
        count = len(seen)
        shape = (count, *self.key.shape[1:])
        key, dk = (part[:count].expand(shape) for part in (self.key, self.key_error))
        scale = dim**-0.5 if model.scale is None else model.scale
        scores = scale * torch.einsum("he,pihe->hpi", query, key)
        error = torch.einsum("he,pihe->hpi", query.abs() + dq, dk) + torch.einsum("he,pihe->hpi", dq, key.abs())
        size = torch.einsum("he,pihe->hpi", query.abs() + dq, key.abs() + dk)
        error = abs(scale) * (error + gamma(dim + 9) * size) + TINY
        if model.bias is not None:
            bias = model.bias[:, place, :count, None]
            error = error + gamma(2) * bias.abs().where(bias > -torch.inf, 0)
            scores = scores + bias
        hidden = ~seen | (scores == -torch.inf)
        scores = scores.masked_fill(hidden, -torch.inf)
        worst = error.masked_fill(hidden, 0).amax((1, 2))
        top, least = scores.amax((1, 2)), scores.masked_fill(hidden, torch.inf).amin((1, 2))
        largest = torch.maximum(top.abs(), least.abs())
        # as in certify/sensitivity.py: the rounding of exp, of its argument and of the factors of an online softmax
        wobble = worst + U * (6 * largest + 4 * (top - least) + 10 * worst) + (count + 2) * (2 * EXP_ULPS + 1) * U
        shape = (count, *self.value.shape[1:])
        value, dv = (part[:count].expand(shape) for part in (self.value, self.value_error))
        of_value = dv + gamma(4 * count + 8) * (value.abs() + dv)
        of_value = of_value.masked_fill(~seen[..., None, None], 0).amax((0, 1)) * (2 * wobble).exp()[:, None]
        of_value = of_value + TINY * (1 + count * value.abs().amax())
        return QueryView(
            place, token, self.x[row, token], scores, self.values, wobble, of_value, self.x_error[row, token]
        )
