"""Finds which heads carry what to which digit: the causal tests of patching.py as a table, with controls.

A head is named for a contrast when in both directions of the patch the lower end of the (exact) interval of its flips,
at a level corrected for all tests, lies above 2% and above its placebo. Heads that back each other up flip nothing one
by one, so for every contrast a set is also grown, always by the head that adds most, or by a pair where no single head
adds anything; redundant heads are dropped again. The set is grown on some pairs and reported on others, with its
placebo and random sets of as many heads that are not named. It is one sufficient set, not the only one.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from headway.causes.patching import Pairs, Patch
from headway.evaluation.intervals import exact_interval, wilson
from headway.models import Head, Site
from headway.models.sites import Part, site_of
from headway.progress import SILENT, Watch
from headway.subjects.splits import Split
from headway.subjects.subject import Subject

PAIRS, GROWN = 200, 60  # pairs of each contrast: for the table, and for growing sets
LEAST, CONFIDENCE = 0.02, 0.95
ENOUGH, ADDS, PAIR_ADDS, MOST, LIKELY = 0.95, 0.02, 0.1, 8, 20
RANDOM_SETS, ENOUGH_PAIRS, MOST_PLACEBO = 10, 30, 0.02
Heads = tuple[Head, ...]


@dataclass(frozen=True)
class Flips:
    """The number of flips, with both directions of every pair counted."""

    flips: int
    pairs: int

    @property
    def share(self) -> float | None:
        return self.flips / (2 * self.pairs) if self.pairs else None

    def interval(self) -> list[float] | None:
        """Returns the interval of the share; a pair counts once, because its two directions are not independent."""
        return wilson(round(self.flips / 2), self.pairs).to_json() if self.pairs else None


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

    @property
    def both(self) -> Flips:
        return Flips(sum(self.flips), self.pairs)

    def to_json(self) -> dict[str, Any]:
        return {
            "part": str(self.part),
            "contrast": self.contrast,
            "at_answer": self.at_answer,
            "flips": self.both.share,
            "interval": self.both.interval(),
            "by_direction": [flips / self.pairs for flips in self.flips] if self.pairs else None,
            "pairs": self.pairs,
            "moved": self.moved if self.pairs else None,
            "placebo": self.placebo.share,
            "named": self.named,
        }


@dataclass(frozen=True)
class SufficientSet:
    """A set of heads that is enough to carry one contrast to its digit, and the set of all that are named for it."""

    contrast: str
    heads: Heads
    real: Flips
    placebo: Flips
    control: float | None
    """the mean share of flips by random sets of as many heads that are not named; None where there are too few"""
    named: Heads
    by_named: Flips
    """the flips when all named heads are patched together"""

    @property
    def sound(self) -> bool:
        """Whether it may be reported: most pairs flip, by the whole interval, and those of the controls do not."""
        low, share = (self.real.interval() or [0.0])[0], self.real.share or 0.0
        calm = (self.placebo.share or 0.0) <= MOST_PLACEBO and (self.control or 0.0) <= share / 2
        return bool(self.heads) and self.real.pairs >= ENOUGH_PAIRS and low >= 0.5 and calm

    def to_json(self) -> dict[str, Any]:
        return {
            "contrast": self.contrast,
            "heads": [str(head) for head in self.heads],
            "flips": self.real.share,
            "interval": self.real.interval(),
            "pairs": self.real.pairs,
            "placebo": self.placebo.share,
            "random_heads": self.control,
            "sound": self.sound,
            "named": [str(head) for head in self.named],
            "flips_by_named": self.by_named.share,
        }

    def finding(self) -> str:
        kind, column = self.contrast.split()
        what = {
            "operand": f"the digits of column {column}",
            "carry": f"the carry into column {column}",
            "propagated": f"a carry that column {int(column) - 1} passes on to column {column}",
        }.get(kind)
        where, heads = f"answer {'digit' if what else 'token'} {column}", " and ".join(map(str, self.heads))
        control = "" if self.control is None else f", as many heads at random {self.control:.1%}"
        placebo = "no placebo" if self.placebo.share is None else f"placebo pairs {self.placebo.share:.1%}"
        return (
            f"For {what or self.contrast} to reach {where}, {heads} suffice{'' if self.heads[1:] else 's'}: patching "
            f"flips the answer in {self.real.share:.1%} of {self.real.pairs} pairs, both ways ({placebo}{control})."
        )


@dataclass(frozen=True)
class Roles:
    table: tuple[Strength, ...]
    explained: tuple[SufficientSet, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "table": [strength.to_json() for strength in self.table],
            "explained": [each.to_json() for each in self.explained],
            "mean_explained": self.mean_of([each.real for each in self.explained]),
            "mean_by_named": self.mean_of([each.by_named for each in self.explained]),
            "by_site": self.by_site(),
        }

    def by_site(self) -> dict[str, dict[str, float]]:
        """Returns the sites and feed-forward blocks that flip at least half of the pairs of each kind of contrast."""
        flips: dict[str, dict[str, float]] = {}
        for strength in self.table:
            share = strength.both.share
            if isinstance(strength.part, Site) and not strength.at_answer and share is not None:
                flips.setdefault(str(strength.part), {})[strength.contrast] = share
        return parts_that_flip_half(flips)

    @staticmethod
    def mean_of(found: Sequence[Flips]) -> float | None:
        """Returns the mean share over the contrasts that the model has right."""
        shares = [flips.share for flips in found if flips.share is not None]
        return sum(shares) / len(shares) if shares else None

    def findings(self) -> list[str]:
        """States what the tests support, and nothing else."""
        words = [each.finding() for each in self.explained if each.sound]
        names = {"operand": "The digits of a column", "carry": "A carry", "propagated": "A carry that is passed on"}
        for kind, parts in self.by_site().items():
            if parts:
                listed = ", ".join(f"{part} {share:.0%}" for part, share in parts.items())
                name = names.get(kind, f"A {kind}")
                words.append(f"{name}: patched as a whole, each of these flips at least half of the pairs: {listed}.")
        return words


def parts_that_flip_half(flips: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Returns, for each kind of contrast over all columns, the parts that flip at least half of its pairs, with their
    mean shares; `flips` are the shares by part and contrast."""
    found: dict[str, dict[str, list[float]]] = {}
    for part, row in flips.items():
        for contrast, share in row.items():
            found.setdefault(contrast.split()[0], {}).setdefault(part, []).append(share)
    means = {kind: {part: sum(x) / len(x) for part, x in parts.items()} for kind, parts in found.items()}
    return {kind: {part: mean for part, mean in parts.items() if mean >= 0.5} for kind, parts in means.items()}


