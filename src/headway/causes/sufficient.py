"""Finds a set of heads that suffices to carry a contrast to its answer token, and tests it against controls.

Heads that back each other up flip nothing one by one, so a set is grown, always by the head that adds most, or by a
pair where no single head adds anything; redundant heads are dropped again. It is grown on some pairs and tested on
others. It is reported where all of this holds:

placebo     the pairs whose answer token must stay the same do not flip
controls    fewer than one in twenty of the random sets of as many heads flip as much, both of sets from all heads and
            of sets with as many heads at each site (where those are 20 or fewer: none does); and sets without any of
            its heads flip at most 10%, by the whole interval
necessity   leaving out any one of its heads loses flips; and when all other heads are patched and its heads keep their
            output, fewer pairs flip than when all heads are patched
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from math import comb, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from headway.causes.flips import NO_FLIPS, Flips, count_flips
from headway.causes.patching import Pairs, Patch
from headway.evaluation.intervals import Interval, Z, tango, wilson
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks.problems import Contrast

ENOUGH, ADDS, PAIR_ADDS, MOST, LIKELY = 0.95, 0.02, 0.1, 8, 20
ENOUGH_PAIRS, MOST_PLACEBO, MOST_WITHOUT = 30, 0.02, 0.1
CONTROLLED = 40  # pairs that random sets are measured on
Heads = tuple[Head, ...]


@dataclass(frozen=True)
class RandomSets:
    """Random sets of as many heads as the chosen one, which is not among them."""

    sets: int
    mean: float | None = None
    """the mean of their shares of flips"""
    percentile_95: float | None = None
    """a share that fewer than one in twenty of them reach; where they are 20 or fewer, the largest"""
    overlap: float | None = None
    """the mean number of chosen heads in them"""

    def __str__(self) -> str:
        most = f"at most {self.percentile_95:.1%}" if self.sets <= 20 else f"95th percentile {self.percentile_95:.1%}"
        return f"{self.mean:.1%}, {most}"

    def to_json(self) -> dict[str, int | float | None]:
        return {"sets": self.sets, "mean": self.mean, "percentile_95": self.percentile_95, "overlap": self.overlap}


@dataclass(frozen=True)
class Controls:
    """The flips of random sets, on the first of the pairs that the chosen set is tested on."""

    pairs: int
    share: float
    """the chosen set's share of flips on these pairs"""
    all_heads: RandomSets
    same_sites: RandomSets
    without: RandomSets
    """those among them that contain no chosen head"""
    interval_without: Interval | None

    @property
    def passed(self) -> bool:
        """Whether the chosen set stands out; where its sites have no other such set, there is nothing to compare."""
        beaten = [each.percentile_95 is None or self.share > each.percentile_95 for each in self.each]
        apart = self.interval_without is not None and self.interval_without.high <= MOST_WITHOUT
        return self.all_heads.sets > 0 and all(beaten) and apart

    @property
    def each(self) -> tuple[RandomSets, RandomSets]:
        return self.all_heads, self.same_sites

    def to_json(self) -> dict[str, Any]:
        interval = None if self.interval_without is None else self.interval_without.to_json()
        return {
            "pairs": self.pairs,
            "flips": self.share,
            "all_heads": self.all_heads.to_json(),
            "same_sites": self.same_sites.to_json(),
            "without_chosen": {**self.without.to_json(), "interval": interval},
            "passed": self.passed,
        }

    def __str__(self) -> str:
        words = []
        for each, whence in zip(self.each, ("", " from the same sites"), strict=True):
            if not each.sets:
                words.append(f"no other set of as many heads{whence}")
            else:
                words.append(f"{each.sets} random sets of as many heads{whence} {each}")
        apart = "" if self.without.mean is None else f", sets without any of its heads {self.without.mean:.1%}"
        return ", ".join(words) + apart


@dataclass(frozen=True)
class Lost:
    """The flips that remain after a change, and how many pairs lost some, as a share with its paired interval."""

    left: float
    interval: Interval

    def to_json(self) -> dict[str, float | list[float]]:
        return {"flips": self.left, "lost_interval": self.interval.to_json()}


@dataclass(frozen=True)
class Necessity:
    """What is lost without one of the chosen heads, and without all of them when everything else is patched."""

    one_left_out: dict[str, Lost]
    all_heads: float
    """the share of flips when all heads are patched"""
    all_others: Lost

    @property
    def holds(self) -> bool:
        return all(lost.interval.low > 0 for lost in (*self.one_left_out.values(), self.all_others))

    def to_json(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "one_left_out": [{"head": head, **lost.to_json()} for head, lost in self.one_left_out.items()],
            "all_heads": {"flips": self.all_heads},
            "all_others": self.all_others.to_json(),
        }


