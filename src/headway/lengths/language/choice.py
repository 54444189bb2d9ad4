"""Cures side by side: what each brings at a length, what it costs in range, and which one to choose."""

from collections.abc import Sequence
from dataclasses import dataclass

from headway.evaluation.intervals import Interval
from headway.lengths.language.cells import RecallCell
from headway.lengths.language.effective import NONE


@dataclass(frozen=True)
class CureRow:
    """A cure of one task at one length."""

    cell: RecallCell
    gain: Interval | None
    """over the untouched model, on the same questions"""
    in_range: float | None
    """accuracy at the training length under the same setting"""
    in_range_gain: Interval | None
    config: str
    """the lines that configure it"""

    def to_json(self) -> dict[str, str | int | float | list[float] | None]:
        cell, bounds = self.cell, self.cell.interval()
        return {
            "task": cell.task,
            "length": cell.length,
            "cure": cell.cure,
            "factor": cell.factor,
            "examples": cell.answers,
            "accuracy": cell.accuracy,
            "interval": None if bounds is None else bounds.to_json(),
            "gain": None if self.gain is None else self.gain.to_json(),
            "in_range": self.in_range,
            "in_range_gain": None if self.in_range_gain is None else self.in_range_gain.to_json(),
            "cannot_run": cell.cannot_run,
            "config": self.config,
        }


@dataclass(frozen=True)
class CureChoice:
    """The cure to use at a length, over all tasks that were learned."""

    length: int
    cure: str
    accuracy: float
    untouched: float
    config: str
    sentence: str

    def to_json(self) -> dict[str, str | int | float]:
        return dict(vars(self))


def choose_cures(rows: Sequence[CureRow], tasks: Sequence[str]) -> list[CureChoice]:
    """Chooses for each length the cure with the best worst task, if it is shown to help on that task; of equals the one
    that costs least in range."""
    found = []
    for length in dict.fromkeys(row.cell.length for row in rows):
        own = [row for row in rows if row.cell.length == length and row.cell.task in tasks]
        worst = {
            cure: min((row for row in own if row.cell.cure == cure), key=lambda row: row.cell.accuracy or 0.0)
            for cure in dict.fromkeys(row.cell.cure for row in own)
        }
        if NONE not in worst:
            continue

        def value(cure: str, worst: dict[str, CureRow] = worst, own: Sequence[CureRow] = own) -> tuple[float, float]:
            inside = min(row.in_range or 0.0 for row in own if row.cell.cure == cure)
            return round(worst[cure].cell.accuracy or 0.0, 2), inside

        best = max(worst, key=value)
        row = worst[best]
        untouched = [each for each in own if each.cell.cure == NONE and each.cell.task == row.cell.task]
        plain = untouched[0].cell.accuracy or 0.0
        if best == NONE or row.gain is None or row.gain.low <= 0:
            sentence = f"At {length:,} tokens no cure is shown to help (untouched: {plain:.2f})."
            found.append(CureChoice(length, NONE, plain, plain, "", sentence))
            continue
        cell, loses = row.cell, row.in_range_gain is not None and row.in_range_gain.high < 0
        inside = "" if row.in_range is None else f"; in range it keeps {row.in_range:.2f}"
        bounds = cell.interval()
        assert bounds is not None
        assert cell.accuracy is not None
        sentence = (
            f"At {length:,} tokens use {best}: {cell.task} {cell.accuracy:.2f} (95% interval {bounds.low:.2f} to "
            f"{bounds.high:.2f}, n = {cell.answers:,}) where untouched it is {plain:.2f}{inside}"
            f"{', which is worse than untouched' if loses else ''}."
        )
        found.append(CureChoice(length, best, cell.accuracy, plain, row.config, sentence))
    return found
