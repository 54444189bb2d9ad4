"""Branch and bound: every box is proved, split, or searched for a pair that the model gets wrong.

A scene is bounded at once; its open rows are bounded again over all carry chains, and what is still open is split by the
token that moves attention most. What the time does not suffice for stays open, and its pairs are counted: a pair is
proved when none of its answer digits lies in an open box.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headway.certify.digits.boxes import first_scenes, split
from headway.certify.digits.description import OneLayer
from headway.certify.digits.finish import Bounds, Finish
from headway.certify.digits.scene import Rows, Scene
from headway.certify.digits.sight import Sights

NUMBERS = 20_000_000  # in one tensor
Watch = Callable[[int, int], None]


@dataclass
class Progressed:
    """What has been proved so far."""

    boxes: int = 0
    margin: float = float("inf")  # the smallest in exact arithmetic, of the boxes that are proved
    rounding: float = 0.0  # the largest bound on the rounding of a lead, of the boxes that are proved
    open: list[Scene] = field(default_factory=list)
    worst: list[tuple[float, Scene]] = field(default_factory=list)  # the lead at the point of an open row, and its box
    seconds: float = 0.0

    @property
    def open_pairs(self) -> int:
        """The pairs in open boxes, counted once for each answer digit whose box is open."""
        return sum(scene.chain.count() * len(scene.rows) for scene in self.open)


class Prover:
    """Proves one model."""

    def __init__(self, model: OneLayer) -> None:
        self.model = model
        self.sights, self.finish = Sights(model), Finish(model)

    @torch.no_grad()
    def run(self, budget: float, watch: Watch | None = None) -> Progressed:
        """Bounds all first scenes, then splits the open ones, those with most pairs first, for `budget` seconds."""
        began, found = time.monotonic(), Progressed()
        numbers = range(self.model.digits + 1)
        for number in numbers:
            for scene in first_scenes(self.sights, number):
                late = time.monotonic() - began > budget
                left = scene if late else self.bound(scene, found)
                if left is not None:
                    found.open.append(left)
            if watch is not None:
                watch(number + 1, len(numbers))
        while found.open and time.monotonic() - began < budget:
            found.open.sort(key=lambda scene: scene.chain.count() * len(scene.rows))
            scene = found.open.pop()
            parts = split(scene)
            if not parts:  # a single problem in each row: nothing is left to split
                found.open.insert(0, scene)
                if all(not other.free for other in found.open):
                    break
                found.open[1:] = [other for other in found.open[1:]]
                self._finished(found, began, budget)
                break
            for part in parts:
                if (left := self.bound(part, found)) is not None:
                    found.open.append(left)
        found.seconds = time.monotonic() - began
        return found

    def _finished(self, found: Progressed, began: float, budget: float) -> None:
        """Splits what can still be split, apart from single problems."""
        single = [scene for scene in found.open if not scene.free]
        rest = [scene for scene in found.open if scene.free]
        while rest and time.monotonic() - began < budget:
            for part in split(rest.pop()):
                if (left := self.bound(part, found)) is not None:
                    (rest if left.free else single).append(left)
        found.open = single + rest

    def bound(self, scene: Scene, found: Progressed) -> Scene | None:
        """Bounds all rows of a scene; returns the scene of those that stay open, None if there are none."""
        step = self._rows_at_once(scene)
        kept = []
        for at in range(0, len(scene.rows), step):
            part = replace(scene, rows=scene.rows[at : at + step])
            right = part.rows.right
            bounds = self.finish.bound(part.stream(), self._ids(right))
            open_ = (~bounds.proved).nonzero()[:, 0]
            self._note(bounds, bounds.proved, found)
            if len(open_):
                closer = self._closer(part, bounds, open_)
                self._note(closer, closer.proved, found)
                found.worst += [
                    (float(lead), replace(part, rows=part.rows[row : row + 1]))
                    for row, lead in zip(open_.tolist(), bounds.at.amin(1)[open_].tolist(), strict=True)
                ]
                found.worst = sorted(found.worst, key=lambda each: each[0])[:100]
                open_ = open_[~closer.proved]
            kept.append(open_ + at)
        found.boxes += len(scene.rows)
        rows = torch.cat(kept)
        return replace(scene, rows=scene.rows[rows]) if len(rows) else None

    def _ids(self, digits: Tensor) -> Tensor:
        return torch.tensor(self.model.digit_tokens)[digits]

    def _closer(self, part: Scene, bounds: Bounds, rows: Tensor) -> Bounds:
        """Bounds these rows again, over all carry chains."""
        scene, c = replace(part, rows=part.rows[rows]), bounds.c[rows]
        low = bounds.at[rows] + bounds.rest[rows] + scene.exact(c)
        low = torch.maximum(low, bounds.low[rows]).nan_to_num(nan=-torch.inf)
        return Bounds(bounds.at[rows], low, bounds.rounded[rows], c, bounds.rest[rows])

    def _note(self, bounds: Bounds, proved: Tensor, found: Progressed) -> None:
        if proved.any():
            found.margin = min(found.margin, float(bounds.margin[proved].min()))
            found.rounding = max(found.rounding, float(bounds.rounded[proved].max()))

    def _rows_at_once(self, scene: Scene) -> int:
        model, values = self.model, self.sights.values
        units = len(model.tokens) if model.feed is None else max(len(model.feed.into), len(model.tokens))
        d = model.tokens.shape[1]
        tables = len(values) * model.base * (1 if values.shape[1] == 1 else len(scene.free))
        return max(1, NUMBERS // (units * max(d, tables)))


__all__ = ["Progressed", "Prover", "Rows"]
