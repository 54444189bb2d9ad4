"""The answer of a length study: what was trained, how far each run works, and the findings that the numbers support."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.lengths.measuring import MeasuredRun
from headway.lengths.probes import reach
from headway.lengths.question import LEAST_EXAMPLES
from headway.output import as_html
from headway.runs.config import Overrides, folder_name
from headway.training.tracks import Track

SCHEMA = "headway.lengths/1"


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
class LengthsPlan:
    """Everything that a length study trains and tests."""

    task: str
    entries: tuple[Entry, ...]
    track: Track
    seeds: tuple[int, ...]
    lengths: tuple[int, ...]
    probes: tuple[str, ...]
    options: dict[str, Any]
    overrides: Overrides = field(default_factory=Overrides)  # the user's, applied over those of the track
    examples: int = LEAST_EXAMPLES
    test_seed: int = 0


@dataclass(frozen=True)
class TrainedRun:
    """One seed of an entry, with its measurements."""

    entry: Entry
    seed: int
    run: str
    rate: float
    loss: float | None
    seconds: float
    found: MeasuredRun

    def to_json(self) -> dict[str, Any]:
        found, trained = self.found, {key: getattr(self, key) for key in ("loss", "seconds", "rate", "run")}
        measured = {"in_range": found.in_range, "interval": list(found.interval), "converged": found.converged}
        return {**asdict(self.entry), "seed": self.seed, **measured, **trained}


@dataclass(frozen=True)
class LengthStudy:
    plan: LengthsPlan
    trained_lengths: tuple[int, int]
    runs: tuple[TrainedRun, ...]
    precision: str  # of the tests
    signals: tuple[dict[str, Any], ...] = ()  # the encoding of each entry, from its first seed
    withheld: dict[Entry, tuple[dict[str, str], ...]] = field(default_factory=dict)
    """by entry, the checks that forbid a conclusion, each with its reason"""

    def of(self, entry: Entry) -> list[TrainedRun]:
        """Returns the runs of an entry, one per seed."""
        return [run for run in self.runs if run.entry == entry]

    def reach(self, entry: Entry, probe: str) -> list[int | None]:
        """Returns the reach of each seed; None if the seed has not converged or a check forbids a conclusion."""
        sound = not self.withheld.get(entry)
        return [reach(run.found.rows, probe) if sound and run.found.converged else None for run in self.of(entry)]

    def to_json(self) -> dict[str, Any]:
        plan, named, reaches = self.plan, list(dict.fromkeys(str(run.seed) for run in self.runs)), []
        for entry in plan.entries:
            for probe in plan.probes:
                by_seed = self.reach(entry, probe)
                known = [value for value in by_seed if value is not None]
                median = statistics.median_low(known) if known else None
                summary = {"median": median, "worst": min(known) if len(known) == len(by_seed) else None}
                by_name = dict(zip(named, by_seed, strict=True))
                reaches.append({**asdict(entry), "probe": probe, "by_seed": by_name, **summary})
        about = [(run.found, asdict(run.entry), {"seed": run.seed}) for run in self.runs]
        track = {"track": plan.track.name}
        return {
            "schema": SCHEMA,
            "task": plan.task,
            **track,
            "train_lengths": list(self.trained_lengths),
            "examples": plan.examples,
            "precision": self.precision,
            "rows": [{**of, **track, **seed, **row.to_json()} for found, of, seed in about for row in found.rows],
            "reach": reaches,
            "converged": [run.to_json() for run in self.runs],
            "diagnosis": [{**of, **seed, **asdict(each)} for found, of, seed in about for each in found.diagnosis],
            "signals": list(self.signals),
            "findings": self.findings(),
            "withheld": [{**asdict(entry), **each} for entry, found in self.withheld.items() for each in found],
        }

    def _repr_html_(self) -> str:
        """Shows the findings and the reach of every entry in a notebook."""
        shown = ("positions", "index", "probe", "worst", "median")
        return as_html(self.findings(), [{key: row[key] for key in shown} for row in self.to_json()["reach"]])

    def findings(self) -> list[str]:
        """Returns one sentence per entry."""
        return [f"{entry.title}: {self._finding(entry)}." for entry in self.plan.entries]

    def _finding(self, entry: Entry) -> str:
        own = self.of(entry)
        learned = [run.found for run in own if run.found.converged]
        if not learned:
            best = f"best accuracy {max(run.found.in_range for run in own):.4f}"
            return f"none of {len(own)} seeds learned the task in range ({best}); no conclusion about length"
        for each in self.withheld.get(entry, ()):
            return f"withheld: {each['check']}: {each['reason']}"
        probe = self.plan.probes[0]
        reached = sorted(reach(found.rows, probe) for found in learned)
        left_out = len(own) - len(learned)
        short = f" ({left_out} of {len(own)} seeds did not learn the task and are left out)" if left_out else ""
        where = f"from {reached[0]:,} to {reached[-1]:,}" if reached[0] != reached[-1] else f"{reached[0]:,}"
        longest = max(self.plan.lengths)
        words = f"trained up to {self.trained_lengths[1]}, reach {where} (probe {probe}){short}"
        if reached[0] >= longest:
            return f"{words}, the longest length tested, in {len(learned)} of {len(learned)} seeds"
        beyond = [row for found in learned for row in found.rows if row.probe == probe and row.length > reached[0]]
        if not any(row.errors for row in beyond):
            few = min(row.examples for row in beyond)
            return f"{words}; no errors up to {longest:,} either, but {few:,} problems are too few for the interval"
        why = next((each.sentence for found in learned for each in found.diagnosis if each.probe == probe), "")
        return f"{words}. {why.removesuffix('.')}" if why else words
