"""The test problems of a subject: drawn by the user's functions or by a task, and checked before any is answered.

Each probe at each length is drawn once, in as many rows as were asked for. A function that returns something else, or
something else the second time, gets one sentence that names it.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from headway.errors import HeadwayError, unknown
from headway.plugins import load_function
from headway.subjects.drawing import ProblemsOfLength
from headway.subjects.given import describe, find_fault
from headway.subjects.subject import Subject
from headway.tasks import Problems, Task

DEFAULT = "default"
TWICE = 64  # rows that are drawn twice, to see whether they are the same
MOST_TOKENS = 12_000_000  # of one probe at one length: very long problems are fewer, and their number is reported


@dataclass(frozen=True)
class DrawnProblems:
    """Draws and checks the problems of a subject."""

    subject: Subject
    examples: int
    seed: int
    tokens: dict[int, tuple[int, str]] = field(default_factory=dict)
    """by length: the number of tokens of a source, and the probe that was first drawn there"""

    @property
    def task(self) -> Task | None:
        return self.subject.problems if isinstance(self.subject.problems, Task) else None

    def find_probes(self, asked: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the probes to test, those asked for or all; raises where one does not exist."""
        own = (DEFAULT,) if self.task is None else self.task.probes
        known = tuple(dict.fromkeys((*own, *self.subject.probes)))
        for name in asked:
            if name not in known and ":" not in name:
                raise unknown("probe", name, known)
        return asked or known

    def rows_at(self, length: int) -> int:
        return min(self.examples, max(1, MOST_TOKENS // length))

    def draw(self, probe: str, length: int, rows: int | None = None, seed: int = 0) -> Problems:
        """Draws the problems of a probe at a length; `seed` numbers the draws of a study."""
        rows, number = rows or self.rows_at(length), self.seed * 16 + seed
        drawn = self._call(probe, length, rows, number)
        self._check(probe, length, rows, drawn)
        return drawn.to(self.subject.device)

    def check_repeats(self, probe: str, length: int) -> None:
        """Raises where the same length, rows and seed give other problems the second time."""
        one, two = (self._call(probe, length, TWICE, self.seed * 16) for _ in range(2))
        self._check(probe, length, TWICE, one)
        self._check(probe, length, TWICE, two)
        if not (torch.equal(one.source, two.source) and torch.equal(one.answer, two.answer)):
            remedy = "draw them with torch.Generator().manual_seed(seed)"
            raise self._error(probe, length, f"draws other problems the second time, with the same seed; {remedy}")

    def _call(self, probe: str, length: int, rows: int, seed: int) -> Any:
        task = self.task
        if task is not None and probe not in self.subject.probes:
            return task.independent(seed, rows, probe=probe, length=length)
        try:
            return self._function(probe)(length, rows, seed)
        except HeadwayError:
            raise
        except Exception as error:  # a user's function may raise anything
            cause = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            raise self._error(probe, length, f"failed ({cause}); call it by itself to see the traceback") from error

    def _function(self, probe: str) -> ProblemsOfLength:
        if probe in self.subject.probes:
            return self.subject.probes[probe]
        if probe != DEFAULT:
            return load_function(probe)
        assert self.subject.problems is not None
        assert not isinstance(self.subject.problems, Task | str)
        return self.subject.problems

    def _check(self, probe: str, length: int, rows: int, drawn: Any) -> None:
        """Raises where a function does not return the problems that it was asked for."""
        if not isinstance(drawn, Problems):
            raise self._error(probe, length, f"returned {describe(drawn)}; return headway.Problems")
        source, answer = drawn.source, drawn.answer
        if answer.is_floating_point():
            raise self._error(probe, length, f"has {describe(answer)} as answers; return whole numbers (long)")
        if answer.dim() == 1:
            raise self._error(probe, length, f"has {describe(answer)} as answers; return answer[:, None], a row each")
        fault = find_fault(drawn) if not source.is_floating_point() or source.dim() == 2 else None
        if len(drawn) != rows and len(drawn) == len(answer):
            raise self._error(probe, length, f"returned {len(drawn):,} rows, asked for {rows:,}; return as many")
        if fault is not None and rows > 1:
            raise self._error(probe, length, fault)
        if answer.shape[1] < 1 or int(answer.min()) < 0:
            what = "no token" if answer.shape[1] < 1 else f"the token {int(answer.min())}"
            raise self._error(probe, length, f"has an answer with {what}; answers are tokens from 0 on")
        self._check_length(probe, length, source.shape[1])

    def _check_length(self, probe: str, length: int, tokens: int) -> None:
        if tokens < length:
            what = f"returned sources of {tokens} tokens; a problem of length {length} has at least {length}"
            raise self._error(probe, length, what)
        expected, first = self.tokens.setdefault(length, (tokens, probe))
        if expected != tokens:
            what = f"returned sources of {tokens} tokens and {expected} for probe {first}"
            raise self._error(probe, length, f"{what}; all problems of one length have the same number")
        for other, (count, _) in self.tokens.items():
            if other != length and (other < length) != (count < tokens):
                what = f"returned sources of {tokens} tokens, and of {count} at length {other}"
                raise self._error(probe, length, f"{what}; longer problems have more tokens")

    def _error(self, probe: str, length: int, what: str) -> HeadwayError:
        name = "problems" if probe == DEFAULT else f"probe {probe!r}"
        return HeadwayError(f"{name} of {self.subject.name} at length {length:,} {what}")
