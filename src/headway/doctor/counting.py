"""What is the number worth? Checks of how right answers are counted, and of what a count can carry."""

from __future__ import annotations

import math

from torch import Tensor

from headway.doctor.check import Checked, failed, passed, skipped, warned
from headway.doctor.decoding import widened
from headway.doctor.patient import Patient
from headway.errors import HeadwayError
from headway.tasks import Problems

FLOOR = 0.5
"""of accuracy, below which drops say little about heads"""


def metric(patient: Patient) -> Checked:
    """Whether the reported accuracy is over whole answers."""
    score = patient.subject.score
    if score is None:
        return skipped("it needs the accuracy as you report it: Subject(score=lambda problems: …)")
    problems, answers = patient.problems, [patient.logits.argmax(-1)]
    said = patient.asked("score", score, problems)
    if not isinstance(said, int | float) and not (isinstance(said, Tensor) and said.numel() == 1):
        raise HeadwayError(f"score of {patient.subject.name} returned {type(said).__name__}; return one number")
    reported, exact = float(said), [float(patient.right.float().mean())]
    reported = reported / 100 if reported > 1 else reported  # in percent
    if patient.subject.generate is not None and not patient.answers_with_class:
        answers.append(widened(patient.generated(problems), problems))
    forced = patient.forced(problems)
    if forced is not None and forced.shape == problems.answer.shape:
        answers.append(forced)
    exact += [patient.exact(tokens, problems) for tokens in answers[1:]]
    near = 0.5 / len(problems) + 1e-6
    if any(abs(reported - each) <= near for each in exact):
        return passed(f"the reported {reported:.4f} is the share of whole answers that are right", reported=reported)
    others = [count for said in answers for count in _other_counts(patient, said, problems).items()]
    named = [name for name, value in others if abs(value - reported) <= near]
    what = f"it is accuracy {named[0]}" if named else "it is neither that nor accuracy over tokens"
    return failed(
        f"reported {reported:.4f}, but {exact[0]:.4f} of the whole answers are right: {what}",
        "count an answer as right when all of its tokens are",
        reported=reported, exact_match=exact[0], candidates=dict(reversed(others)),
    )  # fmt: skip


def _other_counts(patient: Patient, said: Tensor, problems: Problems) -> dict[str, float]:
    """What people count instead of whole answers."""
    same, length = said == problems.answer, problems.answer.shape[1]
    counts = {"over tokens": float(same.float().mean())}
    for token in dict.fromkeys((patient.subject.pad, 0)):
        if token is not None and bool((counted := problems.answer != token).any()):
            counts[f"over tokens other than {token}"] = float(same[counted].float().mean())
            counts[f"over answers, whose tokens {token} do not count"] = float((same | ~counted).all(1).float().mean())
    for first in range(1, length):
        counts[f"over the last {length - first} tokens of an answer"] = float(same[:, first:].float().mean())
        counts[f"over answers without their first {first} tokens"] = float(same[:, first:].all(1).float().mean())
    return counts | {f"over token {at} alone": float(same[:, at].float().mean()) for at in range(length)}


def resolution(patient: Patient) -> Checked:
    """Whether the number of examples can resolve the claimed margin."""
    subject = patient.subject
    if subject.claimed_on is None:
        return skipped("no claim was given; Subject(claimed_on=EXAMPLES, max_drop=MARGIN) says on what it rests")
    n, margin = subject.claimed_on, subject.max_drop
    accuracy = min(max(float(patient.right.float().mean()), 1 / n), 1 - 1 / n)
    half = 1.96 * math.sqrt(2 * accuracy * (1 - accuracy) / n)
    need = math.ceil(2 * accuracy * (1 - accuracy) * (1.96 / margin) ** 2)
    if half <= margin:
        return passed(f"{n:,} examples tell accuracies apart that differ by {half:.4f}", examples=n, resolves=half)
    return warned(
        f"{n:,} examples cannot tell a difference of {margin:g} from noise: the 95% interval is ±{half:.3f}",
        f"use at least {need:,} examples, or claim less",
        examples=n, resolves=half, needed=need,
    )  # fmt: skip


def floor(patient: Patient) -> Checked:
    """A baseline too low to rank heads on."""
    if not patient.subject.heads:
        return skipped("it has no heads to rank; name them as Subject(heads=…)")
    right, ranked_on = patient.right, patient.subject.ranked_on
    if ranked_on is not None:
        right = patient.judged(patient.told(ranked_on), ranked_on)
    accuracy = float(right.float().mean())
    if accuracy >= FLOOR:
        return passed(f"the baseline that heads are held against is {accuracy:.4f}", baseline=accuracy)
    return failed(
        f"the baseline that heads are held against is {accuracy:.3f}: with most problems wrong already, a drop says "
        "little about a head",
        "rank heads on problems that the model gets right",
        baseline=accuracy, problems=len(right),
    )  # fmt: skip