def find_roles(subject: Subject, seed: int = 0, watch: Watch = SILENT) -> Roles:
    """Tests all heads, sites and feed-forward blocks, and finds a sufficient set of heads for every contrast."""
    assert subject.contrasts is not None
    contrasts = subject.contrasts(PAIRS, Split.REPORT.seed(seed))
    parts: list[Part] = [*subject.heads, *subject.runner.sites]
    patches = [Patch(frozenset({part})) for part in parts]
    patches += [Patch(frozenset({part}), at_answer=True) for part in parts if site_of(part).stack == "decoder"]
    table = measure_strengths(Pairs(subject, contrasts), patches)
    to_grow = {contrast.name: contrast for contrast in subject.contrasts(GROWN, Split.SELECT.seed(seed))}
    explained, names = [], list(dict.fromkeys(contrast.name for contrast in contrasts))
    for name in names:
        both = [contrast for contrast in contrasts if contrast.name == name]  # the real one, then its placebo
        parts = [s.part for s in table if s.named and s.contrast == name and not s.at_answer]
        named = tuple(part for part in parts if isinstance(part, Head))
        grown = to_grow.get(name, both[0])
        heads = grow_set(Pairs(subject, [both[0] if grown.placebo else grown]), subject.heads)
        explained.append(_test_set(Pairs(subject, both), heads, named, subject.heads, f"{seed} {name}"))
        watch(len(explained), len(names))
    return Roles(tuple(table), tuple(explained))


def measure_strengths(pairs: Pairs, patches: Sequence[Patch]) -> list[Strength]:
    """Measures the effect of each patch of one part on each contrast."""
    found = count_flips(pairs, patches)
    places = {(c.name, c.placebo): number for number, c in enumerate(pairs.contrasts)}
    wanted = [number for number, c in enumerate(pairs.contrasts) if not c.placebo]
    level = 1 - (1 - CONFIDENCE) / max(1, len(patches) * len(wanted))
    table = []
    for place, patch in enumerate(patches):
        (part,) = patch.parts
        for number in wanted:
            name, flips, known = pairs.contrasts[number].name, found.flips[place][number], found.known[number]
            other = places.get((name, True))
            placebo = Flips(0, 0) if other is None else Flips(sum(found.flips[place][other]), found.known[other])
            low = min(exact_interval(count, known, level).low for count in flips)
            named = low > max(LEAST, placebo.share or 0.0)
            moved = found.moved[place][number]
            table.append(Strength(part, name, patch.at_answer, flips, known, moved, placebo, named))
    return table


