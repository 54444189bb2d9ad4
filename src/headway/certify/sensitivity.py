"""A bound on the rounding of every lead, by sensitivities: exact first-order effects, with their remainders.

A lead is the right answer's logit minus a rival's. Every operation of the pass is exact on what float32 gives it, up to
its own rounding (rounding.py). Going back from the lead, each step of the last block turns a linear functional of its
output into one of its input, and adds what it rounded itself and what is not linear about it: nothing is dropped. The
remainders need to know how far float32 can be away at all; these radii go forward, by norms of matrices. Masked keys
weigh exactly 0, so only visible tokens enter, at any length.

Axes: row (a context), m (rivals), key, head, dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.certify.outside import NEAR, Outside
from headway.certify.rounding import ACCURATE, EXP_ULPS, TINY, Affine, Normed, U, gamma, length, normalise
from headway.models import Attention
from headway.models.blocks import Block


@dataclass(frozen=True)
class Enclosed:
    """The stream at some tokens, each with the 2-norm of the error of float32."""

    x: Tensor  # token d
    r: Tensor  # token

    def __getitem__(self, which: Tensor) -> "Enclosed":
        return Enclosed(self.x[which], self.r[which])


@dataclass(frozen=True)
class Reads:
    """Queries, keys and values of some tokens with the error of each number; token × head × dim."""

    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    value: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Attended:
    """The heads' outputs at a query in each row, row × (head dim), and what their errors consist of."""

    z: Tensor
    error: Tensor  # of each number, in all
    plain: Tensor  # of each number, apart from the weights of attention
    weights: Tensor  # row key head: how far the weight of a key can move
    away: Tensor  # row key head dim: its value minus z
    mass: Tensor | None = None  # row head: the share of all weight that lies outside the neighbourhood, at most
    values: Tensor | None = None  # token head dim: what lies there is a mean of these


@dataclass(frozen=True)
class Fed:
    """The pass through a block after its attention."""

    first: Tensor  # rounding of the stream after attention, before a norm
    norm: Normed  # of that stream
    hidden: Tensor
    hidden_rounding: Tensor
    hidden_error: Tensor
    second: Tensor  # rounding of the stream after the feed-forward block
    after: Enclosed  # that stream


