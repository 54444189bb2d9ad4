"""Is there anything to conclude from? Checks of what the model answers."""

from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.patient import LEARNED, Patient
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import best_constant

ENOUGH = 100
"""examples, of which all right show that it has learned"""


@check("converged", forbids=("heads", "lengths"), explains=("floor", "constant", "greedy"))
def converged(patient: Patient) -> Checked:
    """In-range accuracy above chance and above 0.95, with its interval; of a user's own model, above chance."""
    if patient.subject.runner.is_attached:
        return _above_chance(patient)
    accuracy, low, n = patient.accuracy, patient.interval.low, len(patient.problems)
    chance = best_constant(patient.problems)
    numbers = {"accuracy": accuracy, "interval": patient.interval.to_json(), "examples": n, "chance": chance}
    shown = f"right on {accuracy:.4f} of {n:,} problems of the training lengths"
    if low >= LEARNED and low > chance:
        return passed(f"{shown}; always answering the same gets {chance:.3f}", **numbers)
    if accuracy >= LEARNED and n < ENOUGH:
        meaning = f"{shown}: {n} are too few, the interval goes down to {low:.3f}"
        return warned(meaning, f"give at least {ENOUGH} examples", **numbers)
    if low <= chance:
        meaning = f"{shown}, no better than always answering the same ({chance:.3f})"
        return failed(meaning, "train until it is right in range; say nothing of heads or length before", **numbers)
    meaning = f"{shown}; the lower end of the interval, {low:.3f}, is below {LEARNED}"
    return failed(meaning, "train longer, with warm-up or another rate, and report the interval", **numbers)


def _above_chance(patient: Patient) -> Checked:
    """A model that Headway did not train need not be nearly perfect, but must know something of the answers: more
    tokens right than the commonest one is."""
    scored = patient.scored(patient.problems)
    right = (patient.logits.argmax(-1) == patient.problems.answer)[scored]
    chance = float(patient.problems.answer[scored].bincount().max()) / len(right)
    interval, accuracy = wilson(int(right.sum()), len(right)), float(right.float().mean())
    numbers = {"examples": len(right), "accuracy": accuracy, "interval": interval.to_json(), "chance": chance}
    shown = f"right on {accuracy:.4f} of {len(right):,} answer tokens, the commonest one is {chance:.4f}"
    if interval.low > chance:
        return passed(shown, **numbers)
    meaning = f"{shown}: no better than always answering the same"
    return failed(meaning, "study it on problems that it knows something of", **numbers)


@check("constant", forbids=("heads",), explains=("floor",))
def constant(patient: Patient) -> Checked:
    """The same answer to everything, on any evaluated set."""
    found = {}
    for name, problems in patient.sets.items():
        logits = patient.run(problems)
        if logits.shape[-1] == 1:
            return skipped("it answers with 1 logit; give two, 0 and the logit, to see which class it says")
        answers = logits.argmax(-1)
        if len(answers.unique(dim=0)) == 1 and len(problems.answer.unique(dim=0)) > 1:
            found[name] = answers[0].tolist()
    if not found:
        return passed(f"more than one answer on each of {len(patient.sets)} evaluated sets")
    return failed(
        f"one answer, {next(iter(found.values()))}, to every problem of {len(found)} of {len(patient.sets)} sets "
        f"({', '.join(found)}): its score there is that answer's share",
        "report the share of each answer beside every accuracy",
        constant=found,
    )
