"""The answer of a length study: what was trained, how far each run works, and the findings that the numbers support."""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from headway.compare.leaderboard import Entry, Leaderboard, SeedCurves
from headway.lengths.measuring import MeasuredRun
from headway.lengths.question import LEAST_EXAMPLES
from headway.output import Output, as_html
from headway.runs.config import Overrides
from headway.training.tracks import Track

SCHEMA = "headway.lengths/1"


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
        apart = {"held_out": None if found.held_out is None else found.held_out.to_json()}
        return {**asdict(self.entry), "seed": self.seed, **measured, **apart, **trained}

    def curves(self) -> SeedCurves:
        found = self.found
        why = {each.probe: each.sentence for each in reversed(found.diagnosis)}
        points = tuple(row.point for row in found.rows)
        return SeedCurves(self.seed, found.converged, found.in_range, found.interval[0], points, why)


@dataclass(frozen=True)
class LengthStudy:
    plan: LengthsPlan
    trained_lengths: tuple[int, int]
    runs: tuple[TrainedRun, ...]
    precision: str  # of the tests
    signals: tuple[dict[str, Any], ...] = ()  # the encoding of each entry, from its first seed
    withheld: dict[Entry, tuple[dict[str, str], ...]] = field(default_factory=dict)
    """by entry, the checks that forbid a conclusion, each with its reason"""

    @cached_property
    def board(self) -> Leaderboard:
        """The entries side by side."""
        runs = {entry: tuple(run.curves() for run in self.runs if run.entry == entry) for entry in self.plan.entries}
        reasons = {entry: each for entry, found in self.withheld.items() for each in found[:1]}
        withheld = {entry: f"{each['check']}: {each['reason']}" for entry, each in reasons.items()}
        return Leaderboard(runs, self.plan.probes, self.trained_lengths[1], withheld)

    def reach(self, entry: Entry, probe: str) -> list[int | None]:
        """Returns the reach of each seed; None if the seed has not converged or a check forbids a conclusion."""
        return [None if curve is None else curve.reach for curve in self.board.curves(entry, probe)]

    def to_json(self) -> dict[str, Any]:
        plan, board = self.plan, self.board
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
            "reach": board.reach_rows(),
            "level": board.level(),
            "table": board.table(),
            "converged": [run.to_json() for run in self.runs],
            "diagnosis": [{**of, **seed, **asdict(each)} for found, of, seed in about for each in found.diagnosis],
            "signals": list(self.signals),
            "findings": self.findings(),
            "withheld": [{**asdict(entry), **each} for entry, found in self.withheld.items() for each in found],
        }

    def to_output(self) -> Output:
        """Returns what the command prints."""
        content = self.to_json()
        shown = ("positions", "index", "pooling", "probe", "median", "worst", "stopped_by", "fails_in_range", "by_seed")
        table = [{**row, **row["accuracy"]} for row in content["table"]]
        table = [{key: value for key, value in row.items() if key not in ("accuracy", "seeds")} for row in table]
        more = [("Accuracy by length (mean over the seeds)", table)]
        return Output(content, "Reach", content["reach"], more, content["findings"], shown=shown)

    def _repr_html_(self) -> str:
        """Shows the findings and the reach of every entry in a notebook."""
        shown = ("positions", "index", "probe", "worst", "median", "fails_in_range")
        return as_html(self.findings(), [{key: row[key] for key in shown} for row in self.to_json()["reach"]])

    def findings(self) -> list[str]:
        """Returns one sentence per entry."""
        return self.board.findings()
