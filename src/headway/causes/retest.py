"""Test and retest: what remains of the differences between runs when the pairs of the causal tests are drawn anew.

Each run has a profile on every one of several independent draws. Agreement says how often a cell (a site and a
contrast) stays on its side of one half; Cohen's kappa corrects that for chance, and the intraclass correlation is
the part of the variance of a share that is due to the run. The distance of two profiles is the root mean square
difference of their shares. If all runs were the same, the draws of all runs would be exchangeable: a permutation test
compares the distances between draws of one run with those after the draws are shuffled among the runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray

from headway.causes.profiles import Profile, State, pool

HALF, CONFIDENCE, PERMUTED, RESAMPLED = 0.5, 0.95, 999, 400
Floats = NDArray[numpy.float64]


@dataclass(frozen=True)
class Cell:
    """How well one site and contrast agrees between draws of the same run."""

    site: str
    contrast: str
    agreement: float
    """the share of pairs of draws in which both shares lie on the same side of one half, the mean over the runs"""
    chance: float
    kappa: float | None
    """None where all shares lie on one side, and for a single run: there is nothing to agree about"""
    intraclass: float | None


@dataclass(frozen=True)
class Agreement:
    """How well the draws of one run agree, over all sites and contrasts that can flip."""

    draws: int
    pairs: int
    """of each contrast, in each draw"""
    same_signature: float
    """the share of pairs of draws of one run that give the same signature"""
    runs_with_one_signature: int
    agreement: float
    chance: float
    kappa: float | None
    unclear: float
    """the share of sites and contrasts whose interval over all draws contains one half"""
    cells: list[Cell]


@dataclass(frozen=True)
class Distance:
    """A median over runs, or over pairs of runs, with its bootstrap interval over the runs."""

    median: float
    interval: tuple[float, float] | None

    def to_json(self) -> dict[str, float | list[float] | None]:
        return {"median": self.median, "interval": None if self.interval is None else list(self.interval)}


@dataclass(frozen=True)
class Distances:
    redraws: Distance
    """between two draws of one run"""
    runs: Distance | None
    """between draws of two runs; None where there is only one run"""
    ratio: Distance | None
    p: float | None
    """the chance that shuffled draws lie as close together as those of one run do"""

    @property
    def beyond_redraws(self) -> bool:
        """Whether runs lie further apart than draws of the same run."""
        return self.p is not None and self.p <= 1 - CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        return {
            "redraws": self.redraws.to_json(),
            "runs": None if self.runs is None else self.runs.to_json(),
            "ratio": None if self.ratio is None else self.ratio.to_json(),
            "p": self.p,
            "beyond_redraws": self.beyond_redraws,
        }


class Retest:
    """The profiles of several runs, each on as many draws."""

    def __init__(self, runs: Sequence[Sequence[Profile]]) -> None:
        """There is at least one run, with at least two draws."""
        self.runs, first = runs, runs[0][0].counts
        self.pooled = [pool(draws) for draws in runs]
        every = [(site, name) for site, row in first.items() for name in row]
        self.cells = [
            (site, name)
            for site, name in every
            if all(draw.counts[site][name].share is not None for draws in runs for draw in draws)
        ]
        """the sites and contrasts that can flip"""

    @cached_property
    def shares(self) -> Floats:
        """The shares of flips by run, draw and cell."""
        return numpy.array([[self._row(draw) for draw in draws] for draws in self.runs])

    def _row(self, profile: Profile) -> list[float]:
        return [profile.counts[site][name].share or 0.0 for site, name in self.cells]

    @cached_property
    def means(self) -> Floats:
        """The shares of flips by run and cell, over all draws."""
        return numpy.array([self._row(each) for each in self.pooled])

    def cell_agreement(self) -> list[Cell]:
        """Returns the agreement of every cell between draws."""
        above, draws = self.shares >= HALF, self.shares.shape[1]
        count = above.sum(1)  # run cell
        same = (count * (count - 1) + (draws - count) * (draws - count - 1)) / (draws * (draws - 1))
        rate, agreement = above.mean((0, 1)), same.mean(0)
        chance = rate**2 + (1 - rate) ** 2
        found = []
        for place, (site, name) in enumerate(self.cells):
            kappa = self._kappa(float(agreement[place]), float(chance[place]))
            correlation = _intraclass(self.shares[:, :, place])
            found.append(Cell(site, name, float(agreement[place]), float(chance[place]), kappa, correlation))
        return found

    @cached_property
    def agreement(self) -> Agreement:
        """How well all of them agree."""
        cells, words = self.cell_agreement(), [[draw.signature() for draw in draws] for draws in self.runs]
        pairs = [[a == b for n, a in enumerate(own) for b in own[n + 1 :]] for own in words]
        mean, chance = (float(numpy.mean([getattr(cell, name) for cell in cells])) for name in ("agreement", "chance"))
        return Agreement(
            draws=len(self.runs[0]),
            pairs=max(flips.pairs for row in self.runs[0][0].counts.values() for flips in row.values()),
            same_signature=float(numpy.mean(pairs)),
            runs_with_one_signature=sum(len(set(own)) == 1 for own in words),
            agreement=mean,
            chance=chance,
            kappa=self._kappa(mean, chance),
            unclear=float((self.states == 0).mean()),
            cells=cells,
        )

    def _kappa(self, agreement: float, chance: float) -> float | None:
        return None if chance == 1 or len(self.runs) == 1 else (agreement - chance) / (1 - chance)

    @cached_property
    def distances(self) -> Distances:
        """Compares the distances between runs with those between draws of one run."""
        runs, draws, _ = self.shares.shape
        table = _distances(self.shares.reshape(runs * draws, -1)).reshape(runs, draws, runs, draws)
        mean = table.mean((1, 3))  # run run; on the diagonal draws are also compared with themselves
        inside = mean.diagonal() * draws / (draws - 1)
        if runs == 1:
            return Distances(Distance(float(inside[0]), None), None, None, None)
        outside = mean[numpy.triu_indices(runs, 1)]
        chance, resampled = numpy.random.default_rng(0), []
        for _ in range(RESAMPLED if runs > 2 else 0):
            some = chance.integers(runs, size=runs)
            apart = mean[numpy.ix_(some, some)][some[:, None] < some]
            if len(apart):
                resampled.append((numpy.median(inside[some]), numpy.median(apart)))
        one, two = float(numpy.median(inside)), float(numpy.median(outside))
        both = numpy.array(resampled).reshape(-1, 2)
        ratio = Distance(two / one, _interval(both[:, 1] / numpy.maximum(both[:, 0], 1e-12))) if one else None
        p = _permute(table.reshape(runs * draws, -1), runs)
        return Distances(Distance(one, _interval(both[:, 0])), Distance(two, _interval(both[:, 1])), ratio, p)

    @cached_property
    def states(self) -> NDArray[numpy.int64]:
        """Returns, by run and cell, 1 where the site clearly flips more than half of the pairs, -1 where it clearly
        flips fewer, and 0 where its interval contains one half; all intervals hold at once with 95% confidence."""
        from scipy.stats import binom

        pairs = numpy.array([[each.counts[site][name].pairs for site, name in self.cells] for each in self.pooled])
        flips = numpy.rint(self.means * pairs)  # a pair counts once: its two directions are not independent
        level = (1 - CONFIDENCE) / 2 / max(1, flips.size)
        above, below = binom.sf(flips - 1, pairs, HALF) < level, binom.cdf(flips, pairs, HALF) < level
        return above.astype(int) - below.astype(int)

    def clear_signatures(self) -> list[str]:
        """Returns the signature of every run, with what is unclear marked as such."""
        words: dict[int, State] = {1: "carries", -1: "does not carry", 0: "unclear"}
        return [
            each.clear_signature({cell: words[int(state)] for cell, state in zip(self.cells, row, strict=True)})
            for each, row in zip(self.pooled, self.states, strict=True)
        ]

    def distinguishable(self) -> int:
        """Returns how many runs were found of which any two differ clearly in some cell: there are at least as many
        signatures."""
        states = self.states
        up, down = (states == 1).astype(int), (states == -1).astype(int)
        differ = (up @ down.T + down @ up.T) > 0
        best = 1
        for start in range(len(differ)):
            chosen, left = 1, differ[start].copy()
            while left.any():
                degree = numpy.where(left, (differ & left).sum(1), -1)
                chosen, left = chosen + 1, left & differ[int(degree.argmax())]
            best = max(best, chosen)
        return best


def _distances(rows: Floats) -> Floats:
    """Returns the root mean square difference of every two rows."""
    from scipy.spatial.distance import cdist

    return cdist(rows, rows) / numpy.sqrt(rows.shape[1])


def _intraclass(shares: Floats) -> float | None:
    """Returns the one-way intraclass correlation of shares by run and draw; None where nothing varies."""
    runs, draws = shares.shape
    if runs < 2:
        return None
    between, within = draws * shares.mean(1).var(ddof=1), shares.var(axis=1, ddof=1).mean()
    total = between + (draws - 1) * within
    return float((between - within) / total) if total > 0 else None


def _interval(values: Floats) -> tuple[float, float] | None:
    if not len(values):
        return None
    low, high = numpy.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _permute(table: Floats, runs: int) -> float:
    """Returns the share of shuffles of all draws among the runs that have draws of one run as close as measured."""
    draws, chance = len(table) // runs, numpy.random.default_rng(0)
    one, two = numpy.triu_indices(draws, 1)

    def inside(order: NDArray[numpy.int64]) -> float:
        own = order.reshape(runs, draws)
        return float(table[own[:, one], own[:, two]].mean())

    measured = inside(numpy.arange(len(table))) + 1e-12
    lower = sum(inside(chance.permutation(len(table))) <= measured for _ in range(PERMUTED))
    return (1 + lower) / (1 + PERMUTED)
