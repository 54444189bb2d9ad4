"""Which heads bring what to which digit: the causal tests of patching.py as a table, with strengths and controls.

A head is named for a contrast when in both directions of the patch the lower end of the interval of its flips, at a
level corrected for all tests, lies above 2%. Heads that back each other up flip nothing one by one, so for every
contrast a set is also grown, always by the head that adds most, by a pair where no single head adds anything; heads
that turn out needless are dropped again. The set is grown on some pairs and reported on others, beside its placebo and
random sets of as many other heads.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from headway.evaluation.exact import Watch
from headway.evaluation.intervals import Interval, wilson
from headway.heads.lots import Lot
from headway.heads.patching import Pairs, Patch, Patched
from headway.heads.variants import Part
from headway.models import Head, Site
from headway.models.rerun import sites_of
from headway.subjects.subject import Subject
from headway.tasks.contrasts import Contrast

PAIRS, GROWN = 150, 60
"""pairs of each contrast: for the table, and for growing sets"""
LEAST, CONFIDENCE = 0.02, 0.95
ENOUGH, ADDS, PAIR_ADDS, MOST = 0.95, 0.02, 0.1, 8
RANDOM_SETS = 5


@dataclass(frozen=True)
class Strength:
    """What patching one part did to the pairs of one contrast."""

    part: Part
    contrast: str
    at_answer: bool
    flips: tuple[int, int]
    """in the one direction and in the other"""
    pairs: tuple[int, int]
    """that the model has right"""
    moved: float
    """of the logits, on average: 0 not at all, 1 all the way"""
    placebo: tuple[int, int]
    """flips of placebo pairs, and their number"""
    interval: Interval
    named: bool

    @property
    def share(self) -> float:
        return sum(self.flips) / max(1, sum(self.pairs))

    def to_json(self) -> dict[str, Any]:
        return {
            "part": str(self.part),
            "contrast": self.contrast,
            "at_answer": self.at_answer,
            "flips": self.share,
            "interval": self.interval.to_json(),
            "by_direction": [f / max(1, p) for f, p in zip(self.flips, self.pairs, strict=True)],
            "pairs": sum(self.pairs),
            "moved": self.moved,
            "placebo": self.placebo[0] / max(1, self.placebo[1]),
            "named": self.named,
        }


@dataclass(frozen=True)
class Explained:
    """Heads that together bring one contrast to its digit."""

    contrast: str
    heads: tuple[Head, ...]
    flips: int
    pairs: int
    placebo: tuple[int, int]
    control: float | None
    """flips by as many other heads, the mean of random sets; None where there are not enough others"""

    @property
    def share(self) -> float:
        return self.flips / max(1, self.pairs)

    def to_json(self) -> dict[str, Any]:
        return {
            "contrast": self.contrast,
            "heads": [str(head) for head in self.heads],
            "flips": self.share,
            "interval": wilson(self.flips, max(1, self.pairs)).to_json(),
            "pairs": self.pairs,
            "placebo": self.placebo[0] / max(1, self.placebo[1]),
            "random_heads": self.control,
        }


@dataclass(frozen=True)
class Roles:
    table: tuple[Strength, ...]
    explained: tuple[Explained, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "table": [strength.to_json() for strength in self.table],
            "explained": [each.to_json() for each in self.explained],
            "mean_explained": self.mean_explained,
        }

    @property
    def mean_explained(self) -> float:
        """The share of pairs that the sets flip, the mean over the contrasts that the model can do."""
        known = [each for each in self.explained if each.pairs]
        return sum(each.share for each in known) / max(1, len(known))

    def findings(self) -> list[str]:
        """What may be said, by the tests; nothing about contrasts that no set of heads flips."""
        words = []
        for each in self.explained:
            kind, column = each.contrast.split()
            what = {
                "operand": f"The digits of column {column}",
                "carry": f"The carry into column {column}",
                "propagated": f"A carry that column {int(column) - 1} passes on to column {column}",
            }[kind]
            if each.heads and each.share >= 0.5:
                control = "" if each.control is None else f", as many other heads at random {each.control:.1%}"
                placebo = f"placebo pairs {each.placebo[0] / each.placebo[1]:.1%}" if each.placebo[1] else "no placebo"
                verb = "reach" if kind == "operand" else "reaches"
                words.append(
                    f"{what} {verb} answer digit {column} through {' and '.join(map(str, each.heads))}: patched "
                    f"together they turn {each.share:.1%} of {each.pairs:,} pairs ({placebo}{control})."
                )
        return words


def find_roles(subject: Subject, seed: int = 0, watch: Watch | None = None) -> Roles:
    """The table of all heads, sites and feed-forward blocks, and a set of heads for every contrast."""
    assert subject.contrasts is not None
    contrasts = subject.contrasts(PAIRS, Lot.REPORT.seed(seed))
    pairs, table = Pairs(subject, contrasts), []
    sites = sites_of(pairs.model)
    parts: list[Part] = [*subject.heads, *sites]
    patches = [Patch(frozenset({part})) for part in parts]
    patches += [Patch(frozenset({part}), at_answer=True) for part in parts if _site(part).stack == "decoder"]
    table = strengths(pairs, patches)
    grown = subject.contrasts(GROWN, Lot.SELECT.seed(seed))
    explained = []
    wanted = [number for number, contrast in enumerate(contrasts) if not contrast.placebo]
    for done, number in enumerate(wanted):
        both = slice(number, number + 1 + _has_placebo(contrasts, number))
        heads = grow(Pairs(subject, grown[number : number + 1]), subject.heads)
        explained.append(_reported(Pairs(subject, contrasts[both]), heads, subject.heads, seed))
        if watch is not None:
            watch(done + 1, len(wanted))
    return Roles(tuple(table), tuple(explained))


def strengths(pairs: Pairs, patches: Sequence[Patch]) -> list[Strength]:
    """What each patch of one part did to each contrast."""
    found = counted(pairs, pairs(patches))
    names = {(c.name, c.placebo): number for number, c in enumerate(pairs.contrasts)}
    wanted = [number for number, c in enumerate(pairs.contrasts) if not c.placebo]
    level = 1 - (1 - CONFIDENCE) / max(1, 2 * len(patches) * len(wanted))
    table = []
    for place, patch in enumerate(patches):
        (part,) = patch.parts
        for number in wanted:
            name = pairs.contrasts[number].name
            flips, known = found.flips[place][number], found.known[number]
            placebo = names.get((name, True))
            low = min(wilson(f, n, level).low if n else 0.0 for f, n in zip(flips, known, strict=True))
            table.append(
                Strength(
                    part,
                    name,
                    patch.at_answer,
                    flips,
                    known,
                    found.moved[place][number],
                    (0, 0) if placebo is None else (sum(found.flips[place][placebo]), sum(found.known[placebo])),
                    wilson(sum(flips), max(1, sum(known))),
                    low > LEAST,
                )
            )
    return table


@dataclass(frozen=True)
class _Counts:
    flips: list[list[tuple[int, int]]]  # patch contrast direction
    known: list[tuple[int, int]]  # contrast direction
    moved: list[list[float]]  # patch contrast


def counted(pairs: Pairs, patched: Patched) -> _Counts:
    """Flips by contrast and direction, of the rows that the model has right."""
    group = 2 * pairs.contrast + (~pairs.forward).long()
    groups = 2 * len(pairs.contrasts)
    member = torch.nn.functional.one_hot(group, groups).double() * pairs.known[:, None]  # row group
    flips = (patched.flipped.double() @ member).long().view(len(patched.flipped), -1, 2)
    known = member.sum(0).long().view(-1, 2)
    moved = (patched.moved.double() @ member).view(len(patched.moved), -1, 2).sum(-1) / known.sum(-1).clamp(min=1)
    return _Counts(_tuples(flips), [(a, b) for a, b in known.tolist()], moved.tolist())


def _tuples(table: Tensor) -> list[list[tuple[int, int]]]:
    return [[(a, b) for a, b in row] for row in table.tolist()]


def grow(pairs: Pairs, heads: Sequence[Head]) -> tuple[Head, ...]:
    """A set of heads that flips most pairs: one more at a time, or two where no one adds anything."""
    chosen: tuple[Head, ...] = ()
    known = max(1, int(pairs.known.sum()))
    share = 0.0
    while share < ENOUGH and len(chosen) < MOST:
        left = [head for head in heads if head not in chosen]
        best, score = _best(pairs, chosen, [(head,) for head in left])
        if score / known < share + ADDS:
            best, score = _best(pairs, chosen, list(combinations(left, 2)))
            if score / known < share + PAIR_ADDS:
                break
        chosen, share = (*chosen, *best), score / known
    return _trimmed(pairs, chosen, share * known, known)


def _trimmed(pairs: Pairs, chosen: tuple[Head, ...], score: float, known: int) -> tuple[Head, ...]:
    """Without the heads that the others have made needless, the earliest chosen first."""
    for head in chosen:
        fewer = tuple(other for other in chosen if other != head)
        if fewer:
            left = float(pairs([Patch(frozenset(fewer))]).flipped.sum())
            if left >= score - ADDS * known:
                return _trimmed(pairs, fewer, left, known)
    return chosen


def _best(pairs: Pairs, chosen: tuple[Head, ...], more: Sequence[tuple[Head, ...]]) -> tuple[tuple[Head, ...], float]:
    if not more:
        return (), -1.0
    patched = pairs([Patch(frozenset((*chosen, *each))) for each in more])
    score = patched.flipped.sum(1).double() + 0.5 * (patched.moved * pairs.known).mean(1).clamp(0, 1)  # the shift: ties
    place = int(score.argmax())
    return more[place], float(patched.flipped[place].sum())


def _reported(pairs: Pairs, chosen: tuple[Head, ...], heads: Sequence[Head], seed: int) -> Explained:
    others = [head for head in heads if head not in chosen]
    chance = random.Random(seed)
    sets = [chance.sample(others, len(chosen)) for _ in range(RANDOM_SETS)] if len(others) >= len(chosen) else []
    if not chosen:
        known = [int((pairs.known & (pairs.contrast == number)).sum()) for number in range(len(pairs.contrasts))]
        return Explained(pairs.contrasts[0].name, (), 0, known[0], (0, sum(known[1:])), None)
    found = counted(pairs, pairs([Patch(frozenset(chosen)), *(Patch(frozenset(some)) for some in sets)]))
    known = [sum(each) for each in found.known]
    control = sum(sum(flips[0]) for flips in found.flips[1:]) / (len(sets) * max(1, known[0])) if sets else None
    placebo = (sum(found.flips[0][1]), known[1]) if len(known) > 1 else (0, 0)
    return Explained(pairs.contrasts[0].name, tuple(chosen), sum(found.flips[0][0]), known[0], placebo, control)


def _has_placebo(contrasts: Sequence[Contrast], number: int) -> bool:
    following = contrasts[number + 1 : number + 2]
    return bool(following) and following[0].placebo


def _site(part: Part) -> Site:
    return part.site if isinstance(part, Head) else part