@dataclass(frozen=True)
class SufficientSet:
    """A set of heads that is enough to carry one contrast to its digit, and the set of all that are named for it."""

    contrast: str
    heads: Heads
    real: Flips
    placebo: Flips
    named: Heads
    by_named: Flips
    """the flips when all named heads are patched together"""
    controls: Controls | None = None
    necessity: Necessity | None = None

    @property
    def sound(self) -> bool:
        """Whether it may be reported: most pairs flip, by the whole interval and in both directions, and every control
        says that it is these heads that flip them."""
        low, directions = (self.real.interval() or [0.0])[0], self.real.directions() or [0.0]
        flips = bool(self.heads) and self.real.pairs >= ENOUGH_PAIRS and low >= 0.5 and min(directions) >= 0.5
        if not flips or self.controls is None or self.necessity is None:
            return False
        return (self.placebo.share or 0.0) <= MOST_PLACEBO and self.controls.passed and self.necessity.holds

    def to_json(self) -> dict[str, Any]:
        return {
            "contrast": self.contrast,
            "heads": [str(head) for head in self.heads],
            "flips": self.real.to_json(),
            "interval": self.real.interval(),
            "by_direction": self.real.directions(),
            "pairs": self.real.pairs,
            "placebo": self.placebo.to_json(),
            "random_heads": None if self.controls is None else self.controls.all_heads.mean,
            "controls": None if self.controls is None else self.controls.to_json(),
            "necessary": None if self.necessity is None else self.necessity.to_json(),
            "sound": self.sound,
            "named": [str(head) for head in self.named],
            "flips_by_named": self.by_named.to_json(),
        }

    def finding(self) -> str:
        assert self.necessity is not None
        kind, column, *swap = self.contrast.split()
        what = {
            "operand": f"the digits of column {column}",
            "carry": f"the carry into column {column}",
            "propagated": f"a carry that column {int(column) - 1} passes on to column {column}",
            "written": f"the carry into column {column} that column {column} passes on",
        }.get(kind)
        where, heads = f"answer {'digit' if what else 'token'} {column}", " and ".join(map(str, self.heads))
        only = {"source": " with only the source swapped", "prefix": " with only the written digits swapped"}
        placebo = f"placebo pairs {self.placebo}" if self.placebo.pairs else "no placebo"
        fewest = max(lost.left for lost in self.necessity.one_left_out.values())
        return (
            f"For {what or self.contrast} to reach {where}{only.get(''.join(swap), '')}, {heads} "
            f"suffice{'' if self.heads[1:] else 's'}: patching flips the answer in {self.real.share:.1%} of "
            f"{self.real.pairs} pairs, both ways ({placebo}; {self.controls}); without any one of them at most "
            f"{fewest:.1%}, with all other heads patched {self.necessity.all_others.left:.1%} (all heads: "
            f"{self.necessity.all_heads:.1%})."
        )


def grow_set(pairs: Pairs, heads: Sequence[Head]) -> Heads:
    """Grows a set of heads that flips most pairs: by one head at a time, or by two where no single one adds any."""
    chosen: Heads = ()
    known, share = int(pairs.known.sum()), 0.0
    able = [head for head in heads if any(pairs.can(Patch(frozenset({head}))))]
    if not able or float(pairs([Patch(frozenset(able))]).flipped.sum()) < PAIR_ADDS * known:  # not even all together
        return ()
    while known and share < ENOUGH and len(chosen) < MOST:
        ranked = _rank_additions(pairs, chosen, [(head,) for head in able if head not in chosen])
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


