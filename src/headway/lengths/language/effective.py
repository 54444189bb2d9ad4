"""Effective length: how long a context may be before recall falls below a share of what it is in short ones.

It is the longest tested length such that at it, and at every shorter tested one, the lower end of the interval keeps at
least 0.9 of the accuracy above chance that the untouched model has at the shortest length. The intervals hold together
over all lengths, tasks and cures of a study. Whoever recalls less than 0.9 at the shortest length has not learned the
task, and has no effective length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.evaluation.intervals import Interval
from headway.lengths.language.cells import RecallCell, corrected

SHARE = 0.9
NONE = "none"  # no cure
Cells = Mapping[tuple[str, int, str], RecallCell]
"""the cells of a study, by task, length and cure"""


@dataclass(frozen=True)
class EffectiveLength:
    """How long a context a model recalls from, untouched or under a cure."""

    task: str
    cure: str
    learned: bool
    length: int | None
    """0 if recall fails at the shortest length already; None if the task was not learned"""
    share: float | None
    """of the accuracy above chance at the shortest length, that is left at the effective length"""
    interval: Interval | None

    def to_json(self) -> dict[str, str | int | float | bool | list[float] | None]:
        bounds = None if self.interval is None else self.interval.to_json()
        return {
            "task": self.task,
            "cure": self.cure,
            "learned": self.learned,
            "length": self.length,
            "share": self.share,
            "interval": bounds,
        }


def has_learned(cell: RecallCell) -> bool:
    """Whether a task was learned, judged by its cell at the shortest length."""
    return (cell.share(cell.accuracy, 1.0) or 0.0) >= SHARE and not cell.constant


def share_interval(cell: RecallCell, reference: RecallCell, tests: int) -> Interval | None:
    """Returns the interval of the share of the reference's accuracy above chance that is left."""
    bounds, full = cell.interval(corrected(tests)), reference.accuracy
    if bounds is None or full is None:
        return None
    low, high = cell.share(bounds.low, full), cell.share(bounds.high, full)
    return None if low is None or high is None else Interval(low, high)


def find_effective(cells: Cells, task: str, cure: str, lengths: Sequence[int], tests: int) -> EffectiveLength:
    """Follows a task from the shortest length up. Lengths for which a cure does nothing are those of the untouched
    model."""
    reference = cells[task, lengths[0], NONE]
    if not has_learned(reference):
        return EffectiveLength(task, cure, False, None, None, None)
    reached, share, interval = 0, None, None
    for length in lengths:
        cell = cells.get((task, length, cure)) or cells.get((task, length, NONE))
        bounds = None if cell is None else share_interval(cell, reference, tests)
        if cell is None or bounds is None or bounds.low < SHARE:
            break
        reached, share, interval = length, cell.share(cell.accuracy, reference.accuracy or 1.0), bounds
    return EffectiveLength(task, cure, True, reached, share, interval)
