"""The answer of a length study of a user's model: what was measured, how far it works, and the findings.

The rules are those of Headway's own models (compare/leaderboard.py): what fails a probe in range has no reach without
that restriction, and all points are decided together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from headway.compare.leaderboard import Entry, Leaderboard, SeedCurves
from headway.evaluation.intervals import Interval, wilson
from headway.lengths.diagnosis import Diagnosis
from headway.lengths.points import SubjectPoint
from headway.output import Output, as_csv, as_html

SCHEMA = "headway.lengths-of-subject/1"
LEARNED = 0.95  # the least accuracy in range, by the lower end of its interval, of a model that has learned its task
CAUSES = {  # by cause: what was measured in range, and the same where the model fails
    "dispersion": ("focus_in_range", "focus"),
    "dilution": ("twin_gap_in_range", "twin_gap"),
    "deaf to one inversion": ("twin_gap_in_range", "twin_gap"),
}


TableRow = dict[str, str | dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class ProbeReach:
    """How far a model works on a probe."""

    entry: str
    probe: str
    reach: int | None  # None if the model has not learned, or a check forbids a conclusion
    stopped_by: str | None
    fails_in_range: list[str] | None  # the probes that it does not hold on in range
    reaches_all: int | None  # the longest length up to which it holds on every probe


@dataclass(frozen=True)
class SubjectLengths:
    """How far a user's model works."""

    name: str
    asked: str  # what was named on the command line, or the name
    task: str  # the task that the problems are of, or "problems"
    trained: tuple[int, int]
    examples: int  # asked for, at each length of each probe
    seed: int
    in_range: tuple[SubjectPoint, ...]  # over the training lengths, on the default problems
    points: tuple[SubjectPoint, ...]
    diagnosis: tuple[Diagnosis, ...] = ()
    withheld: tuple[Mapping[str, str], ...] = ()
    maps: bool = True  # whether attention could be looked at
    seconds: float = 0.0

    @property
    def entry(self) -> Entry:
        return Entry(self.name, "sequential", None)

    @property
    def accuracy_in_range(self) -> float:
        return 1 - sum(each.errors for each in self.in_range) / sum(each.examples for each in self.in_range)

    @property
    def interval_in_range(self) -> Interval:
        examples = sum(each.examples for each in self.in_range)
        return wilson(examples - sum(each.errors for each in self.in_range), examples)

    @property
    def converged(self) -> bool:
        return self.interval_in_range.low >= LEARNED

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.probe for each in self.points))

    @cached_property
    def board(self) -> Leaderboard:
        why = {each.probe: each.sentence for each in reversed(self.diagnosis)}
        points = tuple(each.point for each in self.points)
        low = self.interval_in_range.low
        curves = SeedCurves(0, self.converged, self.accuracy_in_range, low, points, why)
        reason = next((f"{each['check']}: {each['reason']}" for each in self.withheld), None)
        withheld = {} if reason is None else {self.entry: reason}
        return Leaderboard({self.entry: (curves,)}, self.probes, self.trained[1], withheld, seeded=False)

    @cached_property
    def reach(self) -> list[ProbeReach]:
        keys = ("probe", "stopped_by", "fails_in_range", "reaches_all")
        rows = self.board.reach_rows()
        return [ProbeReach(entry=self.name, reach=row["worst"], **{key: row[key] for key in keys}) for row in rows]

    def findings(self) -> list[str]:
        """Returns how far it works and what stops it, then what else a reader must know."""
        found = self.board.findings()
        if self.withheld:
            return found
        said = " ".join(found)
        for each in self.points:
            if each.shares is None or each.shares.constancy == "no" or each.shares.describe() in said:
                continue
            found.append(
                f"At length {each.length:,} (probe {each.probe}, n = {each.examples:,}) {each.shares.describe()}; "
                f"accuracy {each.accuracy:.3f} where always giving the commonest right answer gets "
                f"{each.shares.chance:.3f}."
            )
            break  # the first of them; `rows` has all
        if (stopped := self._first_that_cannot_run()) is not None and (stopped.cannot_run or "") not in said:
            found.append(f"From length {stopped.length:,} on it cannot run ({stopped.cannot_run}).")
        return found

    def _first_that_cannot_run(self) -> SubjectPoint | None:
        failing = [each for each in self.points if each.cannot_run is not None]
        return min(failing, key=lambda each: each.length, default=None)

    def causes(self) -> list[dict[str, str | int | float | bool | None]]:
        """Lists what was found where it fails, with its number in range and there. Only blindness is tested by an
        intervention, permuting the source; the others are measured, not established."""
        rows = []
        for each in self.diagnosis:
            for cause in each.causes:
                before, after = (each.evidence.get(key) for key in CAUSES.get(cause, ("", "")))
                about = {"cause": cause, "probe": each.probe, "length": each.length}
                rows.append({**about, "before": before, "after": after, "established": cause.startswith("blind")})
        return rows

    def table(self) -> list[TableRow]:
        """Returns the accuracy at each length, for each probe; None where it cannot run."""
        own = {probe: [each for each in self.points if each.probe == probe] for probe in self.probes}
        return [
            {"entry": self.name, "probe": probe, "accuracy": {str(each.length): each.accuracy for each in points}}
            for probe, points in own.items()
        ]

    def to_json(self) -> dict[str, Any]:
        tests = self.board.tests
        return {
            "schema": SCHEMA,
            "subject": self.name,
            "asked": self.asked,
            "task": self.task,
            "train_lengths": list(self.trained),
            "examples": self.examples,
            "seed": self.seed,
            "in_range": self.accuracy_in_range,
            "interval": self.interval_in_range.to_json(),
            "converged": self.converged,
            "in_range_by_length": {str(each.length): each.accuracy for each in self.in_range},
            "rows": [{"entry": self.name, **each.to_json(tests)} for each in self.points],
            "reach": [asdict(each) for each in self.reach],
            "level": {**self.board.level(), "corrected_over": "every length of every probe"},
            "table": self.table(),
            "causes": self.causes(),
            "diagnosis": [asdict(each) for each in self.diagnosis],
            "attention_read": self.maps,
            "findings": self.findings(),
            "withheld": [dict(each) for each in self.withheld],
            "seconds": self.seconds,
        }

    def to_csv(self) -> str:
        """Returns every point as a line."""
        keys = ("probe", "length", "n", "errors", "accuracy", "low", "high", "corrected_low", "corrected_high")
        lines: list[Sequence[str | int | float | None]] = [
            ("entry", *keys, "verdict", "commonest_answer", "its_share", "chance", "cannot_run")
        ]
        tests = self.board.tests
        for each in self.points:
            bounds = [each.interval, each.corrected(tests)]
            ends = [end for pair in bounds for end in ((None, None) if pair is None else (pair.low, pair.high))]
            shares = [None if share is None else round(share, 6) for share in (each.accuracy, *ends)]
            first = None if each.shares is None else each.shares.commonest[0]
            answers = (None, None) if first is None else (first.text, round(first.given, 6))
            chance = None if each.shares is None else round(each.shares.chance, 6)
            about = (self.name, each.probe, each.length, each.examples, each.errors, *shares)
            lines.append((*about, each.point.judge(tests), *answers, chance, each.cannot_run))
        return as_csv(lines)

    def to_output(self) -> Output:
        """Returns what the command prints."""
        content = self.to_json()
        table = [{"probe": row["probe"], **row["accuracy"]} for row in content["table"]]
        shown = ("probe", "reach", "stopped_by", "fails_in_range")
        remarks: dict[tuple[str, str], list[int]] = {}
        for each in self.points:
            if each.cannot_run is not None:
                remarks.setdefault((each.probe, f"cannot run: {each.cannot_run}"), []).append(each.length)
            elif each.shares is not None and each.shares.constancy != "no":
                remarks.setdefault((each.probe, each.shares.describe()), []).append(each.length)
        rows = [{"probe": probe, "lengths": lengths, "answers": words} for (probe, words), lengths in remarks.items()]
        more = [("Accuracy by length", table), *([("Where its answers hardly vary", rows)] if rows else [])]
        return Output(content, f"Reach of {self.name}", content["reach"], more, content["findings"], shown=shown)

    def _repr_html_(self) -> str:
        """Shows the findings and the reach in a notebook."""
        return as_html(self.findings(), [asdict(each) for each in self.reach])
