"""`headway evaluate` as functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.evaluation.exact import Evaluation, device_of, evaluate_answers, evaluate_chunks
from headway.evaluation.examples import list_problems, number_of_problems, sample_problems
from headway.evaluation.greedy import Greedy, check_greedy
from headway.evaluation.stacked import StackedModels
from headway.machine import choose_device, choose_precision
from headway.progress import Progress
from headway.runs.config import check_seed, folder_name
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, find_runs, one_shape, open_one, open_run, open_stack
from headway.tasks import Problems, Task
from headway.tasks.data import Stored, read_split

EXAMPLES = 10_000


@dataclass(frozen=True)
class Request:
    """What an evaluation was asked to look at."""

    all: bool = False
    examples: int | None = None
    length: int | None = None
    probe: str = "default"
    data: str | None = None
    split: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        fresh = self.examples is not None or self.length is not None or self.probe != "default"
        if self.all and (fresh or self.data is not None):
            raise HeadwayError("--all takes every problem; leave out --examples, --length, --probe and --data")
        if self.data is not None and fresh:
            raise HeadwayError("--data takes the problems of a file; leave out --examples, --length and --probe")
        if self.split is not None and self.data is None:
            raise HeadwayError(f"--split {self.split} names a file of a data folder; name the folder with --data")
        if self.examples is not None and self.examples < 1:
            raise HeadwayError(f"examples is {self.examples}; it must be at least 1")
        check_seed(self.seed)

    def study(self, task: Task) -> str:
        """The file that keeps the result: one of another kind, or a sample, does not take a whole one's place."""
        parts = []
        if self.length is not None:
            parts.append(f"length-{self.length}")
        if self.probe != "default":
            parts.append(folder_name(self.probe))
        if self.data is not None:
            parts.append(f"data-{self.split or 'test'}")
        if not parts and not self.all and task.count is not None:
            parts.append("sample")
        return "-".join(["evaluation", *parts])


@dataclass(frozen=True)
class Evaluated:
    """An evaluation with what was asked and what to be careful about."""

    run: str
    request: Request
    evaluation: Evaluation
    greedy: Greedy | None
    untrained: list[int]
    """positions whose signal training never touched"""

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
        return said

    def to_json(self) -> dict[str, Any]:
        found = self.evaluation
        return {
            "run": self.run,
            "request": asdict(self.request),
            "examples": found.examples,
            "errors": found.errors,
            "exact_match": found.exact_match,
            "interval": found.interval.to_json() if found.interval else None,
            "greedy": asdict(self.greedy) if self.greedy else None,
            "held_out": {"examples": found.held_out.examples, "errors": found.held_out.errors},
            "strata": [asdict(stratum) for stratum in found.strata],
            "positive_rate": found.positive_rate,
            "untrained_positions": self.untrained,
            "cautions": self.cautions(),
        }


def evaluate(
    subject: str | Path | Run,
    *,
    all: bool = False,
    examples: int | None = None,
    length: int | None = None,
    probe: str = "default",
    greedy: int = 0,
    data: str | Path | None = None,
    split: str | None = None,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = True,
) -> Evaluated:
    """Exact match of one run: on every problem, on fresh ones, or on a file of a data folder.

    An opened run is evaluated on the device where its model is.
    """
    request = Request(all, examples, length, probe, None if data is None else str(data), split, seed)
    run = subject if isinstance(subject, Run) else open_one(subject, choose_device(device))
    stored = None if data is None else read_split(run.task, Path(data), split or "test")
    return _evaluated(run, request, greedy, stored, quiet)


