"""What a number does over several runs: the middle, the ends, and how far the mean may lie from the true one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headway.compare.describing import Row, Value

Number = int | float
CONFIDENCE = 0.95
LOWER_IS_BETTER = ("final_loss", "errors", "seconds", "steps", "parameters")
SHARES = ("exact_match", "in_range", "together_accuracy", "baseline")
"""numbers between 0 and 1"""


@dataclass(frozen=True)
class Spread:
    """One metric over the complete runs of a group."""

    n: int
    missing: int
    """complete runs that do not have it"""
    unlearned: int
    """of those, runs that did not learn in range, of whose reach nothing can be said"""
    median: Number | None
    mean: Number | None
    best: Number | None
    worst: Number | None
    """None where a run did not learn"""
    least: Number | None
    most: Number | None
    interval: tuple[float, float] | None
    """of the mean, 95%: Student's t over the runs; of a truth value Wilson's, of the share of runs. None for one seed,
    and where all runs say the same"""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "interval": None if self.interval is None else list(self.interval)}

    def told(self) -> str | None:
        """The median, and from where to where."""
        if self.n < 2 or self.least == self.most:
            return None if self.median is None else spoken(self.median)
        return f"{spoken(self.median)} ({spoken(self.least)} to {spoken(self.most)})"


def is_reach(metric: str) -> bool:
    return metric == "reach" or metric.startswith("reach.")


def spread(metric: str, runs: Sequence[Row]) -> Spread:
    """Of these complete runs."""
    known = [value for row in runs if isinstance(value := row.get(metric), int | float)]
    without = [row for row in runs if metric not in row]
    unlearned = sum(row.get("converged") is False for row in without) if is_reach(metric) else 0
    if not known:
        return Spread(0, len(runs), unlearned, None, None, None, None, None, None, None)
    truths = all(isinstance(value, bool) for value in known)
    values = [float(value) if truths else value for value in known]
    # between two lengths lies one that nobody tested
    median = statistics.median_low(values) if is_reach(metric) else statistics.median(values)
    least, most = min(values), max(values)
    best, worst = (least, most) if metric in LOWER_IS_BETTER else (most, least)
    seeds = len({row.get("seed") for row in runs if metric in row})
    return Spread(
        n=len(values),
        missing=len(runs) - len(values),
        unlearned=unlearned,
        median=median,
        mean=statistics.fmean(values),
        best=best,
        worst=None if unlearned else worst,
        least=least,
        most=most,
        interval=None if seeds < 2 else wilson(sum(values), len(values)) if truths else _of_mean(metric, values),
    )


def _of_mean(metric: str, values: Sequence[Number]) -> tuple[float, float] | None:
    if min(values) == max(values):
        return None
    from scipy.special import stdtrit

    n = len(values)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / math.sqrt(n)
    low, high = statistics.fmean(values) - half, statistics.fmean(values) + half
    return (max(0.0, low), min(1.0, high)) if metric in SHARES else (low, high)


def wilson(right: Number, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def spoken(value: Value | None) -> str:
    """As a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4f}" if 0.001 <= abs(value) < 1 else f"{value:.4g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else repr(value) if value == "" else str(value)