class BlockBound:
    """A block in float64, with the bounds on its rounding."""

    def __init__(self, block: Block) -> None:
        attention, feed = block.attentions["self"], block.feed
        assert isinstance(attention, Attention)
        self.post, self.norms, self.attention = block.post_norm, block.norms, attention
        self.query = Affine(attention.query)
        self.key, self.value = (Affine(part) for part in attention.key_value)
        self.out = Affine(attention.out.weight, attention.out.bias)
        self.into, self.back = (Affine(linear.weight, linear.bias) for linear in (feed.into, feed.out))
        weighted = self.into.weight * self.norm("feed" if not self.post else "self").weight.detach().double()
        self.hidden_of_heads = ((weighted - weighted.mean(1, keepdim=True)) @ self.out.weight).abs()

    def norm(self, kind: str) -> nn.LayerNorm:
        found = self.norms[kind]
        assert isinstance(found, nn.LayerNorm)
        return found

    def read(self, tokens: Enclosed) -> Reads:
        """Returns queries, keys and values of tokens."""
        if self.post:
            value, radius, normed = tokens.x, tokens.r, None
        else:
            normed = normalise(tokens.x, tokens.r, self.norm("self"))
            value, radius = normed.value, normed.radius

        def project(map_: Affine) -> tuple[Tensor, Tensor]:
            if normed is None:
                error = length(map_.weight) * radius[:, None]
            else:
                described, _ = normed.describe_all(map_.weight)
                error = described.length * (tokens.r[:, None] / normed.sigma) + normed.slack(described)
            error = error + map_.rounding(value.abs() + radius[:, None])
            shape = (len(value), self.attention.heads, self.attention.dim)
            return map_(value).view(shape), error.view(shape)

        return Reads(project(self.query), project(self.key), project(self.value))

    def score(self, query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns scores without bias, row × key × head, with their errors; keys may be the same for all rows."""
        (q, dq), (k, dk), dim = query, key, self.attention.dim
        dot = f"rhd,{'r' * (k.ndim - 3)}khd->rkh"
        error = torch.einsum(dot, q.abs() + dq, dk) + torch.einsum(dot, dq, k.abs())
        size = torch.einsum(dot, q.abs() + dq, k.abs() + dk)
        return dim**-0.5 * torch.einsum(dot, q, k), dim**-0.5 * (error + gamma(dim + 9) * size)

    def attend(
        self, query: tuple[Tensor, Tensor], keys: Reads, bias: Tensor, beyond: tuple[Outside, Reads] | None = None
    ) -> Attended:
        """Attends from one query in each row, row × head × dim, to keys of row × key × head × dim, with a finite bias
        of head × key, or −∞ where a key is masked; and to what lies beyond these keys, which may be any tokens."""
        (v, dv), count, near, bias = keys.value, keys.key[0].shape[1], gamma(2), bias.T.double()  # key head
        masked = bias == -torch.inf
        finite = bias.masked_fill(masked, 0)
        s, error = self.score(query, keys.key)
        s, peak = s + finite, torch.full_like(s[:, :1], -torch.inf)
        top = s.masked_fill(masked, -torch.inf).amax(1, keepdim=True)
        far = None if beyond is None else torch.add(*self.score(query, beyond[1].key)).amax(1, keepdim=True)
        if beyond is not None and far is not None:  # row 1 head: the highest score that any token can have
            near, count, peak = NEAR, beyond[0].keys, far + beyond[0].top
        error = error + near * finite.abs() + TINY
        highest = torch.maximum(top, peak)
        # Softmax: rounding of exp, of its argument, and of the factors of an online softmax changes a weight as a
        # change of its score would. The arguments of the factors add up to the distance from the maximum; each visible
        # key raises the maximum at most once.
        worst = error.masked_fill(masked, 0).amax(1, keepdim=True)
        error = (
            error
            + U * (3 * s.abs() + 3 * top.abs().maximum(highest.abs()) + 4 * (highest - s) + 10 * worst)
            + (count + 2) * (2 * EXP_ULPS + 1) * U
        )
        worst = error.masked_fill(masked, 0).amax(1, keepdim=True)
        error = error.where(worst < ACCURATE, torch.inf).masked_fill(masked, 0)
        p = (s - top).exp().masked_fill(masked, 0)
        p = p / p.sum(1, keepdim=True)
        z = torch.einsum("rkh,rkhd->rhd", p, v)
        away, growth = v - z[:, None], worst.exp()
        weights = growth * p * error.expm1()
        reached = growth**2 * p
        plain = torch.einsum("rkh,rkhd->rhd", reached, dv + gamma(4 * count + 8) * (v.abs() + dv))
        plain = plain + TINY * (1 + (v.abs() + dv).sum(1))
        moved = plain + torch.einsum("rkh,rkhd->rhd", weights, away.abs())
        if beyond is None or far is None:
            return Attended(z.flatten(1), moved.flatten(1), plain.flatten(1), weights, away)
        # With a share ε of all weight outside, the output is (1 − ε)·(that of the neighbourhood) + ε·(a mean of values)
        others = (growth**2 * (far + beyond[0].log_mass - top + U * 10 * (far.abs() + top.abs())).exp())[:, 0]
        mass = others / ((s - top).exp().masked_fill(masked, 0).sum(1) + others)  # row head
        values, rounded = beyond[1].value
        rounded, size = (rounded + gamma(4 * count + 8) * (values.abs() + rounded)).amax(0), values.abs().amax(0)
        rounded = rounded * mass[..., None] + TINY * (1 + size)
        span = torch.maximum(values.amax(0) - z, z - values.amin(0))
        moved = moved + rounded + mass[..., None] * span
        return Attended(
            z.flatten(1), moved.flatten(1), (plain + rounded).flatten(1), weights, away, mass=mass, values=values
        )

    def feed(self, tokens: Enclosed, attended: Attended | None) -> Fed:
        """Runs the rest of the block at the queries; without heads, only the bias of the projection is added."""
        z = tokens.x.new_zeros(len(tokens.x), 0) if attended is None else attended.z
        dz = z if attended is None else attended.error
        stream = tokens.x + self.out(z)
        carried = tokens.r + self.out.norm * length(dz)
        first = (1 + U) * self.out.rounding(z.abs() + dz) + U * (stream.abs() + carried[:, None]) + TINY
        r = carried + length(first)
        norm = normalise(stream, r, self.norm("self" if self.post else "feed"))
        hidden, rounding = self.into(norm.value), self.into.rounding(norm.value.abs() + norm.radius[:, None])
        described, centred = norm.describe_all(self.into.weight)
        moved = dz @ self.hidden_of_heads.T + described.length * tokens.r[:, None] + first @ centred.abs().T
        along = (
            ((norm.q @ self.out.weight).abs() * dz).sum(1) + length(norm.q) * tokens.r + (norm.q.abs() * first).sum(1)
        )
        moved = moved + described.along.abs() * along[:, None] / norm.q.shape[1]
        error = moved / norm.sigma + norm.slack(described) + rounding
        active, change = hidden.clamp(min=0), error.where(~(hidden <= -error), 0)
        kept, radius = (norm.value, norm.radius) if self.post else (stream, r)
        after = kept + self.back(active)
        radius = radius + self.back.norm * length(change)
        second = (1 + U) * self.back.rounding(active + change) + U * (after.abs() + radius[:, None]) + TINY
        return Fed(first, norm, hidden, rounding, error, second, Enclosed(after, radius + length(second)))

    def pull(self, c: Tensor, tokens: Enclosed, attended: Attended | None, fed: Fed) -> Tensor:
        """Bounds how far functionals c (row × m × d) of the stream after the block move."""
        bound = torch.einsum("rmd,rd->rm", c.abs(), fed.second)
        of_units = c @ self.back.weight  # row m hidden
        kink = (fed.hidden_error - fed.hidden.abs()).clamp(min=0)  # where a unit may be on the other side of its kink
        active = of_units * (fed.hidden > 0)[:, None]
        bound += torch.einsum("rmf,rf->rm", of_units.abs_(), kink + fed.hidden_rounding * (fed.hidden > 0))
        of_norm = active @ self.into.weight
        of_stream, slack = fed.norm.pull(of_norm + c if self.post else of_norm)
        of_stream = of_stream if self.post else of_stream + c
        bound += slack + torch.einsum("rmd,rd->rm", of_stream.abs(), fed.first) + length(of_stream) * tokens.r[:, None]
        if attended is not None:
            of_heads = of_stream @ self.out.weight
            bound += torch.einsum("rmd,rd->rm", of_heads.abs(), attended.plain)
            effect = torch.einsum("rmhd,rkhd->rmkh", of_heads.unflatten(2, attended.away.shape[2:]), attended.away)
            bound += torch.einsum("rmkh,rkh->rm", effect.abs_(), attended.weights)
            if attended.mass is not None and attended.values is not None:
                of_heads = of_heads.unflatten(2, attended.values.shape[1:])  # row m head dim
                here = torch.einsum("rmhd,rhd->rmh", of_heads, attended.z.unflatten(1, attended.values.shape[1:]))
                there = torch.einsum("rmhd,thd->rmth", of_heads, attended.values)
                bound += ((there - here[:, :, None]).abs_().amax(2) * attended.mass[:, None]).sum(2)
        return bound
