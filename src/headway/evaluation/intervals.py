"""Intervals: how far a share measured on a sample may lie from the true one."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import HeadwayError


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def to_json(self) -> list[float]:
        return [self.low, self.high]


def wilson(right: int, examples: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a share of right answers."""
    from scipy.stats import binomtest

    if examples < 1:
        raise HeadwayError(f"{examples} examples give no interval; take at least 1")
    interval = binomtest(right, examples).proportion_ci(confidence, method="wilson")
    return Interval(float(interval.low), float(interval.high))
