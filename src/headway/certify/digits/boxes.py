"""The boxes that a proof begins with, and how a box is split.

For every answer digit, every token that its query may read and every carry into the column below, one scene holds all
contents of the two columns that decide the digit. Together the scenes of a digit cover all pairs, each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from headway.certify.digits.chain import Chain, whole
from headway.certify.digits.scene import Rows, Scene, Token
from headway.certify.digits.views import QueryViews


def first_scenes(views: QueryViews, number: int) -> Iterator[Scene]:
    """Yields the scenes of an answer digit, which together cover all pairs of numbers."""
    model = views.model
    before, start = number > 0, model.source[-1]
    assert isinstance(start, int)
    for shown in range(model.base) if before else [None]:
        token = start if shown is None else model.digit_tokens[shown]
        view = views.at(number, token)
        for carry in (0, 1) if number > 1 else (0,):
            columns = frozenset(at for at in (number - 1, number) if 0 <= at < model.digits)
            chain = Chain(whole(model.digits, model.base), max(0, number - 1), carry, columns)
            yield Scene(views, view, number, chain, _rows(model.digits, model.base, number, shown, carry))


def _rows(digits: int, base: int, number: int, shown: int | None, carry: int) -> Rows:
    """Returns the contents of column `number` and the one below that show the digit `shown` in the latter."""
    tokens: list[Token] = []
    digit, out = torch.arange(base), torch.zeros(1, dtype=torch.long)
    contents = torch.zeros(1, 0, dtype=torch.long)
    if shown is not None:
        below = torch.cartesian_prod(digit, digit)
        total = below.sum(1) + carry
        kept = total % base == shown
        tokens += [("a", number - 1), ("b", number - 1)]
        contents, out = below[kept], (total // base)[kept]
    if number < digits:
        own = torch.cartesian_prod(digit, digit)
        tokens += [("a", number), ("b", number)]
        count = len(own)
        contents, out = contents.repeat_interleave(count, 0), out.repeat_interleave(count)
        own = own.repeat(len(contents) // count, 1)
        contents, total = torch.cat((contents, own), 1), own.sum(1) + out
        return Rows(tuple(tokens), contents, total % base)
    return Rows(tuple(tokens), contents, out)


def split(scene: Scene) -> list[Scene]:
    """Splits a scene by the free token that can move attention most: one scene for each digit that it may be."""
    weights, values, can = scene.tables
    low = scene.masses[0].amin(0)  # head
    size = values.norm(dim=-1)
    reach = (weights * size).masked_fill(~can, 0).amax(2)  # head token
    token = scene.free[int((reach / low[:, None]).sum(0).argmax())]
    parts = []
    for digit in scene.choices[token]:
        chain = scene.chain.restrict(*token, digit)
        if chain.count():
            parts.append(replace(scene, chain=chain))
    return parts
