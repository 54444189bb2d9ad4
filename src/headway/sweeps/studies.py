"""The studies of a sweep, which run on each trained trial. A study is its options, checked before anything is trained;
it writes to the trial's folder and returns a few metrics for the table."""

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, get_type_hints

import torch

from headway.api.certifying import certify_run
from headway.api.evaluating import evaluate
from headway.api.examining import examine
from headway.api.heads import study_heads
from headway.errors import HeadwayError, unknown
from headway.evaluation.question import EvaluateQuestion
from headway.heads.ablation import TooWeak
from headway.heads.ablations import find_ablation
from headway.heads.question import HeadsQuestion
from headway.lengths.extrapolation import check_lengths, lengths_of
from headway.lengths.measuring import errors_in_range, measure_run, prepare_problems
from headway.lengths.probes import ProbeProblems, reach
from headway.lengths.question import LEAST_EXAMPLES
from headway.machine import choose_precision
from headway.runs.config import RunConfig
from headway.runs.shapes import fits
from headway.subjects.own import Run
from headway.tasks import Task, create_task
from headway.trials.trial import Metrics, Study


class StudyOfTrial(ABC):
    """A study that can be run on a trial."""

    fixed: ClassVar[tuple[str, ...]] = ()  # fields of its question that the sweep sets, not its file

    def check(self, config: RunConfig) -> None:  # noqa: B027
        """Rejects options that are not possible for such a run."""

    @abstractmethod
    def make(self, run: Run, device: torch.device, precision: str) -> Metrics:
        """Studies a trained run and returns its metrics."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOfTrial(EvaluateQuestion, StudyOfTrial):
    fixed = ("device", "quiet", "data", "split", "precision")

    def check(self, config: RunConfig) -> None:
        create_task(config.task, config.options).find_probe(self.probe)

    def make(self, run: Run, device: torch.device, precision: str) -> Metrics:
        found = evaluate(run, self)
        return {"exact_match": found.exact_match, "errors": found.errors, "examples": found.examples}


@dataclass(frozen=True, kw_only=True)
class HeadsOfTrial(HeadsQuestion, StudyOfTrial):
    fixed = ("device", "quiet", "metric", "memory", "hub", "kinds", "out")
    budget: float | int | None = 0.0

    def check(self, config: RunConfig) -> None:
        self.check_unused("a trial")
        find_ablation(self.ablation)

    def make(self, run: Run, device: torch.device, precision: str) -> Metrics:
        try:
            found = study_heads(run, self).to_json()
        except TooWeak as error:  # an expected outcome of a trial, not an error
            return {"heads_refused": str(error)}
        alone, together = found["alone"] or {"count": None}, found["together"] or {"count": None, "accuracy": None}
        counts = {"heads_alone": alone["count"], "heads_together": together["count"]}
        return {"baseline": found["baseline"], **counts, "together_accuracy": together["accuracy"]}


@dataclass(frozen=True)
class LengthsOfTrial(StudyOfTrial):
    lengths: list[int] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)
    examples: int = LEAST_EXAMPLES
    seed: int = 0

    def check(self, config: RunConfig) -> None:
        task = create_task(config.task, config.options)
        for probe in self.probes:
            task.find_probe(probe)
        if self.examples < LEAST_EXAMPLES:
            raise HeadwayError(f"examples of studies.lengths is {self.examples}; use at least {LEAST_EXAMPLES:,}")
        check_lengths(config, self.test_lengths(task))

    def test_lengths(self, task: Task) -> tuple[int, ...]:
        return lengths_of(task, self.lengths)

    def test_probes(self, task: Task) -> tuple[str, ...]:
        return tuple(self.probes) or task.probes

    def make(self, run: Run, device: torch.device, precision: str) -> Metrics:
        probes, lengths = self.test_probes(run.task), self.test_lengths(run.task)
        about = [run.config.task, run.config.options, lengths, probes, self.examples, self.seed, str(device)]
        if (key := json.dumps(about, sort_keys=True)) not in _cache:  # otherwise reuse those of the last trial
            _cache.clear()
            _cache[key] = prepare_problems(run.task, lengths, probes, self.examples, self.seed, device)
        found = measure_run(run.folder, _cache[key], choose_precision(precision, device))
        reached = {f"reach.{probe}": reach(found.rows, probe) if found.converged else None for probe in probes}
        first = reached[f"reach.{probes[0]}"]
        return {"in_range": found.in_range, "converged": found.converged, "reach": first, **reached}


_cache: dict[str, ProbeProblems] = {}


@dataclass(frozen=True)
class ExaminationOfTrial(StudyOfTrial):
    strict: bool = False

    def make(self, run: Run, device: torch.device, precision: str) -> Metrics:
        found = examine(run, strict=self.strict)
        run.folder.record("doctor", found.to_json())
        return {"healthy": found.healthy, "alarms": ", ".join(found.alarms)}


@dataclass(frozen=True)
class CertificateOfTrial(StudyOfTrial):
    def make(self, run: Run, device: torch.device, precision: str) -> Metrics:
        found = certify_run(run.path, device=str(device.type))
        return {"certified": found["certified"], "smallest_margin": found["smallest_margin"]}


@dataclass(frozen=True)
class ErrorsInRange(StudyOfTrial):
    """Counts the errors that choose the best value of an axis, on problems of the training lengths only."""

    def make(self, run: Run, device: torch.device, precision: str) -> Metrics:
        return {"choosing_errors": errors_in_range(run.folder, device)}


IN_RANGE = Study("in-range")
STUDIES: dict[str, type[StudyOfTrial]] = {
    "evaluate": EvaluationOfTrial, "heads": HeadsOfTrial, "lengths": LengthsOfTrial, "doctor": ExaminationOfTrial,
    "certify": CertificateOfTrial,
}  # fmt: skip


def study_trial(study: Study, run: Run, device: torch.device, precision: str) -> Metrics:
    """Runs a study on a trained trial; called by the worker that trained it."""
    return find_study(study).make(run, device, precision)


def find_study(study: Study) -> StudyOfTrial:
    """Finds a study and checks its options; an error names those that are unknown or ill-typed."""
    if study == IN_RANGE:
        return ErrorsInRange()
    if study.name not in STUDIES:
        raise unknown("study", study.name, STUDIES)
    kind = STUDIES[study.name]
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in (*kind.fixed, "fixed")}
    for name, value in study.options.items():
        if name not in hints:
            raise unknown(f"option of studies.{study.name}", name, hints)
        if not fits(value, hints[name]):
            raise HeadwayError(f"{name} of studies.{study.name} is {value!r}; see 'headway {study.name} --help'")
    return kind(**study.options)


def check_studies(studies: Sequence[Study], configs: Sequence[RunConfig]) -> None:
    """Rejects, before anything is trained, studies that are impossible for one of these configs."""
    for each, config in itertools.product(map(find_study, studies), configs):
        each.check(config)
