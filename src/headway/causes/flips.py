"""Counts how often patching one part flips the answer, contrast by contrast, and names the parts that do.

A part is named for a contrast when in both directions of the patch the lower end of the (exact) interval of its flips,
at a level corrected for all tests, lies above 2% and above its placebo. Where a part provably sees no difference, or
what it sees cannot reach the answer token, there is nothing to count: the share is "cannot", never 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from headway.causes.patching import Pairs, Patch
from headway.evaluation.intervals import exact_interval, wilson
from headway.models.sites import Part

LEAST, CONFIDENCE = 0.02, 0.95
Cannot = Literal["cannot"]
CANNOT: Cannot = "cannot"


@dataclass(frozen=True)
class Flips:
    """The number of flips, with both directions of every pair counted."""

    flips: int
    pairs: int
    can: bool = True
    """whether any pair can flip at all: False where what is patched provably does not differ"""
    by_direction: tuple[int, int] | None = None
    """from the first problem of a pair to the second, and back"""

    def directions(self) -> list[float] | None:
        """Returns the share of flips in each direction."""
        if self.by_direction is None or self.share is None:
            return None
        return [flips / self.pairs for flips in self.by_direction]

    @property
    def share(self) -> float | None:
        return self.flips / (2 * self.pairs) if self.pairs and self.can else None

    def interval(self) -> list[float] | None:
        """Returns the interval of the share; a pair counts once, because its two directions are not independent."""
        return wilson(round(self.flips / 2), self.pairs).to_json() if self.pairs and self.can else None

    def to_json(self) -> float | Cannot | None:
        return self.share if self.can else CANNOT

    def __str__(self) -> str:
        return CANNOT if not self.can else "not tested" if self.share is None else f"{self.share:.1%}"


NO_FLIPS = Flips(0, 0)


@dataclass(frozen=True)
class Strength:
    """The effect of patching one part on the pairs of one contrast."""

    part: Part
    contrast: str
    at_answer: bool
    flips: tuple[int, int]
    """the number in each of the two directions"""
    pairs: int
    """the pairs that the model has right, each patched in both directions"""
    moved: float
    """how far the logits moved on average: 0 not at all, 1 all the way"""
    placebo: Flips
    named: bool
    can: bool = True

    @property
    def both(self) -> Flips:
        return Flips(sum(self.flips), self.pairs, self.can, self.flips)

    def to_json(self) -> dict[str, Any]:
        return {
            "part": str(self.part),
            "contrast": self.contrast,
            "at_answer": self.at_answer,
            "flips": self.both.to_json(),
            "interval": self.both.interval(),
            "by_direction": self.both.directions(),
            "pairs": self.pairs,
            "moved": None if self.both.share is None else self.moved,
            "placebo": self.placebo.to_json(),
            "named": self.named,
        }


@dataclass(frozen=True)
class FlipCounts:
    flips: list[list[tuple[int, int]]]  # patch contrast direction
    known: list[int]  # contrast: pairs that the model has right
    moved: list[list[float]]  # patch contrast
    can: list[list[bool]]  # patch contrast

    def total(self, patch: int, contrast: int) -> Flips:
        """Returns the flips of one patch in both directions."""
        each = self.flips[patch][contrast]
        return Flips(sum(each), self.known[contrast], self.can[patch][contrast], each)


def count_flips(pairs: Pairs, patches: Sequence[Patch]) -> FlipCounts:
    """Counts flips by contrast and direction, over the pairs that the model has right."""
    patched, group = pairs(patches), 2 * pairs.contrast + (~pairs.forward).long()
    member = torch.nn.functional.one_hot(group, 2 * len(pairs.contrasts)).double() * pairs.known[:, None]  # row group
    flips = (patched.flipped.double() @ member).long().view(len(patched.flipped), -1, 2)
    known = member.sum(0).long().view(-1, 2)  # the same in both directions
    moved = (patched.moved.double() @ member).view(len(patched.moved), -1, 2).sum(-1) / known.sum(-1).clamp(min=1)
    counts = [[(a, b) for a, b in row] for row in flips.tolist()]
    return FlipCounts(counts, known[:, 0].tolist(), moved.tolist(), [pairs.can(patch) for patch in patches])


def measure_strengths(pairs: Pairs, patches: Sequence[Patch]) -> list[Strength]:
    """Measures the effect of each patch of one part on each contrast."""
    found = count_flips(pairs, patches)
    places = {(c.name, c.placebo): number for number, c in enumerate(pairs.contrasts)}
    wanted = [number for number, c in enumerate(pairs.contrasts) if not c.placebo]
    tests = sum(row[number] for row in found.can for number in wanted)  # a test that cannot fail is none
    level = 1 - (1 - CONFIDENCE) / max(1, tests)
    table = []
    for place, patch in enumerate(patches):
        (part,) = patch.parts
        for number in wanted:
            name, flips, known = pairs.contrasts[number].name, found.flips[place][number], found.known[number]
            other, can = places.get((name, True)), found.can[place][number]
            placebo = NO_FLIPS if other is None else found.total(place, other)
            low = min(exact_interval(count, known, level).low for count in flips) if can else 0.0
            named = low > max(LEAST, placebo.share or 0.0)
            moved = found.moved[place][number]
            table.append(Strength(part, name, patch.at_answer, flips, known, moved, placebo, named, can))
    return table
