"""The spread of a metric over several runs: its median, its range, and an interval for its mean."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from headway.compare.describe import Row
from headway.evaluation.intervals import wilson
from headway.output import format_value
from headway.runs.metrics import find_run_metric, is_reach

Number = int | float


@dataclass(frozen=True)
class Spread:
    """One metric over the complete runs of a group."""

    n: int
    missing: int  # complete runs without it
    unlearned: int  # those of them that did not learn in range, and so have no reach
    median: Number | None = None
    mean: Number | None = None
    best: Number | None = None
    worst: Number | None = None  # None where a run did not learn
    least: Number | None = None
    most: Number | None = None
    interval: list[float] | None = None
    """95% interval of the mean: Student's t over the runs; for a boolean, Wilson's of the share of runs. None for one
    seed, and where all runs agree"""

    @property
    def summary(self) -> str | None:
        """The median and the range."""
        if self.n < 2 or self.least == self.most:
            return None if self.median is None else format_value(self.median)
        return f"{format_value(self.median)} ({format_value(self.least)} to {format_value(self.most)})"


def measure_spread(metric: str, runs: Sequence[Row]) -> Spread:
    """Measures how a metric spreads over these complete runs."""
    known = [value for row in runs if isinstance(value := row.get(metric), int | float)]
    without = [row for row in runs if metric not in row]
    unlearned = sum(row.get("converged") is False for row in without) if is_reach(metric) else 0
    if not known:
        return Spread(0, len(runs), unlearned)
    n, truths = len(known), all(isinstance(value, bool) for value in known)
    values = [float(value) if truths else value for value in known]
    # a mean of two lengths would be a length that was not tested
    median = statistics.median_low(values) if is_reach(metric) else statistics.median(values)
    mean, least, most = statistics.fmean(values), min(values), max(values)
    best, worst = (least, most) if find_run_metric(metric).lower_is_better else (most, least)
    worst = None if unlearned else worst
    interval = None
    if len({row.get("seed") for row in runs if metric in row}) > 1:
        interval = wilson(sum(map(bool, known)), n).to_json() if truths else _mean_interval(metric, values)
    return Spread(n, len(runs) - n, unlearned, median, mean, best, worst, least, most, interval)


def _mean_interval(metric: str, values: Sequence[Number]) -> list[float] | None:
    if min(values) == max(values):
        return None
    from scipy.special import stdtrit

    n = len(values)
    half = float(stdtrit(n - 1, (1 + 0.95) / 2)) * statistics.stdev(values) / math.sqrt(n)
    low, high = statistics.fmean(values) - half, statistics.fmean(values) + half
    return [max(0.0, low), min(1.0, high)] if find_run_metric(metric).is_share else [low, high]
