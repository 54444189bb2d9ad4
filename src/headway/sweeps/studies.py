"""What may be asked of each trial once it is trained. A study is its options, checked before anything is trained; it
writes into the trial's folder and answers with a few metrics for the table."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import torch

from headway.api.certifying import certify_run
from headway.api.evaluating import Request, evaluate
from headway.api.examining import examine
from headway.api.heads import study_heads
from headway.api.lengths import DIGITS, LENGTHS
from headway.errors import HeadwayError, unknown
from headway.heads.ablation import Margin, TooWeak
from headway.heads.study import Asked as HeadsAsked
from headway.heads.variants import ABLATIONS
from headway.lengths.extrapolation import (
    LEAST_EXAMPLES,
    check_lengths,
    errors_in_range,
    measured,
    questions_of,
)
from headway.lengths.probes import Questions
from headway.machine import choose_precision
from headway.runs.config import RunConfig
from headway.runs.shapes import fits
from headway.subjects.own import Run
from headway.sweeps.file import Study
from headway.tasks import Task, create_task


class Asked(ABC):
    """A study that knows how to be made of a trial."""

    def check(self, config: RunConfig) -> None:  # noqa: B027
        """Refuses what cannot be asked of such a run."""

    @abstractmethod
    def of(self, run: Run, device: torch.device, precision: str) -> dict[str, Any]:
        """The metrics of a trained run."""


@dataclass(frozen=True)
class Evaluate(Asked):
    all: bool = False
    examples: int | None = None
    length: int | None = None
    probe: str = "default"
    greedy: int = 0
    seed: int = 0

    def check(self, config: RunConfig) -> None:
        task = create_task(config.task, config.options)
        Request(self.all, self.examples, self.length, self.probe, seed=self.seed)
        task.find_probe(self.probe)

    def of(self, run: Run, device: torch.device, precision: str) -> dict[str, Any]:
        found = evaluate(
            run,
            all=self.all,
            examples=self.examples,
            length=self.length,
            probe=self.probe,
            greedy=self.greedy,
            seed=self.seed,
        )
        return {"exact_match": found.exact_match, "errors": found.errors, "examples": found.examples}


@dataclass(frozen=True)
class Heads(Asked):
    ablation: str = "zero"
    all: bool = False
    examples: int | None = None
    max_drop: float = 0.01
    max_loss_increase: float | None = None
    beam: int = 1
    budget: float = 0.0
    seed: int = 0

    def check(self, config: RunConfig) -> None:
        margin = Margin(self.max_drop, self.max_loss_increase)
        HeadsAsked(self.ablation, self.examples, self.all, margin, self.seed, self.beam, self.budget)
        if self.ablation not in ABLATIONS:
            raise unknown("ablation", self.ablation, ABLATIONS)

    def of(self, run: Run, device: torch.device, precision: str) -> dict[str, Any]:
        asked = {entry.name: getattr(self, entry.name) for entry in fields(Heads)}
        try:
            found = study_heads(run, **asked).to_json()
        except TooWeak as error:  # what a trial may well turn out to be
            return {"heads_refused": str(error)}
        together = found["together"] or {"count": None, "accuracy": None}
        return {
            "baseline": found["baseline"],
            "heads_alone": (found["alone"] or {"count": None})["count"],
            "heads_together": together["count"],
            "together_accuracy": together["accuracy"],
        }


@dataclass(frozen=True)
class Lengths(Asked):
    lengths: list[int] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)
    examples: int = LEAST_EXAMPLES
    seed: int = 0

    def check(self, config: RunConfig) -> None:
        task = create_task(config.task, config.options)
        for probe in self.probes:
            task.find_probe(probe)
        if self.examples < LEAST_EXAMPLES:
            raise HeadwayError(f"examples of studies.lengths is {self.examples}; at least {LEAST_EXAMPLES:,}")
        check_lengths(config, self.asked_lengths(task))

    def asked_lengths(self, task: Task) -> Sequence[int]:
        return self.lengths or (DIGITS if task.classes is None else LENGTHS)

    def asked_probes(self, task: Task) -> Sequence[str]:
        return tuple(self.probes) or task.probes

    def of(self, run: Run, device: torch.device, precision: str) -> dict[str, Any]:
        probes, lengths = tuple(self.asked_probes(run.task)), tuple(self.asked_lengths(run.task))
        questions = _questions(run, lengths, probes, self.examples, self.seed, device)
        found = measured(run.folder, questions, choose_precision(precision, device))
        converged = found["converged"]
        reached = {f"reach.{probe}": number if converged else None for probe, number in found["reach"].items()}
        first = reached[f"reach.{probes[0]}"]
        return {"in_range": found["in_range"], "converged": converged, "reach": first, **reached}


_kept: dict[str, Questions] = {}


def _questions(
    run: Run, lengths: Sequence[int], probes: Sequence[str], examples: int, seed: int, device: torch.device
) -> Questions:
    """Those of the trial before, where they are the same."""
    key = json.dumps(
        [run.config.task, run.config.options, lengths, probes, examples, seed, str(device)], sort_keys=True
    )
    if key not in _kept:
        _kept.clear()
        _kept[key] = questions_of(run.task, lengths, probes, examples, seed, device)
    return _kept[key]


@dataclass(frozen=True)
class Doctor(Asked):
    strict: bool = False

    def of(self, run: Run, device: torch.device, precision: str) -> dict[str, Any]:
        found = examine(run, strict=self.strict)
        run.folder.record("doctor", found.to_json())
        return {"healthy": found.healthy, "alarms": ", ".join(found.alarms)}


@dataclass(frozen=True)
class Certify(Asked):
    def of(self, run: Run, device: torch.device, precision: str) -> dict[str, Any]:
        found = certify_run(run.path, device=str(device.type))
        return {"certified": found["certified"], "smallest_margin": found["smallest_margin"]}


@dataclass(frozen=True)
class InRange(Asked):
    """By what the best value of an axis is chosen: problems of the training lengths, and no others."""

    def of(self, run: Run, device: torch.device, precision: str) -> dict[str, Any]:
        return {"choosing_errors": errors_in_range(run.folder, device)}


IN_RANGE = Study("in-range")
STUDIES: dict[str, type] = {
    "evaluate": Evaluate, "heads": Heads, "lengths": Lengths, "doctor": Doctor, "certify": Certify,
}  # fmt: skip


def asked(study: Study) -> Asked:
    """A study with its options; one that is unknown or ill-typed is named."""
    if study == IN_RANGE:
        return InRange()
    if study.name not in STUDIES:
        raise unknown("study", study.name, STUDIES)
    kind = STUDIES[study.name]
    hints = get_type_hints(kind)
    for name, value in study.options.items():
        if name not in hints:
            raise unknown(f"option of studies.{study.name}", name, hints)
        if not fits(value, hints[name]):
            raise HeadwayError(f"{name} of studies.{study.name} is {value!r}; see 'headway {study.name} --help'")
    return kind(**study.options)


def check_studies(studies: Sequence[Study], configs: Sequence[RunConfig]) -> None:
    """Refuses before anything is trained what cannot be asked of one of these runs; one of each shape is looked at."""
    every = [asked(study) for study in studies]
    for config in configs:
        for each in every:
            each.check(config)
