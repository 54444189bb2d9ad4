"""What stops recall, by intervention: a cause is established where its cure brings answers back that its sham does not.

A cure undoes one thing: positions that training never reached, attention that spreads over more tokens, a penalty on
distance, first tokens out of sight. Its shams change as much without undoing that: a cure of positions must beat the
same change of positions that training did reach, and a constant temperature; and it must bring more than it brings in
range, where there is nothing to cure. All answer the same questions as the untouched model, so gains are paired. Where
one cure is shown to be better than another, what the lesser one brings
counts for the better one's cause, unless both together bring more. What a window hides needs no cure: it is proved by
changing the fact, where no logit of its question moves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from headway.attach.cures import shams_for
from headway.attach.order import TokenOrder
from headway.evaluation.intervals import Interval
from headway.lengths.language.cells import RecallCell, corrected, gain
from headway.lengths.language.effective import NONE

POSITIONS = {"rotary": "untrained angles", "table": "untrained rows", "alibi": "distance penalty"}
"""by the way a model tells order: the cause that its cures of positions undo"""
OTHERS = {"log-length": "dispersion", "sinks": "lost first tokens"}
UNDIVIDED = "dispersion or distance penalty"  # in ALiBi, larger scores of q·k outweigh either
NO_CAUSE = ("none", "window")  # a window is a way to live with a limit; it undoes no single thing


@runtime_checkable
class Ask(Protocol):
    """Called with a task, a length, a cure or a sham, and the length that it is set for (default: the same); measures
    it where that was not done."""

    def __call__(self, task: str, length: int, cure: str, target: int | None = None, /) -> RecallCell: ...


@dataclass(frozen=True)
class LanguageCause:
    """What was tested as a cause, and what its cure brought."""

    cause: str
    task: str
    length: int
    cure: str | None
    before: float | None
    after: float | None
    gain: Interval | None = None
    sham: str | None = None
    """the one of its shams that does best"""
    sham_accuracy: float | None = None
    exceeds: Interval | None = None
    """the gain of the cure over that sham"""
    in_range: float | None = None
    """what the same setting of the cure brings at the training length"""
    established: bool = False
    evidence: str = ""
    """what was read off the config and weights, or why it does not count as established"""

    def to_json(self) -> dict[str, str | int | float | bool | list[float] | None]:
        return {
            "cause": self.cause,
            "task": self.task,
            "length": self.length,
            "cure": self.cure,
            "before": self.before,
            "after": self.after,
            "gain": None if self.gain is None else self.gain.to_json(),
            "sham": self.sham,
            "sham_accuracy": self.sham_accuracy,
            "exceeds_sham": None if self.exceeds is None else self.exceeds.to_json(),
            "in_range_gain": self.in_range,
            "established": self.established,
            "evidence": self.evidence,
        }


@dataclass(frozen=True)
class Suspects:
    """Tests the causes that are possible in one model on one task."""

    order: TokenOrder
    task: str
    failing: Sequence[int]
    trained: int
    ask: Ask
    tests: int
    """intervals that hold together"""
    evidence: Callable[[str, int], str]
    """called with a cause and a length; says what the config and the weights tell"""

    def find(self, cures: Sequence[str]) -> list[LanguageCause]:
        """Tests every cause that one of these cures undoes, at every length that fails; then pairs of cures."""
        groups: dict[str, list[str]] = {}
        for cure in cures:
            if cure not in NO_CAUSE:
                cause = OTHERS.get(cure) or POSITIONS.get(self.order.kind, "positions")
                if cure == "log-length" and self.order.kind == "alibi":
                    cause = UNDIVIDED
                groups.setdefault(cause, []).append(cure)
        found = [self._best_length(cause, own) for cause, own in groups.items()]
        found = [self._yield_to_better(each, found) for each in found]
        if any(each.established for each in found):
            return found
        return found + self._test_pairs(groups)

    def _best_length(self, cause: str, cures: Sequence[str]) -> LanguageCause:
        """Returns the test of this cause at the length where its cure brings most."""
        tested = [self._test(cause, max(cures, key=lambda cure: self._accuracy(n, cure)), n) for n in self.failing]
        return max(tested, key=lambda each: (each.established, (each.after or 0.0) - (each.before or 0.0)))

    def _accuracy(self, length: int, cure: str) -> float:
        accuracy = self.ask(self.task, length, cure).accuracy
        return -1.0 if accuracy is None else accuracy

    def _test(self, cause: str, cure: str, length: int) -> LanguageCause:
        before, after = self.ask(self.task, length, NONE), self.ask(self.task, length, cure)
        shams = [self.ask(self.task, length, sham) for sham in self._shams(cure)]
        best = max(shams, key=lambda sham: sham.accuracy or 0.0, default=None)
        won = _gain_over(before, after, self.tests)
        exceeds = None if best is None else _gain_over(best, after, self.tests)
        untouched, cured = self.ask(self.task, self.trained, NONE), self.ask(self.task, self.trained, cure, length)
        inside = (cured.accuracy or 0.0) - (untouched.accuracy or 0.0)
        beaten = all(_is_above(_gain_over(sham, after, self.tests)) for sham in shams)
        return LanguageCause(
            cause=cause,
            task=self.task,
            length=length,
            cure=cure,
            before=before.accuracy,
            after=after.accuracy,
            gain=won,
            sham=None if best is None else best.cure,
            sham_accuracy=None if best is None else best.accuracy,
            exceeds=exceeds,
            in_range=inside,
            established=bool(shams) and beaten and won is not None and won.low > max(0.0, inside),
            evidence=self.evidence(cause, length),
        )

    def _shams(self, cure: str) -> list[str]:
        """Returns the shams that a cure must beat; a pair must beat those of both together."""
        own = [sham for part in cure.split("+") if (sham := shams_for(self.order, part)) is not None]
        together = ["+".join(dict.fromkeys(own))] if own else []
        return list(dict.fromkeys([*together, *(["temperature"] if self.order.scores and own else [])]))

    def _yield_to_better(self, each: LanguageCause, found: Sequence[LanguageCause]) -> LanguageCause:
        """Withdraws a cause if another one's cure brings more at its length, and both together no more than that."""
        for other in found:
            if not (each.established and other.established) or other is each or each.cure is None or other.cure is None:
                continue
            mine, better = (self.ask(self.task, other.length, cure) for cure in (each.cure, other.cure))
            if not _is_above(gain(mine, better, corrected(self.tests))):
                continue
            both = self.ask(self.task, other.length, f"{other.cure}+{each.cure}")
            if not _is_above(gain(better, both, corrected(self.tests))):
                reason = f"the cure for {other.cause} ({other.cure}) brings more, and adding this one brings no more"
                return replace(each, established=False, evidence=reason)
        return each

    def _test_pairs(self, groups: dict[str, list[str]]) -> list[LanguageCause]:
        """Tests a cure of positions together with one of another cause: both are causes if the pair brings more than
        either."""
        own = POSITIONS.get(self.order.kind)
        firsts = groups.get(own or "", [])
        for cause, seconds in groups.items():
            if cause == own or not firsts:
                continue
            for length in self.failing:
                first = max(firsts, key=lambda cure: self._accuracy(length, cure))
                pair = f"{first}+{seconds[0]}"
                test = self._test(f"{own} and {cause}", pair, length)
                singles = [self.ask(self.task, length, cure) for cure in (first, seconds[0])]
                both = self.ask(self.task, length, pair)
                more = all(_is_above(gain(each, both, corrected(self.tests))) for each in singles)
                if more and _is_above(test.gain):
                    return [replace(test, established=True)]
        return []


def _gain_over(before: RecallCell, after: RecallCell, tests: int) -> Interval | None:
    """Returns the corrected interval of a gain; a model that cannot run gets no answer right."""
    return gain(replace(before, cannot_run=None), after, corrected(tests))


def _is_above(interval: Interval | None) -> bool:
    return interval is not None and interval.low > 0
