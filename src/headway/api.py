"""The commands as Python functions, with the same words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.evaluation.exact import Evaluation, evaluate_all, evaluate_chunks, evaluate_sample
from headway.evaluation.greedy import Greedy, check_greedy
from headway.machine import choose_device
from headway.positions import Positions
from headway.progress import Progress
from headway.subjects.own import Run, find_runs, open_run
from headway.tasks import create_task
from headway.tasks.data import data_digest, read_split
from headway.training.defaults import Wishes, plan
from headway.training.loop import CHECKPOINT_EVERY, Report, train_run
from headway.training.tracking import find_tracker

EXAMPLES = 10_000


@dataclass(frozen=True)
class Evaluated:
    """An evaluation with what it was made of."""

    run: str
    evaluation: Evaluation
    greedy: Greedy | None
    untrained: range
    """positions whose signal training never touched"""
    trained_on_files: bool
    """then some of the held-out tenth may have been in the files"""

    @property
    def errors(self) -> int:
        return self.evaluation.errors

    @property
    def examples(self) -> int:
        return self.evaluation.examples

    @property
    def exact_match(self) -> float:
        return self.evaluation.exact_match

    def cautions(self) -> list[str]:
        """What a reader of the numbers should know before drawing a conclusion."""
        said = []
        if self.untrained:
            first, last = self.untrained[0], self.untrained[-1]
            said.append(f"Positions {first} to {last} were never trained: their signal is what it was at the start.")
        if self.evaluation.positive_rate in (0.0, 1.0):
            said.append("Every problem got the same answer: this is a constant, not a classifier.")
        if self.trained_on_files:
            said.append("Trained on files: some of the held-out tenth may have been among them.")
        return said

    def to_json(self) -> dict[str, Any]:
        found = self.evaluation
        return {
            "run": self.run,
            "examples": found.examples,
            "errors": found.errors,
            "exact_match": found.exact_match,
            "interval": found.interval.to_json() if found.interval else None,
            "greedy": asdict(self.greedy) if self.greedy else None,
            "held_out": {"examples": found.held_out.examples, "errors": found.held_out.errors},
            "strata": [asdict(stratum) for stratum in found.strata],
            "positive_rate": found.positive_rate,
            "untrained_positions": list(self.untrained),
            "trained_on_files": self.trained_on_files,
            "cautions": self.cautions(),
        }


def train(
    task: str,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    device: str = "auto",
    resume: bool = True,
    quiet: bool = True,
    options: dict[str, Any] | None = None,
    data: str | Path | None = None,
    **wishes: Any,
) -> Run:
    """Trains one run, or opens it if it was trained before: `headway.train("addition", seed=0).model`."""
    folder = train_seeds(
        task, [seed], Wishes(**wishes), out=out, device=device, resume=resume, quiet=quiet, options=options, data=data
    )[0]
    return open_run(find_runs(folder.run)[0], choose_device(device))


def train_seeds(
    task: str,
    seeds: list[int],
    wishes: Wishes,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    checkpoint_every: int = CHECKPOINT_EVERY,
    quiet: bool = False,
    options: dict[str, Any] | None = None,
    data: str | Path | None = None,
    tracker: str | None = None,
) -> list[Report]:
    """One run per seed; several go to `out`/seed-N. The config of every seed is checked before any is trained."""
    chosen, found = choose_device(device), find_tracker(tracker)
    stored, digest = None, None
    if data is not None:
        stored, digest = read_split(create_task(task, options), Path(data), "train"), data_digest(Path(data))
    configs = [plan(task, wishes, seed, options, digest) for seed in seeds]
    reports = []
    for config in configs:
        folder = Path(out) if out is not None else Path("runs") / (config.name if len(seeds) == 1 else _stem(config))
        if len(seeds) > 1:
            folder = folder / f"seed-{config.seed}"
        with Progress(f"{config.task} {config.model.positions} seed {config.seed}", quiet) as watch:
            report = train_run(
                config,
                folder,
                device=chosen,
                resume=resume,
                checkpoint_every=checkpoint_every,
                stored=stored,
                watch=watch,
                tracker=found,
            )
        reports.append(report)
    return reports


def _stem(config: Any) -> str:
    """A name for the seeds of one config together."""
    return replace(config, seed=0).name.replace("-seed0-", "-seeds-")


def evaluate(
    subject: str | Path | Run,
    *,
    all: bool = False,
    examples: int | None = None,
    length: int | None = None,
    probe: str = "default",
    greedy: int = 0,
    data: str | Path | None = None,
    split: str = "test",
    seed: int = 0,
    device: str = "auto",
    quiet: bool = True,
) -> Evaluated:
    """Exact match of one run: on every problem, on fresh ones, or on a file of a data folder."""
    if all and (examples is not None or length is not None or data is not None):
        raise HeadwayError("--all takes every problem; leave out --examples, --length and --data")
    if examples is not None and examples < 1:
        raise HeadwayError(f"examples is {examples}; it must be at least 1")
    chosen = choose_device(device)
    run = subject if isinstance(subject, Run) else open_run(find_runs(subject)[0], chosen)
    run.model.to(chosen)
    task = run.task
    with Progress(f"evaluating {run.path.name}", quiet) as watch:
        if all:
            found = evaluate_all(run.model, task, watch)
        elif data is not None:
            stored = read_split(task, Path(data), split)
            problems = [part.to(chosen) for part in stored.by_length.values()]
            found = evaluate_chunks(run.model, task, iter(problems), stored.count, sampled=True, watch=watch)
        else:
            found = evaluate_sample(
                run.model, task, examples or EXAMPLES, seed=seed, length=length, probe=probe, watch=watch
            )
    checked = check_greedy(run.model, task, greedy, seed, length) if greedy else None
    longest = task.source_tokens(length or task.lengths[1])
    positions = next(module for module in run.model.modules() if isinstance(module, Positions))
    on_files = run.config.data is not None
    result = Evaluated(str(run.path), found, checked, positions.untrained(longest), on_files)
    if run.writable:
        run.folder.record("evaluation", result.to_json())
    return result


def pretrained(name: str) -> Run:
    """A trained model that ships with the package: `headway.pretrained("adder")`."""
    return open_run(find_runs(f"pretrained:{name}")[0])


def open(path: str | Path) -> Run:
    """A finished run, from its folder."""
    return open_run(find_runs(path)[0], torch.device("cpu"))
