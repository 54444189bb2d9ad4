"""The measurements of one trained run, cached in its folder: `measured.json` has its accuracy in range and on every
probe at every length; `choosing.json` has the errors by which a learning rate is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from headway.evaluation.exact import HeldOut, evaluate_sample
from headway.lengths.diagnosis import Diagnosis, diagnose, diagnose_divergence
from headway.lengths.probes import ProbeProblems, ProbeResult, reach
from headway.plugins import source_hash
from headway.positions import find_positions
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.runs.seal import read_sealed, seal
from headway.subjects.own import Run, open_run
from headway.tasks import Task

IN_RANGE = 4_500
"""problems of the training lengths that test convergence, and as many others that choose the learning rate"""
CHOOSING = 1  # the seed of the latter problems
CONVERGED = 0.95
VERSION = 4  # of the measuring code: results of another version are measured again
SCHEMA = "headway.measured/1"


@dataclass(frozen=True)
class MeasuredRun:
    in_range: float
    interval: tuple[float, float]
    rows: tuple[ProbeResult, ...]
    diagnosis: tuple[Diagnosis, ...]
    held_out: HeldOut | None = None  # of the problems in range; None in older files

    @property
    def converged(self) -> bool:
        return self.interval[0] >= CONVERGED

    def to_json(self) -> dict[str, Any]:
        return {
            "in_range": self.in_range,
            "interval": list(self.interval),
            "held_out": None if self.held_out is None else self.held_out.to_json(),
            "rows": [row.to_json() for row in self.rows],
            "diagnosis": [asdict(each) for each in self.diagnosis],
            "reach": {probe: reach(self.rows, probe) for probe in dict.fromkeys(row.probe for row in self.rows)},
            "converged": self.converged,
        }

    @staticmethod
    def from_json(raw: Any) -> MeasuredRun:
        rows = tuple(ProbeResult.from_json(row) for row in raw["rows"])
        diagnosis = tuple(Diagnosis.from_json(each) for each in raw["diagnosis"])
        held_out = HeldOut.from_json(raw.get("held_out"))
        return MeasuredRun(raw["in_range"], tuple(raw["interval"]), rows, diagnosis, held_out)


def prepare_problems(
    task: Task, lengths: Sequence[int], probes: Sequence[str], examples: int, seed: int, device: torch.device
) -> ProbeProblems:
    """Returns the test problems of a study; the longest training length is always included."""
    return ProbeProblems(task, sorted({task.lengths[1], *lengths}), probes, examples, seed, device)


def measure_run(folder: RunFolder, tests: ProbeProblems, precision: torch.dtype) -> MeasuredRun:
    """Measures a run, or reads the cached measurements in its folder if they are of the same tests."""
    run = open_run(folder, tests.device)
    positions, weights = run.config.model.positions, folder.training().weights_sha256
    source = source_hash(find_positions(positions).kind) if ":" in positions else None
    key = {"version": VERSION, "source": source, "weights": weights, **tests.key()}
    key["precision"] = str(precision).removeprefix("torch.")
    known = read_sealed(folder.path / "measured.json")
    if known.get("asked") == key:
        return MeasuredRun.from_json(known)
    older = read_sealed(folder.path / "lengths.json")  # the file of older versions
    found = MeasuredRun.from_json(older) if older.get("asked") == key else _measure(run, tests, precision)
    folder.record("measured", seal({"schema": SCHEMA, "asked": key, **found.to_json()}))
    return found


def _measure(run: Run, tests: ProbeProblems, precision: torch.dtype) -> MeasuredRun:
    in_range = evaluate_sample(run.model, run.task, IN_RANGE)
    rows = tests.measure(run.model if precision == torch.float32 else run.model.to(precision))
    run = run if precision == torch.float32 else open_run(run.folder, tests.device)
    finite = run.folder.training().final_loss is not None
    why = diagnose(run.model, run.task, rows, tests.device) if finite else [diagnose_divergence(rows)]
    assert in_range.interval is not None
    interval = (in_range.interval.low, in_range.interval.high)
    held_out = HeldOut(in_range.held_out.examples, in_range.held_out.errors)
    return MeasuredRun(in_range.exact_match, interval, tuple(rows), tuple(why), held_out)


def errors_in_range(folder: RunFolder, device: torch.device) -> int:
    """Counts the errors by which a learning rate is chosen, on problems drawn for that purpose."""
    kept, weights = folder.path / "choosing.json", folder.training().weights_sha256
    content = read_sealed(kept)
    if content.get("weights") != weights:
        run = open_run(folder, device)
        content = {"weights": weights, "errors": evaluate_sample(run.model, run.task, IN_RANGE, seed=CHOOSING).errors}
        disk.write_json(kept, seal(content))
    return content["errors"]
