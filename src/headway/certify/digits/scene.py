"""Attention over boxes: one query, and rows that differ in the columns that decide its digit; the rest is free.

The answer digit of column k follows from columns k and k − 1 and the carry into the latter, so these are enumerated: a
row is one content of both. All other columns are a chain (chain.py) that the rows of a scene share. A head's output is
a ratio of sums, Σ e^s v / Σ e^s; the point of a row has every free token at its mean, and `rough` and `fine` bound how
far a functional of the output can be from there: place by place, or exactly over all carry chains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headway.certify.digits.chain import Chain, Ratio
from headway.certify.digits.finish import Movement, Stream
from headway.certify.digits.views import QueryView, QueryViews
from headway.certify.rounding import ACCURATE, SLACK, TINY, U, gamma, length

EXACT_STEPS = 5
Token = tuple[str, int]  # a letter, a, b or c, and a column


@dataclass(frozen=True)
class Rows:
    """The contents of the columns that decide a digit: row × token, and the answer digit that is right."""

    tokens: tuple[Token, ...]
    digits: Tensor
    right: Tensor

    def __len__(self) -> int:
        return len(self.right)

    def __getitem__(self, rows: Tensor | slice) -> Rows:
        return Rows(self.tokens, self.digits[rows], self.right[rows])


@dataclass(frozen=True)
class Scene:
    """Boxes that share their query and their chain."""

    views: QueryViews
    view: QueryView
    number: int  # of the answer digit
    chain: Chain
    rows: Rows

    @cached_property
    def free(self) -> list[Token]:
        """The visible tokens that are neither fixed nor in the rows."""
        operands = [(letter, at) for letter in "ab" for at in range(len(self.chain.allowed))]
        tokens = operands + [("c", at) for at in range(self.number - 1)]
        return [token for token in tokens if token not in self.rows.tokens and len(self.choices[token]) > 1]

    @cached_property
    def choices(self) -> dict[Token, list[int]]:
        operands = [(letter, at) for letter in "ab" for at in range(len(self.chain.allowed))]
        tokens = operands + [("c", at) for at in range(self.number - 1)]
        return {token: self.chain.choices(*token) for token in tokens if token not in self.rows.tokens}

    @cached_property
    def top(self) -> Tensor:
        """The largest score of each head, which is taken off all of them."""
        return self.view.scores.amax((1, 2))

    def weigh(self, place: int) -> Tensor:
        """Returns e^s of the digits at a place, head × digit."""
        ids = list(self.views.model.digit_tokens)
        return (self.view.scores[:, place, ids] - self.top[:, None]).exp()

    @cached_property
    def settled(self) -> list[tuple[Tensor, Tensor]]:
        """The weights, head, and values, head × d, of the tokens that are the same in all rows."""
        model, view = self.views.model, self.view
        same = {model.place_of(*token): digits[0] for token, digits in self.choices.items() if len(digits) == 1}
        found = [(place, model.digit_tokens[digit]) for place, digit in same.items()]
        found += [(place, slot) for place, slot in enumerate(model.source) if isinstance(slot, int)]
        if self.number:
            found.append((view.place, view.token))
        return [((view.scores[:, place, id_] - self.top).exp(), view.value(place, id_)) for place, id_ in found]

    @cached_property
    def fixed(self) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Numerators, row × head × d, denominators, row × head, and the weights and values of the row's own tokens."""
        model, parts = self.views.model, []
        masses = torch.stack([weight for weight, _ in self.settled]).sum(0).expand(len(self.rows), -1)
        sums = torch.stack([weight[:, None] * value for weight, value in self.settled]).sum(0)
        sums = sums.expand(len(self.rows), *sums.shape)
        ids = torch.tensor(model.digit_tokens)
        for at, token in enumerate(self.rows.tokens):
            place, digits = model.place_of(*token), self.rows.digits[:, at]
            weight = self.weigh(place).T[digits]
            value = self.view.values[:, place if self.view.values.shape[1] > 1 else 0, ids].transpose(0, 1)[digits]
            sums, masses = sums + weight[..., None] * value, masses + weight
            parts.append((weight, value))
        return sums, masses, parts

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the free tokens: weights, head × token × digit, 0 where a digit cannot be; values, head × token (or 1) ×
        digit × d; which digits can be, token × digit."""
        model, base = self.views.model, self.chain.base
        ids, heads = torch.tensor(model.digit_tokens), len(self.top)
        can = torch.zeros(len(self.free), base, dtype=torch.bool)
        for at, token in enumerate(self.free):
            can[at, self.choices[token]] = True
        places = [model.place_of(*token) for token in self.free]
        weights = [self.weigh(place) for place in places]
        stacked = torch.stack(weights, 1) if weights else torch.zeros(heads, 0, base, dtype=torch.float64)
        alike = self.view.values.shape[1] == 1
        values = self.view.values[:, [0] if alike else places][:, :, ids]
        return stacked * can, values, can

    @cached_property
    def masses(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest denominators, row × head, place by place."""
        weights, _, can = self.tables
        low = weights.masked_fill(~can, torch.inf).amin(2).sum(1)
        return self.fixed[1] + low, self.fixed[1] + weights.amax(2).sum(1)

    @cached_property
    def point(self) -> Tensor:
        """The heads' outputs with every free token at its mean, row × head × d."""
        (sums, masses, _), (weights, values, can) = self.fixed, self.tables
        mean = weights / can.sum(1, keepdim=True)
        added = torch.einsum("hpt,hptd->hd", mean, values.expand(-1, weights.shape[1], -1, -1))
        return (sums + added) / (masses + mean.sum((1, 2)))[..., None]

    @cached_property
    def growth(self) -> Tensor:
        """How far rounding can change the weight of a key, relative, head."""
        wobble = self.view.wobble
        return ((2 * wobble).exp() * wobble.expm1()).where(wobble < ACCURATE, torch.inf)

    def stream(self) -> Stream:
        """Returns the stream after attention at the points, with what bounds it."""
        out, model = self.views.out, self.views.model
        x = self.view.x + self.point.sum(1) + out.bias
        z_size = self.views.value.abs().amax((0, 1)) + self.view.value_error  # head dim: no output is larger
        local = (1 + U) * out.rounding(z_size.flatten()[None])
        d = model.tokens.shape[1]
        largest = self.view.x.abs() + out.bias.abs() + self.view.values.abs().amax((1, 2)).sum(0)
        local = (local + gamma(2) * largest + self.view.stream_error + TINY).expand(len(x), d)
        away = self._distance() + length(local)
        return Stream(x, SLACK * away, local, self.rough, self.fine)

    def _distance(self) -> Tensor:
        """Bounds the 2-norm of how far attention can move the stream, rounding included."""
        (_, masses, parts), (weights, values, can), (low, _) = self.fixed, self.tables, self.masses
        # z − point = Σ (the free tokens' weights times value − point, less the mean of that) / denominator
        far = length(values - self.point[:, :, None, None]).expand(-1, -1, weights.shape[1], -1)  # row head token digit
        mean = (weights / can.sum(1, keepdim=True) * far).sum(3)
        moved = ((weights * far).amax(3) + mean).sum(2) / low
        spread = moved + mean.sum(2) / low
        for weight, value in (*parts, *self.settled):
            spread = spread + weight / masses * length(value - self.point)
        error = self.view.value_error
        through = length(torch.einsum("dhe,he->hd", self.views.out.size.unflatten(1, error.shape), error))
        return (moved + self.growth * (spread + moved) + through).sum(1)

    def rough(self, c: Tensor) -> Movement:
        """Bounds functionals, row × m × d, quickly."""
        sums, masses, _ = self.fixed
        weights, values, can = self.tables
        at = torch.einsum("rmd,rhd->rmh", c, self.point)
        fixed = torch.einsum("rmd,rhd->rmh", c, sums) - at * masses[:, None]
        if not weights.shape[1]:
            zero = torch.zeros_like(at[..., 0])
            return Movement(zero, zero, self._rounding(c, at, zero[..., None]))
        u = torch.einsum("rmd,hptd->rmhpt", c, values) - at[..., None, None]
        ends = []
        for sign in (1, -1):
            if values.shape[1] == 1:
                best = (sign * u[..., 0, :]).amax(-1)
                low, high = weights.masked_fill(~can, torch.inf).amin(2).sum(1), weights.amax(2).sum(1)
                gain = best * torch.where(best > 0, high, low)
            else:
                gain = (sign * u * weights).masked_fill(~can, -torch.inf).amax(-1).sum(-1)
            excess = sign * fixed + gain
            low, high = (mass[:, None] for mass in self.masses)
            ends.append(sign * (excess / torch.where(excess > 0, low, high)).sum(-1))
        widest = u.abs().amax((3, 4)) * (weights.amax(2).sum(1) / self.masses[0])[:, None]
        return Movement(ends[1], ends[0], self._rounding(c, at, widest))

    def fine(self, c: Tensor) -> Movement:
        """Bounds functionals below, place by place with the weights of each token."""
        sums, masses, _ = self.fixed
        weights, values, can = self.tables
        at = torch.einsum("rmd,rhd->rmh", c, self.point)
        if not weights.shape[1]:
            return self.rough(c)
        u = torch.einsum("rmd,hptd->rmhpt", c, values) - at[..., None, None]
        scaled = (u * weights).masked_fill(~can, torch.inf).amin(-1).sum(-1)
        excess = torch.einsum("rmd,rhd->rmh", c, sums) - at * masses[:, None] + scaled
        low, high = (mass[:, None] for mass in self.masses)
        found = (excess / torch.where(excess > 0, high, low)).sum(-1)
        widest = u.abs().amax((3, 4)) * (weights.amax(2).sum(1) / self.masses[0])[:, None]
        return Movement(found, torch.full_like(found, torch.inf), self._rounding(c, at, widest))

    def exact(self, c: Tensor) -> Tensor:
        """Returns the lowest that functionals can be, row × m, over all carry chains, one head at a time."""
        sums, masses, _ = self.fixed
        weights, values, _ = self.tables
        at = torch.einsum("rmd,rhd->rmh", c, self.point)
        u = torch.einsum("rmd,hptd->rmhpt", c, values)
        total = torch.zeros_like(at[..., 0])
        rows, m = c.shape[:2]
        for head in range(len(self.top)):
            lines = rows * m
            of_token = {
                token: (
                    weights[head, place].expand(lines, -1),
                    u[:, :, head, place if values.shape[1] > 1 else 0].flatten(0, 1),
                )
                for place, token in enumerate(self.free)
            }
            if not of_token:
                continue
            ratio = Ratio(
                self.chain,
                {token: pair[0] for token, pair in of_token.items()},
                {token: pair[1] for token, pair in of_token.items()},
                torch.einsum("rmd,rd->rm", c, sums[:, head]).flatten(),
                masses[:, head, None].expand(rows, m).flatten(),
            )
            start = at[..., head].flatten()
            total += (ratio.lower(start, EXACT_STEPS) - start).view(rows, m)
        return total

    def _rounding(self, c: Tensor, at: Tensor, widest: Tensor) -> Tensor:
        """Bounds what rounding of scores and values does to functionals; `widest` bounds the free tokens' share of
        the weight times their distance from the point, row × m × head, and so how far the output itself can be."""
        _, masses, parts = self.fixed
        spread = 3 * widest
        for weight, value in parts:
            share = (weight / masses)[:, None]
            spread = spread + share * (torch.einsum("rmd,rhd->rmh", c, value) - at).abs()
        for weight, value in self.settled:
            share = (weight / masses)[:, None]
            spread = spread + share * (torch.einsum("rmd,hd->rmh", c, value) - at).abs()
        error = self.view.value_error
        through = (c @ self.views.model.out).unflatten(2, error.shape).abs()
        return (self.growth * spread).sum(-1) + torch.einsum("rmhe,he->rm", through, error)
