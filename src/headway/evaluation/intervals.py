"""Confidence intervals for shares measured on a sample. No torch; scipy is imported only where needed."""

import math
from dataclasses import dataclass

from headway.errors import HeadwayError

Z = 1.959963984540054  # 95% of a normal distribution lies within this many standard errors


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def to_json(self) -> list[float]:
        return [self.low, self.high]


def wilson(right: int | float, examples: int | float) -> Interval:
    """Returns Wilson's 95% score interval for a share of right answers."""
    if examples < 1:
        raise HeadwayError(f"an interval needs at least 1 example; there are {examples}")
    share, scale = right / examples, 2 * (examples + Z**2)
    centre = (2 * examples * share + Z**2) / scale
    half = Z / scale * math.sqrt(4 * examples * share * (1 - share) + Z**2)
    return Interval(centre - half if right else 0.0, centre + half if right < examples else 1.0)


def exact_interval(count: int, examples: int, confidence: float = 0.95) -> Interval:
    """Returns Clopper and Pearson's interval for a share, which holds at any level and for any number of examples."""
    from scipy.stats import binomtest

    if examples < 1:
        return Interval(0.0, 1.0)
    interval = binomtest(count, examples).proportion_ci(confidence, method="exact")
    return Interval(float(interval.low), float(interval.high))


def tango(lost: int, gained: int, examples: int, confidence: float = 0.95) -> Interval:
    """Returns Tango's score interval (1998) for a drop measured on the same problems before and after a change.

    `lost` problems were right before and wrong after, `gained` the other way round. Where no verdict changed the
    interval is not [0, 0]: a change that rare may simply not have shown.
    """
    from scipy.optimize import root_scalar

    if examples < 1 or lost + gained > examples:
        raise HeadwayError(f"{lost} lost and {gained} gained of {examples} examples give no interval")
    z, drop, edge = _quantile(confidence), (lost - gained) / examples, 1 - 1e-12

    def score(supposed: float) -> float:
        """Returns how many standard errors the measured drop lies above a supposed one."""
        b = -lost - gained + (2 * examples - lost + gained) * supposed
        c = -gained * supposed * (1 - supposed)
        rare = (math.sqrt(max(b * b - 8 * examples * c, 0.0)) - b) / (4 * examples)
        spread = examples * (2 * rare + supposed * (1 - supposed))
        distance = lost - gained - examples * supposed
        return distance / math.sqrt(spread) if spread > 0 else math.copysign(math.inf, distance) if distance else 0.0

    def crossing(level: float, start: float, stop: float) -> float:
        return float(root_scalar(lambda d: score(d) - level, bracket=(start, stop), xtol=1e-10).root)

    low = -1.0 if score(-edge) <= z else crossing(z, -edge, drop)
    high = 1.0 if score(edge) >= -z else crossing(-z, drop, edge)
    return Interval(low, high)


def needed_examples(margin: float, confidence: float) -> int:
    """Returns how many examples without a single change rule out a drop of `margin`."""
    z = _quantile(confidence)
    return math.ceil(z * z * (1 - margin) / margin)


def _quantile(confidence: float) -> float:
    """Returns how many standard errors on either side hold a normal number with this confidence."""
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))
