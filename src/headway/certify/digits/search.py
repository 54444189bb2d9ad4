"""Branch and bound: every box is proved, split, or searched for a pair that the model gets wrong.

Every scene is bounded quickly; then the open ones, those with most pairs first, are bounded over all carry chains, and
what is still open is split by the token that moves attention most. What the time does not suffice for stays open, and
its pairs are counted: a pair is proved when none of its answer digits lies in an open box.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from torch import Tensor

from headway.certify.digits.boxes import first_scenes, split
from headway.certify.digits.description import OneLayer
from headway.certify.digits.finish import Bounds, Finish
from headway.certify.digits.scene import Scene
from headway.certify.digits.views import QueryViews

NUMBERS = 4_000_000  # in one tensor
WORST = 100  # rows for the hunt
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
        return sum(map(pairs_of, self.open))

    def open_of(self, number: int) -> int:
        """Counts the pairs in open boxes of an answer digit."""
        return sum(pairs_of(scene) for scene in self.open if scene.number == number)

    def note(self, bounds: Bounds) -> None:
        """Takes note of what is proved."""
        if (proved := bounds.proved).any():
            self.margin = min(self.margin, float(bounds.margin[proved].min()))
            self.rounding = max(self.rounding, float(bounds.rounded[proved].max()))

    def remember(self, scene: Scene, rows: Tensor, leads: Tensor) -> None:
        """Remembers the open rows with the smallest leads at their points: the hunt begins there."""
        self.worst += [
            (lead, replace(scene, rows=scene.rows[row : row + 1]))
            for lead, row in zip(leads.tolist(), rows.tolist(), strict=True)
            if len(self.worst) < WORST or lead < self.worst[-1][0]
        ]
        self.worst = sorted(self.worst, key=lambda each: each[0])[:WORST]


def pairs_of(scene: Scene) -> int:
    """Counts the pairs of numbers in the boxes of a scene."""
    return scene.chain.count() * len(scene.rows)


class Prover:
    """Proves one model."""

    def __init__(self, model: OneLayer) -> None:
        self.model = model
        self.views, self.finish = QueryViews(model), Finish(model)

    @torch.no_grad()
    def run(self, budget: float, watch: Watch | None = None) -> Progressed:
        """Bounds all first scenes, then splits the open ones, those with most pairs first, for `budget` seconds."""
        began, found = time.monotonic(), Progressed()
        waiting, leaves, ticket = list[tuple[int, int, bool, Scene]](), list[Scene](), count()

        def keep(scene: Scene | None, close: bool) -> None:
            if scene is not None and (scene.free or not close):
                heapq.heappush(waiting, (-pairs_of(scene), next(ticket), close, scene))
            elif scene is not None:
                leaves.append(scene)  # single problems: nothing is left to split

        numbers = range(self.model.digits + 1)
        for number in numbers:
            for scene in first_scenes(self.views, number):
                late = time.monotonic() - began > budget
                keep(scene if late else self.bound(scene, found), close=False)
            if watch is not None:
                watch(number + 1, len(numbers))
        while waiting and time.monotonic() - began < budget:
            _, _, close, scene = heapq.heappop(waiting)
            if not close:
                keep(self.bound(scene, found, close=True), close=True)
                continue
            for part in split(scene):
                late = time.monotonic() - began > budget
                keep(part if late else self.bound(part, found), close=False)
        found.open = [scene for *_, scene in waiting] + leaves
        found.seconds = time.monotonic() - began
        return found

    def bound(self, scene: Scene, found: Progressed, close: bool = False) -> Scene | None:
        """Bounds all rows of a scene, with `close` over all carry chains; returns the scene of those that stay open,
        None if there are none."""
        step = self._rows_at_once(scene)
        kept = []
        for at in range(0, len(scene.rows), step):
            part = replace(scene, rows=scene.rows[at : at + step])
            bounds = self.finish.bound(part.stream(), self._ids(part.rows.right))
            if close:
                low = bounds.at + bounds.rest + part.exact(bounds.c)
                low = torch.maximum(low.nan_to_num(nan=-torch.inf), bounds.low)
                bounds = replace(bounds, low=low.where(bounds.rounded.isfinite(), -torch.inf))
            found.note(bounds)
            rows = (~bounds.proved).nonzero()[:, 0]
            found.remember(part, rows, bounds.at.amin(1)[rows])
            kept.append(rows + at)
        found.boxes += 0 if close else len(scene.rows)
        rows = torch.cat(kept)
        return replace(scene, rows=scene.rows[rows]) if len(rows) else None

    def _ids(self, digits: Tensor) -> Tensor:
        return torch.tensor(self.model.digit_tokens)[digits]

    def _rows_at_once(self, scene: Scene) -> int:
        model, values = self.model, self.views.values
        units = len(model.tokens) if model.feed is None else max(len(model.feed.into), len(model.tokens))
        d = model.tokens.shape[1]
        tables = len(values) * model.base * (1 if values.shape[1] == 1 else len(scene.free))
        return max(1, NUMBERS // (units * max(d, tables)))
