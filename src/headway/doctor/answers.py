"""Is there anything to conclude from? Checks of what the model answers, and on what."""

from __future__ import annotations

from headway.doctor.check import Checked, failed, passed, skipped, warned
from headway.doctor.patient import Patient
from headway.evaluation.intervals import wilson
from headway.tasks import Problems

LEARNED = 0.95
ENOUGH = 100
"""examples, of which all right show that it has learned"""
UNEVEN = 0.6
"""a class with a larger share makes a constant answer look like skill"""


def converged(patient: Patient) -> Checked:
    """In-range accuracy above chance and above 0.95, with its interval; of a user's own model, above chance."""
    if patient.subject.runner.is_attached:
        return _above_chance(patient)
    right, n = int(patient.right.sum()), len(patient.problems)
    interval, chance = wilson(right, n), commonest(patient.problems)
    numbers = {"accuracy": right / n, "interval": interval.to_json(), "examples": n, "chance": chance}
    shown = f"right on {right / n:.4f} of {n:,} problems of the training lengths"
    if interval.low >= LEARNED and interval.low > chance:
        return passed(f"{shown}; always answering the same gets {chance:.3f}", **numbers)
    if right / n >= LEARNED and n < ENOUGH:
        return warned(
            f"{shown}: {n} are too few, the interval goes down to {interval.low:.3f}",
            f"give at least {ENOUGH} examples",
            **numbers,
        )
    if interval.low <= chance:
        return failed(
            f"{shown}, no better than always answering the same ({chance:.3f})",
            "train until it is right in range; say nothing of heads or length before",
            **numbers,
        )
    return failed(
        f"{shown}; the lower end of the interval, {interval.low:.3f}, is below {LEARNED}",
        "train longer, with warm-up or another rate, and report the interval",
        **numbers,
    )


def _above_chance(patient: Patient) -> Checked:
    """A model that Headway did not train need not be nearly perfect, but must know something of the answers: more
    tokens right than the commonest one is."""
    scored = patient.scored(patient.problems)
    right = (patient.logits.argmax(-1) == patient.problems.answer)[scored]
    chance = float(patient.problems.answer[scored].bincount().max()) / len(right)
    interval = wilson(int(right.sum()), len(right))
    numbers = {"accuracy": float(right.float().mean()), "interval": interval.to_json(), "chance": chance}
    shown = f"right on {numbers['accuracy']:.4f} of {len(right):,} answer tokens, the commonest one is {chance:.4f}"
    if interval.low > chance:
        return passed(shown, examples=len(right), **numbers)
    return failed(
        f"{shown}: no better than always answering the same",
        "study it on problems that it knows something of",
        examples=len(right), **numbers,
    )  # fmt: skip


def constant(patient: Patient) -> Checked:
    """The same answer to everything, on any evaluated set."""
    found = {}
    for name, problems in patient.sets.items():
        logits = patient.told(problems)
        if logits.shape[-1] == 1:
            return skipped("it answers with 1 logit; give two, 0 and the logit, to see which class it says")
        said = logits.argmax(-1)
        if len(said.unique(dim=0)) == 1 and len(problems.answer.unique(dim=0)) > 1:
            found[name] = said[0].tolist()
    if not found:
        return passed(f"more than one answer on each of {len(patient.sets)} evaluated sets")
    name, answer = next(iter(found.items()))
    return failed(
        f"one answer, {answer}, to every problem of {len(found)} of {len(patient.sets)} sets ({', '.join(found)}): its "
        "score there is that answer's share",
        "report the share of each answer beside every accuracy",
        constant=found,
    )


def balance(patient: Patient) -> Checked:
    """What always answering the same scores on every evaluated set."""
    if not patient.answers_with_class:
        share = commonest(patient.problems)
        if share <= UNEVEN:
            return passed(f"the commonest answer has a share of {share:.4f}", commonest=share)
        return warned(
            f"one answer has a share of {share:.3f}: giving it always scores that",
            "draw problems with different answers",
            commonest=share,
        )
    shares = {name: commonest(problems) for name, problems in patient.sets.items()}
    name = max(shares, key=shares.__getitem__)
    if shares[name] <= UNEVEN:
        return passed(f"the larger class has at most {shares[name]:.3f} of any set", commonest=shares)
    return warned(
        f"in {name} one class has {shares[name]:.3f}: always answering it scores that",
        "balance the set, or report what always answering the same scores",
        commonest=shares,
    )


def commonest(problems: Problems) -> float:
    """The share of the commonest whole answer."""
    _, counts = problems.answer.unique(dim=0, return_counts=True)
    return int(counts.max()) / len(problems)
