"""What a number does over several runs: the middle, the ends, and how far the mean may lie from the true one."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from headway.compare.describe import Row
from headway.evaluation.intervals import wilson
from headway.output import format_value
from headway.runs.metrics import is_reach, metric_of_runs

Number = int | float


@dataclass(frozen=True)
class Spread:
    """One metric over the complete runs of a group."""

    n: int
    missing: int  # complete runs that do not have it
    unlearned: int  # of those, runs that did not learn in range, of whose reach nothing can be said
    median: Number | None = None
    mean: Number | None = None
    best: Number | None = None
    worst: Number | None = None  # None where a run did not learn
    least: Number | None = None
    most: Number | None = None
    interval: list[float] | None = None
    """of the mean, 95%: Student's t over the runs; of a truth value Wilson's, of the share of runs. None for one seed,
    and where all runs say the same"""

    @property
    def summary(self) -> str | None:
        """The median, and from where to where."""
        if self.n < 2 or self.least == self.most:
            return None if self.median is None else format_value(self.median)
        return f"{format_value(self.median)} ({format_value(self.least)} to {format_value(self.most)})"


def spread(metric: str, runs: Sequence[Row]) -> Spread:
    """Measures how a metric spreads over these complete runs."""
    known = [value for row in runs if isinstance(value := row.get(metric), int | float)]
    without = [row for row in runs if metric not in row]
    unlearned = sum(row.get("converged") is False for row in without) if is_reach(metric) else 0
    if not known:
        return Spread(0, len(runs), unlearned)
    n, truths = len(known), all(isinstance(value, bool) for value in known)
    values = [float(value) if truths else value for value in known]
    # between two lengths lies one that nobody tested
    median = statistics.median_low(values) if is_reach(metric) else statistics.median(values)
    mean, least, most = statistics.fmean(values), min(values), max(values)
    best, worst = (least, most) if metric_of_runs(metric).lower_is_better else (most, least)
    worst = None if unlearned else worst
    interval = None
    if len({row.get("seed") for row in runs if metric in row}) > 1:
        interval = wilson(sum(map(bool, known)), n).to_json() if truths else _of_mean(metric, values)
    return Spread(n, len(runs) - n, unlearned, median, mean, best, worst, least, most, interval)


def _of_mean(metric: str, values: Sequence[Number]) -> list[float] | None:
    if min(values) == max(values):
        return None
    from scipy.special import stdtrit

    n = len(values)
    half = float(stdtrit(n - 1, (1 + 0.95) / 2)) * statistics.stdev(values) / math.sqrt(n)
    low, high = statistics.fmean(values) - half, statistics.fmean(values) + half
    return [max(0.0, low), min(1.0, high)] if metric_of_runs(metric).is_share else [low, high]
