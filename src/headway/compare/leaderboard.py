"""Sets the entries of a length study side by side: how far each reaches, the table of accuracies, and the findings.

A model that does not hold on some probe at its longest training length has not learned the task; how far it gets on an
easier probe is reported with that restriction, and never as its reach. Everything here follows from the counts in a
study's rows, so that files of older versions are read by the same rules.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.compare.curves import (
    CANNOT_RUN,
    CONFIDENCE,
    FAILS,
    HOLDS,
    ONE_ANSWER,
    REACHED,
    TO_THE_END,
    UNDECIDED,
    CurvePoint,
    LengthCurve,
    decide,
    follow,
)
from headway.evaluation.intervals import wilson
from headway.output import as_csv
from headway.runs.config import folder_name


@dataclass(frozen=True)
class Entry:
    """One row of the comparison: an encoding, an index and a pooling."""

    positions: str
    index: str
    pooling: str | None

    @property
    def title(self) -> str:
        return self.positions if self.index == "sequential" else f"{self.positions}, {self.index}"

    @property
    def folder(self) -> str:
        parts = (self.positions, "" if self.index == "sequential" else self.index, self.pooling)
        return folder_name("-".join(filter(None, parts)))


@dataclass(frozen=True)
class SeedCurves:
    """The measurements of one seed of an entry."""

    seed: int
    converged: bool
    in_range: float  # accuracy over the training lengths, on the first probe
    in_range_low: float  # the lower end of its interval
    points: tuple[CurvePoint, ...]
    why: Mapping[str, str] = field(default_factory=dict)  # by probe: the diagnosis at the first length that fails

    def find(self, probe: str, length: int) -> CurvePoint | None:
        return next((each for each in self.points if (each.probe, each.length) == (probe, length)), None)


@dataclass(frozen=True)
class RangeFailure:
    """A probe on which an entry does not hold in range."""

    probe: str
    verdict: str  # fails, if any seed does, or undecided
    seeds: int  # that do not hold
    least: float
    most: float  # their accuracies
    where: str

    def describe(self, of: int) -> str:
        low, high = f"{self.least:.3f}", f"{self.most:.3f}"
        span = low if low == high else f"{low} to {high}"
        some = "" if self.seeds == of else f", in {self.seeds} of {of} seeds"
        return f"{self.probe} (accuracy {span} {self.where}{some})"


@dataclass(frozen=True)
class Leaderboard:
    entries: Mapping[Entry, tuple[SeedCurves, ...]]
    probes: tuple[str, ...]
    trained: int  # the longest training length
    withheld: Mapping[Entry, str] = field(default_factory=dict)  # by entry: the check that forbids a conclusion
    seeded: bool = True  # whether an entry has seeds; a user's model is what it is

    @property
    def tests(self) -> int:
        """The number of points that are decided together: every length of every curve."""
        return max(1, sum(len(run.points) for runs in self.entries.values() for run in runs))

    def level(self) -> dict[str, int | float | str]:
        each = 1 - (1 - CONFIDENCE) / self.tests
        over = "every length of every curve: an entry, a seed and a probe"
        return {"confidence": CONFIDENCE, "tests": self.tests, "of_each_test": each, "corrected_over": over}

    def learned(self, entry: Entry) -> list[SeedCurves]:
        return [] if entry in self.withheld else [run for run in self.entries[entry] if run.converged]

    def curves(self, entry: Entry, probe: str) -> list[LengthCurve | None]:
        """Returns the curve of each seed; None if it has not learned or a check forbids a conclusion."""
        learned, tests = self.learned(entry), self.tests
        return [follow(run.points, probe, tests) if run in learned else None for run in self.entries[entry]]

    def range_failures(self, entry: Entry) -> list[RangeFailure]:
        """Lists the probes that some converged seed does not hold on in range."""
        found = []
        for probe in self.probes:
            verdicts, shares, places = [], [], dict[str, None]()
            for run in self.learned(entry):
                point = run.find(probe, self.trained)
                verdict = HOLDS if point is None else point.judge(self.tests)
                if point is not None and verdict != HOLDS:
                    verdict = FAILS if verdict == FAILS else UNDECIDED
                    place, share = f"at length {self.trained:,}, n = {point.examples:,}", point.accuracy
                    place += f"; {point.note}" if point.note else ""
                elif probe == self.probes[0] and run.in_range_low < REACHED:
                    verdict, share = UNDECIDED if run.in_range >= REACHED else FAILS, run.in_range
                    place = "over the training lengths"
                else:
                    continue
                verdicts.append(verdict)
                shares.append(share)
                places[place] = None
            if verdicts:
                worst = FAILS if FAILS in verdicts else UNDECIDED
                where = " or ".join(places)
                found.append(RangeFailure(probe, worst, len(verdicts), min(shares), max(shares), where))
        return found

    def reach_rows(self) -> list[dict[str, Any]]:
        """Returns the reach of each entry on each probe."""
        rows = []
        for entry in self.entries:
            names = [str(run.seed) for run in self.entries[entry]]
            failures = [each.probe for each in self.range_failures(entry)] if self.learned(entry) else None
            everywhere = [self._reach_everywhere(entry, place) for place in range(len(names))]
            for probe in self.probes:
                curves = self.curves(entry, probe)
                known = [curve for curve in curves if curve is not None]
                worst = self._worst(known)
                rows.append({
                    **asdict(entry),
                    "probe": probe,
                    "by_seed": {name: curve and curve.reach for name, curve in zip(names, curves, strict=True)},
                    "median": statistics.median_low([curve.reach for curve in known]) if known else None,
                    "worst": worst.reach if worst is not None and len(known) == len(curves) else None,
                    "stopped_by": worst and worst.stopped_by,
                    "stopped_by_seed": {n: curve and curve.stopped_by for n, curve in zip(names, curves, strict=True)},
                    "fails_in_range": failures or None,
                    "reaches_all": None if None in everywhere else min(each or 0 for each in everywhere),
                })  # fmt: skip
        return rows

    def _reach_everywhere(self, entry: Entry, place: int) -> int | None:
        """Returns the longest length up to which a seed holds on every probe."""
        curves = [self.curves(entry, probe)[place] for probe in self.probes]
        return None if any(curve is None for curve in curves) else min(curve.reach for curve in curves if curve)

    @staticmethod
    def _worst(curves: Sequence[LengthCurve]) -> LengthCurve | None:
        """Returns the curve that stops first; one that fails before one that is undecided."""
        order = (FAILS, CANNOT_RUN, ONE_ANSWER, UNDECIDED, TO_THE_END)
        return min(curves, key=lambda curve: (curve.reach, order.index(curve.stopped_by)), default=None)

    def findings(self) -> list[str]:
        """Returns one sentence per entry."""
        return [f"{entry.title}: {self._finding(entry)}." for entry in self.entries]

    def _finding(self, entry: Entry) -> str:
        own = self.entries[entry]
        if not any(run.converged for run in own):
            best = f"best accuracy {max(run.in_range for run in own):.4f}"
            if not self.seeded:
                return f"it did not learn the task in range ({best.removeprefix('best ')}); no conclusion about length"
            return f"none of {len(own)} seeds learned the task in range ({best}); no conclusion about length"
        if entry in self.withheld:
            return f"withheld: {self.withheld[entry]}"
        failures, learned = self.range_failures(entry), self.learned(entry)
        left_out = len(own) - len(learned)
        short = f" ({left_out} of {len(own)} seeds did not learn the task and are left out)" if left_out else ""
        words = f"trained up to {self.trained:,}{short}, "
        if failures:
            parts = []
            for verdict, verb in ((FAILS, "fails"), (UNDECIDED, "is undecided on")):
                named = [each.describe(len(learned)) for each in failures if each.verdict == verdict]
                parts += [f"{verb} {', '.join(named[:-1])}{' and ' if named[:-1] else ''}{named[-1]}"] if named else []
            easy = [probe for probe in self.probes if probe not in {each.probe for each in failures}]
            words += f"in range it {' and '.join(parts)}"
            if not easy:
                return f"{words}: it has no reach"
            return f"{words}; with that restriction, {self._reach_on(entry, easy[:1])}"
        return words + self._reach_on(entry, self.probes)

    def _reach_on(self, entry: Entry, probes: Sequence[str]) -> str:
        """Says how far an entry reaches on all of these probes, and what stops it."""
        learned, stops = self.learned(entry), []
        for run in learned:
            curves = [follow(run.points, probe, self.tests) for probe in probes]
            worst = self._worst(curves)
            assert worst is not None
            stops.append((worst, run))
        reached = sorted(curve.reach for curve, _ in stops)
        where = f"{reached[0]:,}" if reached[0] == reached[-1] else f"from {reached[0]:,} to {reached[-1]:,}"
        on = f"probe {probes[0]}" if len(probes) == 1 else f"all {len(probes)} probes"
        first = self._worst([curve for curve, _ in stops])
        assert first is not None
        if first.stop is None:
            seeds = f", in {len(learned)} of {len(learned)} seeds" if self.seeded else ""
            return f"reach {where} ({on}), the longest length tested{seeds}"
        run = next(run for curve, run in stops if curve == first)
        return f"reach {where} ({on}){self._stop_words(first.stop, first.stopped_by, run)}"

    def _stop_words(self, stop: CurvePoint, stopped_by: str, run: SeedCurves) -> str:
        if stopped_by == CANNOT_RUN:
            return f"; length {stop.length:,} cannot run ({stop.note})"
        if stopped_by == ONE_ANSWER:
            return f"; length {stop.length:,} shows nothing (probe {stop.probe}: {stop.note})"
        beyond = [each for each in run.points if each.probe == stop.probe and each.length >= stop.length]
        if not any(each.errors or each.stopped_by for each in beyond):
            few, longest = min(each.examples for each in beyond), max(each.length for each in beyond)
            return f"; no errors up to {longest:,} either, but {few:,} problems are too few for the interval"
        if stopped_by == UNDECIDED:
            counts = f"{stop.errors:,} errors in {stop.examples:,} problems"
            return f"; length {stop.length:,} is undecided (probe {stop.probe}: {counts} leave 0.99 possible)"
        why = run.why.get(stop.probe, "").removesuffix(".")
        measured = f"probe {stop.probe}: accuracy {stop.accuracy:.3f}, n = {stop.examples:,}"
        return f"; length {stop.length:,} fails ({measured})" + (f". {why}" if why else "")

    def table(self) -> list[dict[str, Any]]:
        """Returns the accuracy of each entry by length, the mean over all its seeds, for each probe."""
        rows = []
        for entry, runs in self.entries.items():
            for probe in self.probes:
                by_length: dict[int, list[CurvePoint]] = {}
                for point in sorted((p for run in runs for p in run.points), key=lambda each: each.length):
                    if point.probe == probe:
                        by_length.setdefault(point.length, []).append(point)
                mean = {str(n): statistics.fmean(each.accuracy for each in some) for n, some in by_length.items()}
                rows.append({**asdict(entry), "probe": probe, "seeds": len(runs), "accuracy": mean})
        return rows

    def to_csv(self) -> str:
        """Returns every measurement as a line: an entry, a probe, a seed and a length."""
        names = ("positions", "index", "pooling", "probe", "seed", "length", "n", "errors", "accuracy", "low", "high")
        lines: list[Sequence[str | int | float]] = [(*names, "verdict")]
        for entry, runs in self.entries.items():
            for run in runs:
                for point in run.points:
                    interval = wilson(point.examples - point.errors, point.examples)
                    verdict = decide(point.examples, point.errors, self.tests)
                    about = (entry.positions, entry.index, entry.pooling or "", point.probe, run.seed, point.length)
                    shares = (round(share, 6) for share in (point.accuracy, interval.low, interval.high))
                    lines.append((*about, point.examples, point.errors, *shares, verdict))
        return as_csv(lines)


def board_of_rows(
    rows: Sequence[Mapping[str, Any]],
    converged: Sequence[Mapping[str, Any]],
    diagnosis: Sequence[Mapping[str, Any]],
    trained: int,
    withheld: Mapping[Entry, str],
) -> Leaderboard:
    """Makes the board of a study from the rows of its file."""

    def key(row: Mapping[str, Any]) -> tuple[Entry, int]:
        return Entry(row["positions"], row["index"], row.get("pooling")), row["seed"]

    points: dict[tuple[Entry, int], list[CurvePoint]] = {}
    for row in rows:
        errors = round((1 - row["accuracy"]) * row["examples"])
        points.setdefault(key(row), []).append(CurvePoint(row["probe"], row["length"], row["examples"], errors))
    why: dict[tuple[Entry, int], dict[str, str]] = {}
    for each in diagnosis:
        why.setdefault(key(each), {}).setdefault(each["probe"], each["sentence"])
    entries: dict[Entry, list[SeedCurves]] = {}
    for run in converged:
        own, (low, _) = key(run), run["interval"]
        curves = SeedCurves(
            run["seed"], run["converged"], run["in_range"], low, tuple(points.get(own, ())), why.get(own, {})
        )
        entries.setdefault(own[0], []).append(curves)
    probes = tuple(dict.fromkeys(row["probe"] for row in rows))
    return Leaderboard({entry: tuple(runs) for entry, runs in entries.items()}, probes, trained, withheld)
