"""The hunt for a pair that the model gets wrong: random pairs, then descent from the boxes that stay open.

A step of the descent tries every change of one digit and keeps the one that lowers the smallest lead. What counts in
the end is that the model, decoding digit by digit, really writes something else than the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.certify.digits.adder import Adder
from headway.certify.digits.description import OneLayer, add_digits
from headway.certify.digits.scene import Scene

STEPS = 30


@dataclass(frozen=True)
class Counterexample:
    """A pair that the model answers wrong, as numbers written with their digits."""

    a: str
    b: str
    written: str
    right: str


def draw_pairs(model: OneLayer, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws pairs: half of them uniformly, half of them so that about every second column passes a carry on."""
    dice = torch.Generator().manual_seed(seed)
    a, b, coin = torch.randint(model.base, (3, count, model.digits), generator=dice)
    heavy = (coin < model.base // 2) & (torch.arange(count) % 2 == 0)[:, None]
    return a, torch.where(heavy, model.base - 1 - a, b)


@torch.no_grad()
def smallest_leads(model: OneLayer, a: Tensor, b: Tensor) -> Tensor:
    """Returns the smallest lead of a right digit in each problem, given the right digits before it."""
    logits = model.logits(model.sequences(a, b))
    right = torch.tensor(model.digit_tokens)[add_digits(a, b, model.base)][..., None]
    lead = logits.gather(-1, right)[..., 0]
    return (lead - logits.scatter(-1, right, -torch.inf).amax(-1)).amin(1)


def descend(model: OneLayer, a: Tensor, b: Tensor, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Lowers the smallest lead of each problem by changing one digit at a time; returns the last problems."""
    a, b = a.clone(), b.clone()
    best = smallest_leads(model, a, b)
    changes = torch.cartesian_prod(torch.arange(2), torch.arange(model.digits), torch.arange(model.base))
    for row in range(len(a)):
        for _ in range(steps):
            pair = torch.stack((a[row], b[row])).expand(len(changes), 2, -1).clone()
            pair[torch.arange(len(changes)), changes[:, 0], changes[:, 1]] = changes[:, 2]
            leads = smallest_leads(model, pair[:, 0], pair[:, 1])
            if not float(leads.min()) < float(best[row]):
                break
            best[row], (a[row], b[row]) = leads.min(), pair[int(leads.argmin())]
            if best[row] < 0:
                break
    return a, b


def draw_from(scene: Scene, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws problems from the boxes of a scene, `count` for each row."""
    dice = torch.Generator().manual_seed(seed)
    digits = scene.rows.digits.repeat_interleave(count, 0)
    pairs = scene.chain.draw(len(digits), dice)
    for at, (letter, column) in enumerate(scene.rows.tokens):
        pairs[:, "ab".index(letter), column] = digits[:, at]
    return pairs[:, 0], pairs[:, 1]


def show_wrong(adder: Adder, a: Tensor, b: Tensor) -> Counterexample | None:
    """Returns the first of these pairs that the model really answers wrong, None if there is none."""
    if not len(a):
        return None
    wrong = adder.find_wrong(a, b).nonzero()[:, 0]
    if not len(wrong):
        return None
    a, b = a[wrong[:1]], b[wrong[:1]]
    right = add_digits(a, b, adder.description.base)
    return Counterexample(*(_spell(each[0]) for each in (a, b, adder.write(a, b), right)))


def _spell(digits: Tensor) -> str:
    """Writes a number from its digits; ? is a token that is not a digit."""
    named = ["?" if digit < 0 else str(digit) for digit in digits.flip(0).tolist()]
    return ("" if max(map(len, named)) == 1 else " ").join(named)
