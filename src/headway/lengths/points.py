"""Measures a user's model on problems of one length: how many are right, how often each answer is given, or why it
cannot run.

The model runs as it is, without hooks, in pieces that fit memory. What it raises past its training lengths is a result
of that length; within them it ends the study.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.attach.whole import ReaderRunner
from headway.compare.curves import CANNOT_RUN, CONFIDENCE, ONE_ANSWER, CurvePoint
from headway.errors import HeadwayError
from headway.evaluation.exact import HeldOut
from headway.evaluation.intervals import Interval, exact_interval, wilson
from headway.evaluation.shares import NEARLY, AnswerShares, mark_answered, share_answers
from headway.evaluation.verdicts import same_answer
from headway.lengths.probes import ProbeResult
from headway.machine import is_out_of_memory
from headway.subjects.given import describe
from headway.subjects.subject import Subject
from headway.tasks import Problems

ShareJson = dict[str, str | float]
PointJson = dict[str, str | int | float | bool | list[float] | list[ShareJson] | ShareJson | dict[str, int] | None]
LONGEST_REASON = 160  # characters of what a model raised


@dataclass(frozen=True)
class SubjectPoint:
    """The result of a user's model on one probe at one length."""

    probe: str
    length: int
    tokens: int  # of a source
    examples: int  # 0 where it cannot run
    errors: int
    shares: AnswerShares | None = None
    outputs: int = 0  # tokens that the model chooses among
    not_numbers: int = 0  # problems whose logits are not numbers; they count as wrong
    held_out: HeldOut | None = None  # of the task's held-out tenth
    cannot_run: str | None = None
    default: bool = True  # whether it is of the probe on which a constant answer must not pass

    @property
    def point(self) -> CurvePoint:
        """The point of the curve; where nearly every right answer is the same, holding proves nothing."""
        stopped, note = None, ""
        if self.cannot_run is not None:
            stopped, note = CANNOT_RUN, self.cannot_run
        elif self.default and self.shares is not None and self.shares.chance >= NEARLY:
            stopped = ONE_ANSWER
            note = f"always giving the commonest answer is right for {self.shares.chance:.1%} of its problems"
        return CurvePoint(self.probe, self.length, self.examples, self.errors, stopped, note)

    @property
    def accuracy(self) -> float | None:
        return None if self.cannot_run is not None else 1 - self.errors / self.examples

    @property
    def interval(self) -> Interval | None:
        """Wilson's 95% interval of this point alone."""
        return None if self.cannot_run is not None else wilson(self.examples - self.errors, self.examples)

    def corrected(self, tests: int) -> Interval | None:
        """The exact interval at the level at which `tests` points hold together."""
        if self.cannot_run is not None:
            return None
        return exact_interval(self.examples - self.errors, self.examples, 1 - (1 - CONFIDENCE) / tests)

    @property
    def positive_rate(self) -> float | None:
        """For two classes: the share of answers that are class 1."""
        if self.shares is None or self.outputs != 2 or len(self.shares.commonest[0].answer) != 1:
            return None
        return next((each.given for each in self.shares.commonest if each.answer == (1,)), 0.0)

    def as_result(self) -> ProbeResult:
        """Returns this point as the result of one of Headway's models, for the diagnosis of a task."""
        return ProbeResult(self.probe, self.length, self.examples, self.errors, self.positive_rate, self.held_out)

    def to_json(self, tests: int) -> PointJson:
        shares, bounds, corrected = self.shares, self.interval, self.corrected(tests)
        constancy = None if shares is None else shares.constancy
        return {
            "probe": self.probe,
            "length": self.length,
            "tokens": self.tokens,
            "examples": self.examples,
            "accuracy": self.accuracy,
            "interval": bounds and bounds.to_json(),
            "corrected": corrected and corrected.to_json(),
            "verdict": self.point.judge(tests),
            "positive_rate": self.positive_rate,
            "answers": [] if shares is None else [each.to_json() for each in shares.commonest],
            "different_answers": None if shares is None else shares.different,
            "commonest_token": None if shares is None or shares.token is None else shares.token.to_json(),
            "constant": None if shares is None else constancy == "constant",
            "nearly_constant": None if shares is None else constancy in ("nearly", "constant"),
            "chance": None if shares is None else shares.chance,
            "not_numbers": self.not_numbers,
            "held_out": None if self.held_out is None else self.held_out.to_json(),
            "cannot_run": self.cannot_run,
        }


def measure_point(
    runner: ReaderRunner, problems: Problems, probe: str, length: int, held_out: Tensor | None, default: bool
) -> SubjectPoint:
    """Measures a model on these problems; raises HeadwayError, or whatever the model raises."""
    logits_seen = list[int]()

    def piece(rows: slice) -> Tensor:
        with torch.no_grad():
            logits = read_checked(runner, problems[rows])
        logits_seen.append(logits.shape[-1])
        return mark_answered(logits)

    written = torch.cat(runner.map_pieces(piece, problems))
    wrong = ~same_answer(written, problems)
    unseen = None if held_out is None else HeldOut(int(held_out.sum()), int((wrong & held_out).sum()))
    tokens, count = problems.source.shape[1], int(wrong.sum())
    shares, lost = share_answers(written, problems), int((written < 0).any(1).sum())
    return SubjectPoint(
        probe, length, tokens, len(problems), count, shares, logits_seen[0], lost, unseen, default=default
    )


def read_checked(runner: ReaderRunner, problems: Problems) -> Tensor:
    """Runs the model on problems that fit in one pass, and checks the logits that it returns."""
    logits, answer = runner.run(problems), problems.answer
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != answer.shape:
        raise HeadwayError(
            f"{runner.name} returns {describe(logits)} for answers of shape {tuple(answer.shape)}; give reader=, a "
            "function of the model, sources and answers that returns logits [row, answer, token]"
        )
    if not logits.is_floating_point():
        raise HeadwayError(f"{runner.name} returns {describe(logits)}; it must return logits, not tokens")
    largest = int(answer.max())
    if largest >= logits.shape[-1]:
        remedy = "return two logits, 0 and the logit, for one yes or no" if logits.shape[-1] == 1 else ""
        outside = f"a right answer is {largest}, outside the {logits.shape[-1]} outputs of {runner.name}"
        raise HeadwayError(outside + (f"; {remedy}" if remedy else "; number the answers from 0"))
    return logits


def unrunnable(subject: Subject, problems: Problems, probe: str, length: int, error: Exception) -> SubjectPoint:
    """Returns the point of a length at which the model raised an error."""
    words = " ".join(str(error).split())
    shown = words if len(words) <= LONGEST_REASON else f"{words[: LONGEST_REASON - 1]}…"
    reason = shown if isinstance(error, HeadwayError) else f"{type(error).__name__}: {shown}"
    if is_out_of_memory(error):
        reason = "out of memory, with one problem at a time"
    return SubjectPoint(probe, length, problems.source.shape[1], 0, 0, cannot_run=reason)