def evaluate_runs(
    subject: str | Path,
    *,
    greedy: int = 0,
    device: str = "auto",
    quiet: bool = True,
    precision: str = "auto",
    **asked: Any,
) -> list[Evaluated]:
    """The same for a folder of runs; on a GPU those of one shape are evaluated as one stack."""
    request, chosen = Request(**asked), choose_device(device)
    folders = find_runs(subject)
    if greedy < 0:
        raise HeadwayError(f"check_greedy is {greedy}; it must be at least 0")
    if len(folders) > 1 and chosen.type == "cuda" and one_shape(folders):
        fast = torch.float32 if precision == "auto" else choose_precision(precision, chosen)
        return _evaluated_together(folders, request, greedy, fast, chosen, quiet)
    if precision != "auto":
        raise HeadwayError(f"--precision {precision} is for a folder of runs of one shape on a GPU; leave it out")
    results, stored = [], None
    for folder in folders:
        run = open_run(folder, chosen)
        if request.data is not None and stored is None:
            stored = read_split(run.task, Path(request.data), request.split or "test")
        results.append(_evaluated(run, request, greedy, stored, quiet))
    return results


def _evaluated(run: Run, request: Request, greedy: int, stored: Stored | None, quiet: bool) -> Evaluated:
    if greedy < 0:
        raise HeadwayError(f"check_greedy is {greedy}; it must be at least 0")
    model, task = run.model, run.task
    checked = _decoded(run, request, greedy, quiet) if greedy else None
    problems, total = _problems(task, request, stored, device_of(model))
    with Progress(f"evaluating {run.path.name}", quiet) as watch:
        found = evaluate_chunks(model, task, problems, total, is_sample=not request.all, watch=watch)
    return _kept(run, request, found, checked, stored)


def _evaluated_together(
    folders: Sequence[RunFolder],
    request: Request,
    greedy: int,
    precision: torch.dtype,
    device: torch.device,
    quiet: bool,
) -> list[Evaluated]:
    runs, weights = open_stack(folders, device)
    task = runs[0].task
    if greedy and task.classes is not None:
        raise HeadwayError("a classifier answers with a class; there is nothing to decode: leave out --check-greedy")
    stored = None if request.data is None else read_split(task, Path(request.data), request.split or "test")
    problems, total = _problems(task, request, stored, device)
    models = StackedModels(runs[0].model, weights, precision, one_shape=task.lengths[0] == task.lengths[1])
    with Progress(f"evaluating {len(runs):,} runs", quiet) as watch:
        found = evaluate_answers(models.answers, task, problems, total, is_sample=not request.all, watch=watch)
    results = []
    for run, evaluation in zip(runs, found, strict=True):
        checked = _decoded(open_run(run.folder, device), request, greedy, quiet) if greedy else None
        results.append(_kept(run, request, evaluation, checked, stored))
    return results


def _problems(
    task: Task, request: Request, stored: Stored | None, device: torch.device
) -> tuple[Iterator[Problems], int]:
    """What an evaluation was asked to look at, in chunks, and how many problems that is."""
    if request.all:
        return list_problems(task, device), number_of_problems(task, "--all")
    if stored is not None:
        return (problems.to(device) for problems in stored.by_length.values()), stored.count
    wanted = request.examples or EXAMPLES
    return sample_problems(
        task, wanted, seed=request.seed, length=request.length, probe=request.probe, device=device
    ), wanted


def _kept(run: Run, request: Request, found: Evaluation, greedy: Greedy | None, stored: Stored | None) -> Evaluated:
    """The result, also kept in the run folder."""
    task = run.task
    longest = request.length or (task.lengths if stored is None else stored.lengths())[1]
    untrained = run.model.untrained(task.source_tokens(longest), task.answer_tokens(longest))
    result = Evaluated(str(run.path), request, found, greedy, untrained)
    if run.writable:
        run.folder.record(request.study(task), result.to_json())
    return result


def _decoded(run: Run, request: Request, examples: int, quiet: bool) -> Greedy:
    """Fresh problems of the kind that was asked for, decoded token by token."""
    where = device_of(run.model)
    problems = sample_problems(
        run.task, examples, seed=request.seed, length=request.length, probe=request.probe, device=where
    )
    with Progress(f"decoding with {run.path.name}", quiet) as watch:
        return check_greedy(run.model, problems, examples, watch=watch)
