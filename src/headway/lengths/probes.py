"""The tests of a length study: every probe at every length, with the same problems for every model.

Some probes share their sorted sequences; a problem that occurs in several is answered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headway.compare.curves import CurvePoint, follow
from headway.evaluation.exact import HeldOut
from headway.evaluation.examples import CPU_TOKENS
from headway.evaluation.intervals import Interval, wilson
from headway.evaluation.verdicts import same_answer
from headway.machine import map_in_threads
from headway.models import Model
from headway.plugins import load_function, source_hash
from headway.tasks import Problems, Task
from headway.tasks.random import digest

GPU_TOKENS = 1_000_000
GPU_PAIRS = 1_500_000_000
"""pairs of query and key in a pass, over all heads and problems, if each problem has its own index"""


@dataclass(frozen=True)
class ProbeResult:
    """The result of a model on one probe at one length."""

    probe: str
    length: int
    examples: int
    errors: int
    positive_rate: float | None  # for two classes: the share of answers that are class 1
    held_out: HeldOut | None = None  # those of them that no run is ever trained on; None in older files

    @property
    def point(self) -> CurvePoint:
        return CurvePoint(self.probe, self.length, self.examples, self.errors)

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

    def to_json(self) -> dict[str, str | int | float | bool | list[float] | dict[str, int] | None]:
        keys = ("probe", "length", "examples", "accuracy", "interval", "positive_rate", "constant")
        held_out = None if self.held_out is None else self.held_out.to_json()
        return {key: getattr(self, key) for key in keys} | {"interval": self.interval.to_json(), "held_out": held_out}

    @staticmethod
    def from_json(raw: dict[str, Any]) -> ProbeResult:
        errors = round((1 - raw["accuracy"]) * raw["examples"])
        held_out = HeldOut.from_json(raw.get("held_out"))
        return ProbeResult(raw["probe"], raw["length"], raw["examples"], errors, raw["positive_rate"], held_out)


ProblemSet = tuple[Problems, dict[str, Tensor]]
"""All problems of one length, each once, and the rows that each probe uses."""


@dataclass(frozen=True)
class ProbeProblems:
    """The test problems of a study, drawn at first use and cached for the next model."""

    task: Task
    lengths: Sequence[int]
    probes: Sequence[str]
    examples: int
    seed: int
    device: torch.device
    most_tokens: int = 12_000_000
    """of one probe at one length: very long problems are fewer, and their number is reported"""
    _drawn: dict[int, ProblemSet] = field(default_factory=dict)

    def key(self) -> dict[str, int | list[int] | list[str]]:
        """Returns what the results depend on besides the model; results with another key are measured again."""
        own = [source_hash(load_function(probe)) for probe in self.probes if ":" in probe]
        key = {"lengths": list(self.lengths), "probes": list(self.probes), "examples": self.examples, "seed": self.seed}
        return {**key, **({"own_probes": own} if own else {})}

    def problems_at(self, length: int) -> ProblemSet:
        """Draws the problems of every probe at a length; fewer if they are very long."""
        if length in self._drawn:
            return self._drawn[length]
        rows = min(self.examples, max(1, self.most_tokens // self.task.source_tokens(length)))
        each = [self.task.independent(self.seed, rows, probe=p, length=length, device=self.device) for p in self.probes]
        every = Problems.join(each)
        _, place = digest(torch.cat((every.source, every.answer), dim=1)).unique(return_inverse=True)
        numbers = torch.arange(len(place), device=place.device)
        first = place.new_full((int(place.max()) + 1,), len(place)).scatter_reduce(0, place, numbers, "amin")
        self._drawn[length] = every[first], dict(zip(self.probes, place.split(rows), strict=True))
        return self._drawn[length]

    def measure(self, model: Model) -> list[ProbeResult]:
        """Tests a model on every probe at every length."""
        found = []
        for length in self.lengths:
            problems, probe_rows = self.problems_at(length)
            written = write_answers(model, problems)
            wrong, positive = ~same_answer(written, problems), written[:, 0] == 1
            unseen = self.task.held_out(problems)
            for probe, rows in probe_rows.items():
                share = float(positive[rows].double().mean()) if self.task.classes == 2 else None
                held_out = HeldOut(int(unseen[rows].sum()), int((wrong & unseen)[rows].sum()))
                found.append(ProbeResult(probe, length, len(rows), int(wrong[rows].sum()), share, held_out))
        return found


def write_answers(model: Model, problems: Problems) -> Int[Tensor, "row answer"]:
    """Returns the argmax token at each place of the answer, given the right tokens before it (teacher forcing)."""
    device, tokens = problems.source.device, problems.source.shape[1] + problems.answer.shape[1]
    rows = (CPU_TOKENS if device.type == "cpu" else GPU_TOKENS) // tokens
    if device.type != "cpu" and model.config.index != "sequential":
        rows = min(rows, GPU_PAIRS // (model.config.heads * tokens * tokens))

    def piece(start: int) -> Tensor:
        some = slice(start, start + max(1, rows))
        with torch.inference_mode():
            return model(problems.source[some], problems.answer[some]).argmax(-1)

    return torch.cat(map_in_threads(piece, range(0, len(problems), max(1, rows)), device))


def reach(measured: Sequence[ProbeResult], probe: str) -> int:
    """Returns the longest length up to which every point of a probe is shown to hold (accuracy at least 0.99), or 0.

    The level is corrected over all of `measured`, the points of one run; a study corrects over all its runs.
    """
    return follow([each.point for each in measured], probe, max(1, len(measured))).reach
