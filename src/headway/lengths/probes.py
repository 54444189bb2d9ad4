"""The questions of a length study: every probe at every length, the same problems for every model.

Several probes share their sorted sequences; a problem that several ask is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.evaluation.examples import CPU_TOKENS
from headway.evaluation.intervals import Interval, wilson
from headway.evaluation.verdicts import right
from headway.machine import side_by_side
from headway.models import Model
from headway.tasks import Problems, Task
from headway.tasks.random import digest

GPU_TOKENS = 1_000_000
GPU_PAIRS = 1_500_000_000
"""of query and key, all heads and problems of a pass together, where each problem has an index of its own"""
REACHED = 0.99
MOST_TOKENS = 12_000_000
"""of all problems of a probe and length together: of very long ones fewer are asked, and their number is told"""


@dataclass(frozen=True)
class Measured:
    """How a model did on one probe at one length."""

    probe: str
    length: int
    examples: int
    errors: int
    positive_rate: float | None
    """the share of problems that a classifier answers with class 1"""

    @property
    def accuracy(self) -> float:
        return 1 - self.errors / self.examples

    @property
    def interval(self) -> Interval:
        return wilson(self.examples - self.errors, self.examples)

    @property
    def constant(self) -> bool:
        """Whether every problem got the same answer."""
        return self.positive_rate in (0.0, 1.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "probe": self.probe,
            "length": self.length,
            "examples": self.examples,
            "accuracy": self.accuracy,
            "interval": self.interval.to_json(),
            "positive_rate": self.positive_rate,
            "constant": self.constant,
        }

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Measured:
        errors = round((1 - raw["accuracy"]) * raw["examples"])
        return Measured(raw["probe"], raw["length"], raw["examples"], errors, raw["positive_rate"])


@dataclass(frozen=True)
class Sheet:
    """All problems of one length, each once, and which of them each probe asks."""

    length: int
    problems: Problems
    asked: dict[str, Int[Tensor, " row"]]

    @staticmethod
    def of(task: Task, length: int, probes: Sequence[str], examples: int, seed: int, device: torch.device) -> Sheet:
        fitting = min(examples, max(1, MOST_TOKENS // task.source_tokens(length)))
        drawn = [task.independent(seed, fitting, probe=probe, length=length, device=device) for probe in probes]
        every = Problems.join(drawn)
        known = digest(torch.cat((every.source, every.answer), dim=1))
        _, place = known.unique(return_inverse=True)
        first = place.new_full((int(place.max()) + 1,), len(place)).scatter_reduce(
            0, place, torch.arange(len(place), device=place.device), "amin"
        )
        rows = place.split([len(part) for part in drawn])
        return Sheet(length, every[first], dict(zip(probes, rows, strict=True)))


class Questions:
    """The sheets of a study, drawn when first asked for and kept for the next model."""

    def __init__(
        self,
        task: Task,
        lengths: Sequence[int],
        probes: Sequence[str],
        examples: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.task, self.lengths, self.probes, self.examples, self.seed = task, lengths, probes, examples, seed
        self.device, self._drawn = device, dict[int, Sheet]()

    def sheet(self, length: int) -> Sheet:
        if length not in self._drawn:
            self._drawn[length] = Sheet.of(self.task, length, self.probes, self.examples, self.seed, self.device)
        return self._drawn[length]

    def measure(self, model: Model, watch: Callable[[int, int], None] | None = None) -> list[Measured]:
        """Every probe at every length."""
        found = []
        for number, length in enumerate(self.lengths):
            sheet = self.sheet(length)
            correct, positive = answered(model, sheet.problems)
            for probe, rows in sheet.asked.items():
                share = float(positive[rows].double().mean()) if self.task.classes is not None else None
                found.append(Measured(probe, length, len(rows), int((~correct[rows]).sum()), share))
            if watch is not None:
                watch(number + 1, len(self.lengths))
        return found


def answered(model: Model, problems: Problems) -> tuple[Bool[Tensor, " row"], Bool[Tensor, " row"]]:
    """Which problems a model has right, and which it answers with class 1."""

    def piece(rows: slice) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            some = problems[rows]
            logits = model(some.source, some.answer)
            return right(logits, some), logits[:, 0].argmax(-1) == 1

    pieces = side_by_side(piece, list(_pieces(model, problems)), problems.source.device)
    correct, positive = zip(*pieces, strict=True)
    return torch.cat(correct), torch.cat(positive)


def _pieces(model: Model, problems: Problems) -> Iterator[slice]:
    """Rows for a forward pass each, as many as fit."""
    tokens = problems.source.shape[1] + problems.answer.shape[1]
    if problems.source.device.type == "cpu":
        rows = max(1, CPU_TOKENS // tokens)
    else:
        rows = max(1, GPU_TOKENS // tokens)
        if model.config.index != "sequential":
            rows = max(1, min(rows, GPU_PAIRS // (model.config.heads * tokens * tokens)))
    for start in range(0, len(problems), rows):
        yield slice(start, start + rows)


def reach(measured: Sequence[Measured], probe: str) -> int:
    """The longest tested length up to which the lower end of the 95% interval stays at or above 0.99; 0 for none."""
    reached = 0
    for each in sorted((m for m in measured if m.probe == probe), key=lambda m: m.length):
        if each.interval.low < REACHED:
            break
        reached = each.length
    return reached
