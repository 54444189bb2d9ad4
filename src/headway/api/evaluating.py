"""`headway evaluate` as functions."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.evaluation.exact import Evaluation, Greedy, check_greedy, device_of, evaluate_answers, evaluate_chunks
from headway.evaluation.examples import list_problems, number_of_problems, sample_problems
from headway.evaluation.question import EXAMPLES, EvaluateQuestion
from headway.evaluation.stacked import StackedModels
from headway.machine import choose_device, choose_precision
from headway.progress import Progress
from headway.question import asks
from headway.subjects.naming import find_runs
from headway.subjects.own import Run, can_be_stacked, open_one, open_run, open_stack
from headway.tasks import Problems, Task
from headway.tasks.data import read_split

SCHEMA = "headway.evaluation/1"
REQUEST = ("all", "examples", "length", "probe", "data", "split", "seed")  # fields that the answer repeats


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(Evaluation):
    """The evaluation of a run, with the question and what to be careful about."""

    run: str
    question: EvaluateQuestion
    greedy: Greedy | None
    untrained: list[int]  # positions whose signal training never touched

    def cautions(self) -> list[str]:
        """Lists what a reader should know before drawing conclusions from the numbers."""
        cautions = []
        if self.untrained:
            first, last = self.untrained[0], self.untrained[-1]
            cautions.append(f"Positions {first} to {last} were never trained: their signal is still as initialized.")
        if self.positive_rate in (0.0, 1.0):
            cautions.append("Every problem got the same answer: this is a constant, not a classifier.")
        return cautions

    def to_json(self) -> dict[str, Any]:
        request = {name: getattr(self.question, name) for name in REQUEST}
        return {
            "schema": SCHEMA,
            "run": self.run,
            "request": {**request, "data": None if request["data"] is None else str(request["data"])},
            "examples": self.examples,
            "errors": self.errors,
            "exact_match": self.exact_match,
            "interval": self.interval.to_json() if self.interval else None,
            "twins": self.twins.to_json() if self.twins else None,
            "greedy": asdict(self.greedy) if self.greedy else None,
            "held_out": {"examples": self.held_out.examples, "errors": self.held_out.errors},
            "strata": [asdict(stratum) for stratum in self.strata],
            "positive_rate": self.positive_rate,
            "untrained_positions": self.untrained,
            "cautions": self.cautions(),
        }


@asks(EvaluateQuestion)
def evaluate(subject: str | Path | Run, question: EvaluateQuestion) -> RunEvaluation:
    """Measures exact match of one run: on every problem, on fresh ones, or on a file of a data folder. An opened run
    is evaluated on its model's device."""
    if (precision := question.precision) != "auto":
        raise HeadwayError(f"`precision={precision}` is for a folder of runs of one shape on a GPU; leave it out")
    run = subject if isinstance(subject, Run) else open_one(subject, choose_device(question.device))
    greedy = _decode(run, question)
    problems, total, longest = _load_problems(run.task, question, device_of(run.model))
    with Progress(f"evaluating {run.path.name}", question.quiet) as watch:
        found = evaluate_chunks(run.model, run.task, problems, total, is_sample=not question.all, watch=watch)
    return _save(run, question, found, greedy, longest)


@asks(EvaluateQuestion)
def evaluate_runs(subject: str | Path, question: EvaluateQuestion) -> list[RunEvaluation]:
    """Evaluates every run of a folder; on a GPU runs of one shape are evaluated as one stack."""
    folders, device = find_runs(subject), choose_device(question.device)
    if len(folders) == 1 or device.type != "cuda" or not can_be_stacked(folders):
        return [evaluate(open_run(folder, device), question) for folder in folders]
    runs, weights = open_stack(folders, device)
    task = runs[0].task
    precision = torch.float32 if question.precision == "auto" else choose_precision(question.precision, device)
    greedy = [_decode(open_run(each, device), question) if question.greedy else None for each in folders]
    problems, total, longest = _load_problems(task, question, device)
    models = StackedModels(runs[0].model, weights, precision, one_shape=task.lengths[0] == task.lengths[1])
    with Progress(f"evaluating {len(runs):,} runs", question.quiet) as watch:
        found = evaluate_answers(models.answers, task, problems, total, is_sample=not question.all, watch=watch)
    answers = zip(runs, found, greedy, strict=True)
    return [_save(run, question, each, decoded, longest) for run, each, decoded in answers]


def _load_problems(task: Task, question: EvaluateQuestion, device: torch.device) -> tuple[Iterator[Problems], int, int]:
    """Chooses the problems to evaluate, in chunks, with their number and greatest length."""
    longest = question.length or task.lengths[1]
    if question.all:
        return list_problems(task, device), number_of_problems(task, "`all`"), longest
    if question.data is not None:
        stored = read_split(task, Path(question.data), question.split or "test")
        return (some.to(device) for some in stored.by_length.values()), stored.count, stored.lengths()[1]
    examples = question.examples or EXAMPLES
    return _draw(task, question, examples, device), examples, longest


def _draw(task: Task, question: EvaluateQuestion, examples: int, device: torch.device) -> Iterator[Problems]:
    seed, length, probe = question.seed, question.length, question.probe
    return sample_problems(task, examples, seed=seed, length=length, probe=probe, device=device)


def _decode(run: Run, question: EvaluateQuestion) -> Greedy | None:
    """Decodes fresh problems of the requested kind token by token."""
    if not question.greedy:
        return None
    problems = _draw(run.task, question, question.greedy, device_of(run.model))
    with Progress(f"decoding with {run.path.name}", question.quiet) as watch:
        return check_greedy(run.model, problems, question.greedy, watch=watch)


def _save(run: Run, question: EvaluateQuestion, found: Evaluation, greedy: Greedy | None, length: int) -> RunEvaluation:
    """Makes the answer and writes it to the run folder."""
    untrained = run.model.untrained(run.task.source_tokens(length), run.task.answer_tokens(length))
    result = RunEvaluation(**vars(found), run=str(run.path), question=question, greedy=greedy, untrained=untrained)
    if run.writable:
        run.folder.record(question.file_name(run.task.count is not None), result.to_json())
    return result
