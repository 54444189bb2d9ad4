"""Assigns a window to every unit of a cache: the widest that the cache has room for, or the least that costs nothing.

What a unit costs when it alone is narrowed does not say what several cost, so assignments are scored together. A greedy
search narrows one unit by one size after the other, always the one that costs least for the memory it saves, given all
narrowed before; where there are few assignments, all are measured. An assignment is chosen on some problems and
reported on others. The units of a cache are key-value groups, or heads where none share keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypedDict

from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.heads.ablation import DOUBT, Effect, Judge, measure
from headway.heads.question import Margin, WindowSize
from headway.heads.sets import last_confirmed
from headway.heads.together import Curve
from headway.heads.units import Unit, heads_in
from headway.heads.variants import Variants
from headway.models.sites import Closed, NarrowedHead
from headway.progress import SILENT, Watch
from headway.tasks import Problems
from headway.windows.budget import Budget

MOST_LISTED, LISTED_ON = 1_024, 300
"""assignments that are all measured; problems that they are measured on"""
ROUNDS, MANY = 12, 48
"""above this many units, a twelfth of the narrowings that are left are made at a time"""
Levels = tuple[int, ...]
"""how far each unit is narrowed: 0 not at all, then by one size after the other"""


@dataclass(frozen=True)
class CacheUnits:
    """The units of a cache, the sizes they can be narrowed to, the widest first, and the length of the text."""

    units: tuple[Unit, ...]
    sizes: tuple[WindowSize, ...]
    length: int

    @property
    def start(self) -> Levels:
        return (0,) * len(self.units)

    @property
    def narrowest(self) -> Levels:
        return (len(self.sizes),) * len(self.units)

    @property
    def count(self) -> int:
        """The number of all assignments."""
        return (len(self.sizes) + 1) ** len(self.units)

    def kept(self, level: int) -> int:
        """Counts the tokens that a unit keeps."""
        return self.length if level == 0 else self.sizes[level - 1].sink + self.sizes[level - 1].recent

    def share(self, levels: Levels) -> float:
        """Returns the share of the whole cache that an assignment needs."""
        return sum(map(self.kept, levels)) / (len(self.units) * self.length)

    def closed(self, levels: Levels) -> Closed:
        """Returns the assignment as a variant; a unit that was narrowed twice has both sizes, and the least holds."""
        return frozenset(
            NarrowedHead(head, self.sizes[step].recent)
            for unit, level in zip(self.units, levels, strict=True)
            for step in range(level)
            for head in heads_in(unit)
        )

    def levels(self, closed: Closed) -> Levels:
        """Returns the assignment that a variant stands for."""
        return tuple(
            sum(NarrowedHead(min(heads_in(unit)), size.recent) in closed for size in self.sizes) for unit in self.units
        )

    def budget(self, levels: Levels) -> Budget:
        """Returns an assignment as plain data."""
        windows: dict[str, tuple[int | None, ...]] = {}
        for unit, level in zip(self.units, levels, strict=True):
            own = None if level == 0 else self.sizes[level - 1].recent
            windows[str(unit.site)] = (*windows.get(str(unit.site), ()), own)
        return Budget(self.sizes[0].sink, windows)


def cache_units(units: Sequence[Unit], sizes: Sequence[WindowSize], length: int) -> CacheUnits | None:
    """Returns the units that have a cache, with the sizes that save any of it; None where there are none. An encoder
    needs no cache."""
    cached = tuple(unit for unit in units if unit.site.stack != "encoder")
    smaller = tuple(size for size in reversed(sizes) if size.sink + size.recent < length)
    return CacheUnits(cached, smaller, length) if cached and smaller else None


def narrow_greedily(variants: Variants, cache: CacheUnits, problems: Problems, watch: Watch = SILENT) -> Curve:
    """Narrows one unit by one size after the other, always the one that costs least for each token it saves."""
    levels, (point,) = cache.start, variants(problems, [frozenset()]).points
    sets, points, searched = [cache.closed(levels)], [point], 1
    while moves := _moves(cache, levels):
        base = cache.closed(levels)
        found = variants(problems, [cache.closed(move) for move in moves], base).points
        searched += len(moves)
        ranked = sorted(zip(moves, found, strict=True), key=lambda each: _price(cache, levels, each[0], point, each[1]))
        at_once = max(1, len(moves) // ROUNDS) if len(cache.units) > MANY else 1
        levels, point = _join([move for move, _ in ranked[:at_once]]), ranked[0][1]
        if at_once > 1:
            (point,) = variants(problems, [cache.closed(levels)], base).points
            searched += 1
        sets.append(cache.closed(levels))
        points.append(point)
        watch(sum(levels), sum(cache.narrowest))
    accuracy, losses = zip(*points, strict=True)
    return Curve("greedy windows", tuple(sets), accuracy, losses, searched, len(problems))


def _moves(cache: CacheUnits, levels: Levels) -> list[Levels]:
    return [
        (*levels[:place], level + 1, *levels[place + 1 :])
        for place, level in enumerate(levels)
        if level < len(cache.sizes)
    ]


def _join(moves: Sequence[Levels]) -> Levels:
    return tuple(map(max, zip(*moves, strict=True)))


def _price(
    cache: CacheUnits, levels: Levels, move: Levels, before: tuple[float, float], after: tuple[float, float]
) -> tuple[float, float]:
    """Returns what a narrowing costs for each token it saves, in accuracy and then in loss."""
    saved = sum(map(cache.kept, levels)) - sum(map(cache.kept, move))
    return max(before[0] - after[0], 0.0) / saved, (after[1] - before[1]) / saved


def measure_all(variants: Variants, cache: CacheUnits, problems: Problems) -> dict[Levels, tuple[float, float]]:
    """Measures the accuracy and the loss of every assignment; those that differ at the last site only share the pass up
    to it."""
    last = sum(unit.site == cache.units[-1].site for unit in cache.units)
    steps, found = range(len(cache.sizes) + 1), dict[Levels, tuple[float, float]]()
    for early in product(steps, repeat=len(cache.units) - last):
        some = [(*early, *late) for late in product(steps, repeat=last)]
        base = cache.closed((*early, *(0,) * last))
        found |= zip(some, variants(problems, [cache.closed(levels) for levels in some], base).points, strict=True)
    return found


def _smallest_within(points: Mapping[Levels, tuple[float, float]], cache: CacheUnits, margin: Margin) -> Levels | None:
    """Returns the assignment within the margin that needs the smallest cache; of several the one that loses least."""
    if not points:
        return None
    whole, loss = points[cache.start]
    fitting = [
        levels
        for levels, (right, own) in points.items()
        if levels != cache.start and margin.allows(whole - right, own - loss, loss)
    ]
    return min(fitting, key=lambda levels: (cache.share(levels), points[levels][1]), default=None)


class AssignmentJson(TypedDict):
    cache_share: float
    accuracy: float
    interval: list[float]
    drop: float
    loss_increase: float
    budget: dict[str, str | int | dict[str, list[int | None]]]  # fmt: skip


class StepJson(TypedDict):
    cache_share: float
    accuracy: float
    loss: float


class PlanJson(TypedDict):
    asked: float | None
    length: int
    listed: int
    chosen: AssignmentJson
    alone: AssignmentJson
    greedy: AssignmentJson
    exact: AssignmentJson | None
    curve: list[StepJson]  # fmt: skip


@dataclass(frozen=True)
class Assignment:
    """Windows for all units, and what they cost together on problems that they were not chosen on."""

    budget: Budget
    share: float
    """of the whole cache"""
    effect: Effect

    def to_json(self) -> AssignmentJson:
        ends = wilson(self.effect.right, self.effect.examples)
        return {
            "cache_share": self.share,
            "accuracy": self.effect.accuracy,
            "interval": ends.to_json(),
            "drop": self.effect.drop,
            "loss_increase": self.effect.loss_increase,
            "budget": self.budget.to_json(),
        }


@dataclass(frozen=True)
class WindowPlan:
    """The windows that a study ends with."""

    chosen: Assignment
    alone: Assignment
    """each unit at the least window that costs nothing while all others see everything"""
    greedy: Assignment
    exact: Assignment | None
    """the best of all assignments; None where they were not all measured, or other problems do not confirm it"""
    asked: float | None
    """the share of the cache that was asked for; None for the least that costs nothing"""
    length: int
    names: tuple[str, ...]
    """of the units, in the order of the budgets"""
    listed: int
    """the number of assignments that were all measured; 0 where they were not"""
    curve: tuple[tuple[float, float, float], ...]
    """share of the cache, accuracy and loss at each step of the greedy search, on the problems it selects on"""

    def to_json(self) -> PlanJson:
        return {
            "asked": self.asked,
            "length": self.length,
            "listed": self.listed,
            "chosen": self.chosen.to_json(),
            "alone": self.alone.to_json(),
            "greedy": self.greedy.to_json(),
            "exact": None if self.exact is None else self.exact.to_json(),
            "curve": [{"cache_share": at, "accuracy": right, "loss": loss} for at, right, loss in self.curve],
        }


@dataclass(frozen=True)
class PlanProblems:
    """The problems that windows are chosen on, confirmed on and reported on."""

    select: Problems
    confirm: Problems
    report: Problems


def plan_windows(
    variants: Variants,
    cache: CacheUnits,
    problems: PlanProblems,
    judge: Judge,
    least: dict[Unit, int | None],
    asked: float | None = None,
    watch: Watch = SILENT,
) -> WindowPlan:
    """Finds the windows of all units: those that lose least where the cache may have the share `asked`, or the smallest
    cache within the margin that other problems confirm. `least` is the least window of each unit alone."""
    if asked is not None and cache.share(cache.narrowest) > asked:
        raise HeadwayError(
            f"the smallest windows, {cache.sizes[-1].words}, take {cache.share(cache.narrowest):.0%} of a cache of "
            f"{cache.length:,} tokens, more than {asked:.0%}; give a smaller `recent`, or a larger `cache`"
        )
    curve = narrow_greedily(variants, cache, problems.select, watch)
    steps = [cache.levels(closed) for closed in curve.sets]
    exact, listed = None, cache.count if cache.count <= MOST_LISTED else 0
    points = measure_all(variants, cache, problems.select[:LISTED_ON]) if listed else {}
    if asked is None:
        doubt = DOUBT / (2 if listed else 1)  # two sets are offered to be confirmed
        offers = curve.sets_to_confirm(judge.margin)
        smallest = _smallest_within(points, cache, judge.margin)
        sets = [*offers, *([] if smallest is None else [cache.closed(smallest)])]
        effects = measure(variants, [problems.confirm], sets)[1:] if sets else []
        greedy = cache.levels(last_confirmed(effects[: len(offers)], judge, doubt))
        if smallest is not None and judge.confirms(effects[-1], doubt):
            exact = smallest
    else:
        greedy = next(levels for levels in steps if cache.share(levels) <= asked)
        fitting = {levels: point for levels, point in points.items() if cache.share(levels) <= asked}
        exact = max(fitting, key=lambda levels: (fitting[levels][0], -fitting[levels][1])) if fitting else None
    recents = [None, *(size.recent for size in cache.sizes)]
    alone = tuple(recents.index(least[unit]) if least[unit] in recents else 0 for unit in cache.units)
    sets = [greedy, alone, *([] if exact is None else [exact])]
    effects = measure(variants, [problems.report], [cache.closed(levels) for levels in sets])[1:]
    made = [
        Assignment(cache.budget(levels), cache.share(levels), effect)
        for levels, effect in zip(sets, effects, strict=True)
    ]
    taken = zip(map(cache.share, steps), curve.accuracy, curve.loss, strict=True)
    best = made[2] if exact is not None and (asked is not None or made[2].share < made[0].share) else made[0]
    last, names = made[2] if exact is not None else None, tuple(map(str, cache.units))
    return WindowPlan(best, made[1], made[0], last, asked, cache.length, names, listed, tuple(taken))
