"""Reads a curve of accuracy against length: where it holds, where it fails, and where too few problems were tested.

A point *holds* if its accuracy is shown to be at least 0.99, *fails* if it is shown to be below, and is *undecided*
otherwise. Its counts do not decide it where the model cannot run, or where a constant answer would hold as well. Both
verdicts are exact binomial tests. Their level is corrected over all points that a study tests, every length of
every curve: with 95% confidence, no point of the study is called holding or failing wrongly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

REACHED = 0.99
CONFIDENCE = 0.95  # of all verdicts of a study together
HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
TO_THE_END = "tested_to_the_end"
CANNOT_RUN, ONE_ANSWER = "cannot_run", "one_answer"
FAR = 12  # standard deviations below the mean beyond which a binomial tail is negligible


@dataclass(frozen=True)
class CurvePoint:
    """The errors of one model on one probe at one length."""

    probe: str
    length: int
    examples: int
    errors: int
    stopped_by: str | None = None
    """cannot_run; or one_answer, where a constant answer is right as often as counts here"""
    note: str = ""  # why, in words

    @property
    def accuracy(self) -> float:
        return 1 - self.errors / self.examples if self.examples else 0.0

    def judge(self, tests: int) -> str:
        """Decides this point as one of `tests`; a point that would hold proves nothing where a constant answer does."""
        if self.stopped_by == CANNOT_RUN:
            return CANNOT_RUN
        verdict = decide(self.examples, self.errors, tests)
        return self.stopped_by if self.stopped_by is not None and verdict == HOLDS else verdict


@dataclass(frozen=True)
class LengthCurve:
    """How far a model holds on one probe, and the first point where it does not."""

    reach: int  # 0 if it does not hold at the first length
    stopped_by: str  # fails, undecided, cannot_run, one_answer or tested_to_the_end
    stop: CurvePoint | None  # None where every point holds


def decide(examples: int, errors: int, tests: int) -> str:
    """Returns whether a point holds, fails or is undecided, as one of `tests` points that are decided together."""
    most, fewest = _bounds(examples, (1 - CONFIDENCE) / (2 * tests))
    return HOLDS if errors <= most else FAILS if errors >= fewest else UNDECIDED


def follow(points: Sequence[CurvePoint], probe: str, tests: int) -> LengthCurve:
    """Follows a probe's curve from the shortest length up to the first point that does not hold."""
    reached = 0
    for point in sorted((each for each in points if each.probe == probe), key=lambda each: each.length):
        verdict = point.judge(tests)
        if verdict != HOLDS:
            return LengthCurve(reached, verdict, point)
        reached = point.length
    return LengthCurve(reached, TO_THE_END if reached else UNDECIDED, None)


@cache
def _bounds(examples: int, level: float) -> tuple[int, int]:
    """Returns the most errors that are too few, and the fewest that are too many, for an error rate of 0.01; each by a
    one-sided exact test at this level."""
    rate = 1 - REACHED
    mean, spread = rate * examples, math.sqrt(examples * rate * REACHED)
    first = max(0, math.floor(mean - FAR * spread - FAR))
    below, most = 0.0, -1
    for errors in range(first, examples + 1):
        if 1 - below <= level:  # the probability of at least this many
            return most, errors
        below += math.exp(_log_probability(errors, examples, rate))
        if below <= level:
            most = errors
    return most, examples + 1


def _log_probability(errors: int, examples: int, rate: float) -> float:
    ways = math.lgamma(examples + 1) - math.lgamma(errors + 1) - math.lgamma(examples - errors + 1)
    return ways + errors * math.log(rate) + (examples - errors) * math.log1p(-rate)
