"""What an output can see that it should not: whether earlier logits, and the predictions of a teacher-forced pass,
change with later tokens of the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.doctor.alignment import align, place_at
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.tasks import Problems

if TYPE_CHECKING:
    from headway.doctor.patient import Patient

ROUNDING = 1e-3  # by which logits of an ablation may move
NO_WORSE = 0.02  # a difference in accuracy that says nothing on a few problems


@dataclass(frozen=True)
class Leaks:
    forced: tuple[float, ...] = ()
    """for each answer token, the share of its teacher-forced predictions that change with itself or later ones"""
    copied: tuple[int, ...] = ()
    """the answer tokens whose teacher-forced prediction is always the token itself, whatever it is"""
    ablate: float | None = None
    """how far earlier logits of the pass in which heads are ablated move with later tokens, with all of them open; None
    if not measured"""
    decode: float | None = None
    """how far earlier logits of `decode` move with later tokens, in one pass; None if not measured"""
    tolerance: float = 0.0
    one_pass: float = 0.0
    """accuracy with `decode` in one pass"""
    stepwise: float = 0.0
    """accuracy with `decode` prefix by prefix"""

    @property
    def given(self) -> tuple[int, ...]:
        """The first answer tokens that the teacher-forced pass copies while it does not see later ones."""
        first = tuple(at for place, at in enumerate(self.copied) if place == at)
        others = [share for at, share in enumerate(self.forced[:-1]) if at not in first]
        return first if first and others and not any(others) else ()

    @property
    def in_forced(self) -> float:
        """The largest share of teacher-forced predictions that change with later tokens."""
        return 0.0 if self.given else max(self.forced, default=0.0)

    @property
    def in_ablation(self) -> bool:
        return self.ablate is not None and self.ablate > max(ROUNDING, self.tolerance)

    @property
    def in_decode(self) -> bool:
        return self.decode is not None and self.decode > self.tolerance

    @property
    def only_in_decode(self) -> bool:
        """Whether only `decode`, run in one pass, sees later tokens: the pass that heads are ablated in does not; or
        without them no fewer answers are right, and the teacher-forced pass does not, or more or most are right."""
        if not self.in_decode or self.in_forced or self.in_ablation:
            return False
        if self.ablate is not None:
            return True
        more = self.stepwise > self.one_pass + NO_WORSE or self.stepwise >= 0.5
        return self.stepwise >= self.one_pass - NO_WORSE and (bool(self.forced) or more)


def replace_later(tokens: Tensor, at: int) -> Tensor:
    """Replaces the tokens from `at` on by another problem's."""
    return torch.cat((tokens[:, :at], tokens[:, at:].roll(1, dims=0)), dim=1)


def measure_leaks(patient: Patient, problems: Problems) -> Leaks:
    """Measures what the teacher-forced pass and `decode` see of later tokens."""
    forced, copied = _measure_forced(patient, problems)
    if not any(forced):  # a prediction changes less often than a logit
        forced, copied = _measure_forced(patient, patient.problems)
    ablate = None if any(forced) else _measure_ablation(patient, problems)
    if not patient.can_decode:
        return Leaks(forced, copied, ablate, tolerance=ROUNDING)
    written, worst = patient.decoder_input(problems), 0.0
    before = patient.decode(problems.source, written)
    for at in range(1, written.shape[1]):
        now = patient.decode(problems.source, replace_later(written, at))
        worst = max(worst, largest(now[:, :at] - before[:, :at]))
    tolerance = patient.tolerance_of(before)
    if worst <= tolerance:
        return Leaks(forced, copied, ablate, worst, tolerance)
    accuracies = [
        float(patient.judge(logits, problems).float().mean()) for logits in (before, patient.run_stepwise(problems))
    ]
    if max(accuracies) < 0.5:  # it may have been trained without a start token
        continued = patient.decode(problems.source, problems.answer[:, :-1]), continue_answers(patient, problems)
        placed = [place_at(logits.argmax(-1), 1, problems.answer.shape[1]) for logits in continued]
        scored = patient.scored(problems)
        others = [float(each.verdict(problems.answer, scored).float().mean()) for each in placed]
        accuracies = max(accuracies, others, key=max)
    return Leaks(forced, copied, ablate, worst, tolerance, *accuracies)


def continue_answers(patient: Patient, problems: Problems) -> Tensor:
    """Computes the logits of each answer token but the first, prefix by prefix, without a start token."""
    steps = range(1, problems.answer.shape[1])
    return torch.cat([patient.decode(problems.source, problems.answer[:, :step])[:, -1:] for step in steps], dim=1)


def _measure_ablation(patient: Patient, problems: Problems) -> float | None:
    """Measures how far earlier logits move with later tokens in the pass that the subject ablates heads in."""
    if patient.subject.ablate is None or problems.answer.shape[1] < 2:
        return None
    try:
        before, worst = patient.ablate(problems, ()), 0.0
        for at in range(1, min(problems.answer.shape[1], before.shape[1])):
            now = patient.ablate(replace(problems, answer=replace_later(problems.answer, at)), ())
            worst = max(worst, largest(now[:, :at] - before[:, :at]))
    except HeadwayError:  # the check of gates says so
        return None
    return worst


def _measure_forced(patient: Patient, problems: Problems) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Measures, for each answer token, whether its teacher-forced prediction changes with itself or later tokens, and
    which of them are copied."""
    output, length = patient.predict_alone(problems), problems.answer.shape[1]
    if output is None or length < 2:
        return (), ()
    aligned = align(output, problems.answer, patient.scored(problems), shifts=True)
    changed, copied = [0.0] * length, []
    for at in aligned.columns:
        answer = replace_later(problems.answer, at)
        now = patient.predict_alone(replace(problems, answer=answer))
        if now is None or now.shape != output.shape:
            continue
        tokens = place_at(now, aligned.offset, length).tokens[:, at]
        changed[at] = float((tokens != aligned.tokens[:, at]).float().mean())
        if changed[at] and bool((tokens == answer[:, at]).all() and (aligned.tokens == problems.answer)[:, at].all()):
            copied.append(at)
    return tuple(changed), tuple(copied)