def measure_set(
    subject: Subject, both: Sequence[Contrast], chosen: Heads, named: Heads, sets: int, seed: str
) -> SufficientSet:
    """Tests a set on the pairs of a contrast, the first of `both`, and on its placebo, the second, if there is one."""
    pairs = Pairs(subject, both)
    wanted = [some for some in (chosen, named) if some]
    counts = count_flips(pairs, [Patch(frozenset(some)) for some in wanted]) if wanted else None
    known = [int((pairs.known & (pairs.contrast == n)).sum()) // 2 for n in range(len(both))]

    def flips(some: Heads, contrast: int) -> Flips:
        if contrast >= len(both):
            return NO_FLIPS
        return counts.total(wanted.index(some), contrast) if some and counts else Flips(0, known[contrast])

    controls, necessity = None, None
    if chosen and known[0]:
        rows = pairs.known[: len(both[0].clean)].nonzero()[:CONTROLLED, 0]
        some = replace(both[0], clean=both[0].clean[rows], other=both[0].other[rows])
        controls = _measure_controls(subject, some, chosen, sets, random.Random(seed))
        necessity = _measure_necessity(Pairs(subject, both[:1]), chosen, subject.heads)
    name, by_named = both[0].name, flips(named, 0)
    return SufficientSet(name, chosen, flips(chosen, 0), flips(chosen, 1), named, by_named, controls, necessity)


def draw_sets(
    pools: Sequence[tuple[Heads, int]], chosen: Heads, most: int, chance: random.Random
) -> list[frozenset[Head]]:
    """Draws distinct sets with so many heads from each pool, never the chosen set; all of them if there are few."""
    taken = frozenset(chosen)
    if prod(comb(len(pool), count) for pool, count in pools) - 1 <= most:
        every = product(*(combinations(pool, count) for pool, count in pools))
        return [some for each in every if (some := frozenset(chain(*each))) != taken]
    found: dict[frozenset[Head], None] = {}
    while len(found) < most:
        some = frozenset(chain(*(chance.sample(pool, count) for pool, count in pools)))
        if some != taken:
            found[some] = None
    return list(found)


def _measure_controls(
    subject: Subject, contrast: Contrast, chosen: Heads, most: int, chance: random.Random
) -> Controls:
    """Measures random sets from all heads, and from the same sites."""
    pairs = Pairs(subject, [contrast])
    at_each = Counter(head.site for head in chosen)
    by_site = [(tuple(head for head in subject.heads if head.site == site), count) for site, count in at_each.items()]
    drawn = [draw_sets(pools, chosen, most, chance) for pools in ([(tuple(subject.heads), len(chosen))], by_site)]
    sets = list(dict.fromkeys([frozenset(chosen), *chain(*drawn)]))
    by_pair = _flips_by_pair(pairs, [Patch(each) for each in sets])  # set pair
    shares = dict(zip(sets, by_pair.mean(1).tolist(), strict=True))
    apart = [number for number, each in enumerate(sets) if not each & set(chosen)]
    complete = len(drawn[0]) < most  # all sets there are
    interval = _interval_of_mean(by_pair[apart], complete) if apart else None
    every, same = (_summarise(each, shares, chosen) for each in drawn)
    without = _summarise([sets[number] for number in apart], shares, chosen)
    return Controls(by_pair.shape[1], shares[frozenset(chosen)], every, same, without, interval)


def _summarise(sets: Sequence[frozenset[Head]], shares: dict[frozenset[Head], float], chosen: Heads) -> RandomSets:
    if not sets:
        return RandomSets(0)
    values = torch.tensor([shares[each] for each in sets], dtype=torch.double)
    overlap = sum(len(each & set(chosen)) for each in sets) / len(sets)
    percentile = float(
        values.quantile(0.95, interpolation="higher")
    )  # between two of them, a set that flips all is beaten
    return RandomSets(len(sets), float(values.mean()), percentile, overlap)


def _interval_of_mean(by_pair: Tensor, complete: bool) -> Interval:
    """Returns the 95% interval of the mean share of sets, of which these are a sample unless `complete`, over pairs,
    which always are one; never narrower than pairs without a single flip allow."""
    sets, pairs = by_pair.shape
    of_pairs = float(by_pair.mean(0).var()) / pairs if pairs > 1 else 0.25
    of_sets = 0.0 if complete else float(by_pair.mean(1).var()) / sets if sets > 1 else 0.25
    mean, half = float(by_pair.mean()), Z * sqrt(of_pairs + of_sets)
    return Interval(max(0.0, mean - half), min(1.0, max(mean + half, wilson(0, pairs).high)))


def _measure_necessity(pairs: Pairs, chosen: Heads, heads: Sequence[Head]) -> Necessity:
    every, own = frozenset(heads), frozenset(chosen)
    patches = [Patch(own), Patch(every), Patch(every - own, held=own)] + [Patch(own - {head}) for head in chosen]
    whole, everything, others, *fewer = _flips_by_pair(pairs, patches)
    without = {str(head): _compare(whole, left) for head, left in zip(chosen, fewer, strict=True)}
    return Necessity(without, float(everything.mean()), _compare(everything, others))


def _compare(before: Tensor, after: Tensor) -> Lost:
    lost, gained = int((after < before).sum()), int((after > before).sum())
    return Lost(float(after.mean()), tango(lost, gained, len(before)))


def _flips_by_pair(pairs: Pairs, patches: Sequence[Patch]) -> Tensor:
    """Returns, for each patch and each pair of one contrast that the model has right, the share of its two directions
    that flip."""
    known = pairs.known.view(2, -1)[0]  # the same in both directions
    return pairs(patches).flipped.double().view(len(patches), 2, -1).mean(1)[:, known]
