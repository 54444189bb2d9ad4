"""A machine that rounds as badly as the theorem allows, in an order of its own.

Every operation is computed in float64 and multiplied by 1 ± u, with signs that are random, or the same throughout, or
alternate by place: all of that is within the standard model of float32, and far worse than a real machine. Sums run
along random trees; norms are those that the certificate names; softmax is computed at once or online.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from headway.certify.rounding import EXP_ULPS, RSQRT_ULPS
from headway.models.blocks import Block

U = 2.0**-24
Array = np.ndarray
NORMS = ("two-pass", "welford", "merged", "weighted")


@dataclass
class Machine:
    """The choices of one machine: signs of its errors, orders of its sums, algorithms."""

    seed: int
    signs: str = "random"  # plus, minus, random, alternating
    norm: str = "two-pass"
    online: bool = False
    dice: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.dice = np.random.default_rng(self.seed)

    def fl(self, x: Array | np.float64, ulps: float = 0.5) -> Array:
        """Rounds: an error of u, or of so many ulps of 2u."""
        match self.signs:
            case "plus" | "minus":
                sign = 1.0 if self.signs == "plus" else -1.0
            case "alternating":
                sign = 1.0 - 2.0 * (np.arange(np.size(x)).reshape(np.shape(x)) % 2)
            case _:
                sign = self.dice.choice([-1.0, 1.0], np.shape(x))
        return np.asarray(x * (1 + sign * 2 * ulps * U))

    def sum(self, terms: list[Array]) -> Array:
        """Adds along a chain or a random tree."""
        terms = [terms[each] for each in self.dice.permutation(len(terms))]
        chain = bool(self.dice.integers(2))
        while len(terms) > 1:
            a = terms.pop(0 if chain else int(self.dice.integers(len(terms))))
            b = terms.pop(0 if chain else int(self.dice.integers(len(terms))))
            terms.insert(0 if chain else len(terms), self.fl(a + b))
        return terms[0]

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        products = [self.fl(x[..., None, j] * weight[:, j]) for j in range(weight.shape[1])]
        return self.sum(products + ([] if bias is None else [np.broadcast_to(bias, products[0].shape)]))

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Returns means and variances."""
        n, fl = x.shape[-1], self.fl
        if self.norm == "two-pass":
            mean = fl(self.sum([x[..., j] for j in range(n)]) / n)
            apart = [fl(x[..., j] - mean) for j in range(n)]
            return mean, fl(self.sum([fl(each * each) for each in apart]) / n)
        if self.norm == "welford":
            mean, square = x[..., 0], 0 * x[..., 0]
            for count, j in enumerate(self.dice.permutation(np.arange(1, n)), 2):
                delta = fl(x[..., j] - mean)
                mean = fl(mean + fl(delta * fl(np.float64(1 / count))))
                square = fl(square + fl(delta * fl(x[..., j] - mean)))
            return mean, fl(square / n)
        parts = [(1, x[..., j], 0 * x[..., j]) for j in range(n)]
        chain = bool(self.dice.integers(2))
        while len(parts) > 1:
            a, m, s = parts.pop(0 if chain else int(self.dice.integers(len(parts))))
            b, other, t = parts.pop(0 if chain else int(self.dice.integers(len(parts))))
            if self.dice.integers(2):  # either may be the larger part
                a, m, s, b, other, t = b, other, t, a, m, s
            delta = fl(other - m)
            share = fl(np.float64(b / (a + b)))
            if self.norm == "weighted":
                rest = fl(np.float64(a / (a + b)))
                mean = fl(fl(m * rest) + fl(other * share))
            else:
                mean = fl(m + fl(delta * share))
            square = fl(fl(s + t) + fl(fl(delta * delta) * fl(a * share)))
            parts.insert(0 if chain else len(parts), (a + b, mean, square))
        return parts[0][1], fl(parts[0][2] / n)

    def normalise(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        mean, variance = self.moments(x)
        scale = self.fl(1 / np.sqrt(self.fl(variance + eps)), RSQRT_ULPS)[..., None]
        if self.dice.integers(2):
            return self.fl(self.fl(self.fl(self.fl(x - mean[..., None]) * scale) * weight) + bias)
        shifted = self.fl(self.fl(x * scale) + self.fl(-mean[..., None] * scale))
        return self.fl(self.fl(shifted * weight) + bias)

    def attend(self, q: Array, k: Array, v: Array, bias: Array) -> Array:
        """Attends with a query of row head dim to keys of row key head dim; bias: head key, all visible."""
        fl, dim = self.fl, q.shape[-1]
        scores = []
        for j in range(k.shape[1]):
            where = self.dice.integers(3)
            scale = np.float64(dim**-0.5)
            near, far = (fl(q * fl(scale)), k[:, j]) if where == 0 else (q, k[:, j])
            if where == 1:
                near, far = fl(near * fl(np.sqrt(scale))), fl(far * fl(np.sqrt(scale)))
            dot = self.sum([fl(near[..., d] * far[..., d]) for d in range(dim)])
            scores.append(fl((fl(dot * fl(scale)) if where == 2 else dot) + bias[:, j]))
        if not self.online:
            top = np.max(scores, axis=0)
            weights = [fl(np.exp(fl(each - top)), EXP_ULPS) for each in scores]
            total = self.sum(list(weights))
            share = [fl(each / total)[..., None] for each in weights]
            return self.sum([fl(each * v[:, j]) for j, each in enumerate(share)])
        top = total = result = None
        for j in self.dice.permutation(len(scores)):
            if top is None or total is None or result is None:
                top, total, result = scores[j], np.ones_like(scores[j]), v[:, j]
                continue
            new = np.maximum(top, scores[j])
            grows = new > top
            factor = np.where(grows, fl(np.exp(fl(top - new)), EXP_ULPS), 1.0)
            weight = np.where(scores[j] == new, 1.0, fl(np.exp(fl(scores[j] - new)), EXP_ULPS))
            total = fl(np.where(grows, fl(total * factor), total) + weight)
            kept = np.where(grows[..., None], fl(result * factor[..., None]), result)
            result, top = fl(kept + fl(weight[..., None] * v[:, j])), new
        assert result is not None
        assert total is not None
        return fl(result / total[..., None])


def numpy(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def run_block(machine: Machine, block: Block, x: Array, bias: Array) -> Array:
    """Runs a block on streams x, row token d, with a bias of head query key, −∞ where a key is masked."""
    attention, feed = block.attentions["self"], block.feed

    def norm(kind: str, value: Array) -> Array:
        each = block.norms[kind]
        return machine.normalise(value, numpy(each.weight), numpy(each.bias), each.eps)  # pyright: ignore

    read = x if block.post_norm else norm("self", x)
    shape = (*x.shape[:2], attention.heads, attention.dim)  # pyright: ignore
    every = (attention.query, *attention.key_value)  # pyright: ignore
    q, k, v = (machine.linear(read, numpy(each)).reshape(shape) for each in every)  # pyright: ignore
    z = []
    for place in range(x.shape[1]):
        seen = np.isfinite(bias[0, place])
        z.append(machine.attend(q[:, place], k[:, seen], v[:, seen], bias[:, place, seen]).reshape(len(x), -1))
    out = machine.linear(np.stack(z, 1), numpy(attention.out.weight), numpy(attention.out.bias))  # pyright: ignore
    x = machine.fl(x + out)
    x = norm("self", x) if block.post_norm else x
    read = x if block.post_norm else norm("feed", x)
    hidden = np.maximum(machine.linear(read, numpy(feed.into.weight), numpy(feed.into.bias)), 0)
    x = machine.fl(x + machine.linear(hidden, numpy(feed.out.weight), numpy(feed.out.bias)))
    return norm("feed", x) if block.post_norm else x