@dataclass(frozen=True)
class _Counts:
    flips: list[list[tuple[int, int]]]  # patch contrast direction
    known: list[int]  # contrast: pairs that the model has right
    moved: list[list[float]]  # patch contrast


def count_flips(pairs: Pairs, patches: Sequence[Patch]) -> _Counts:
    """Counts flips by contrast and direction, over the pairs that the model has right."""
    patched, group = pairs(patches), 2 * pairs.contrast + (~pairs.forward).long()
    member = torch.nn.functional.one_hot(group, 2 * len(pairs.contrasts)).double() * pairs.known[:, None]  # row group
    flips = (patched.flipped.double() @ member).long().view(len(patched.flipped), -1, 2)
    known = member.sum(0).long().view(-1, 2)  # the same in both directions
    moved = (patched.moved.double() @ member).view(len(patched.moved), -1, 2).sum(-1) / known.sum(-1).clamp(min=1)
    return _Counts([[(a, b) for a, b in row] for row in flips.tolist()], known[:, 0].tolist(), moved.tolist())


def grow_set(pairs: Pairs, heads: Sequence[Head]) -> Heads:
    """Grows a set of heads that flips most pairs: by one head at a time, or by two where no single one adds any."""
    chosen: Heads = ()
    known, share = int(pairs.known.sum()), 0.0
    while known and share < ENOUGH and len(chosen) < MOST:
        ranked = _rank_additions(pairs, chosen, [(head,) for head in heads if head not in chosen])
        best, score = ranked[0] if ranked else ((), 0.0)
        if score / known < share + ADDS:
            both = _rank_additions(pairs, chosen, list(combinations([more[0] for more, _ in ranked[:LIKELY]], 2)))
            best, score = both[0] if both else ((), 0.0)
            if score / known < share + PAIR_ADDS:
                break
        chosen, share = (*chosen, *best), score / known
    return _trim(pairs, chosen, share * known, known)


def _rank_additions(pairs: Pairs, chosen: Heads, more: Sequence[Heads]) -> list[tuple[Heads, float]]:
    """Ranks what to add by the flips it would make, and among equals by the shift of the logits; returns the flips."""
    if not more:
        return []
    patched = pairs([Patch(frozenset((*chosen, *each))) for each in more])
    flips, shift = patched.flipped.sum(1).tolist(), (patched.moved * pairs.known).mean(1).tolist()
    order = sorted(range(len(more)), key=lambda place: (-flips[place], -shift[place]))
    return [(more[place], float(flips[place])) for place in order]


def _trim(pairs: Pairs, chosen: Heads, score: float, known: int) -> Heads:
    """Drops the heads that the others have made redundant, the earliest chosen first."""
    for head in chosen if len(chosen) > 1 else ():
        fewer = tuple(other for other in chosen if other != head)
        left = float(pairs([Patch(frozenset(fewer))]).flipped.sum())
        if left >= score - ADDS * known:
            return _trim(pairs, fewer, left, known)
    return chosen


def _test_set(pairs: Pairs, chosen: Heads, named: Heads, heads: Sequence[Head], seed: str) -> SufficientSet:
    others, chance = [head for head in heads if head not in chosen and head not in named], random.Random(seed)
    enough = chosen and len(others) >= len(chosen)
    sets = [tuple(chance.sample(others, len(chosen))) for _ in range(RANDOM_SETS)] if enough else []
    wanted = [some for some in (chosen, named, *sets) if some]
    found = count_flips(pairs, [Patch(frozenset(some)) for some in wanted]).flips if wanted else []
    made = dict(zip(wanted, found, strict=True))
    known = [int((pairs.known & (pairs.contrast == n)).sum()) // 2 for n in range(len(pairs.contrasts))]

    def flips(some: Heads, contrast: int) -> Flips:
        if contrast >= len(known):
            return Flips(0, 0)
        return Flips(sum(made[some][contrast]) if some else 0, known[contrast])

    shares = [flips(some, 0).share or 0.0 for some in sets]
    control, name = sum(shares) / len(shares) if shares else None, pairs.contrasts[0].name
    return SufficientSet(name, chosen, flips(chosen, 0), flips(chosen, 1), control, named, flips(named, 0))
