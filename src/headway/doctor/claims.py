"""What may be claimed? Checks of what a claim about heads, or about one seed, rests on."""

import math

from headway.attach.opening import ready
from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.patient import LEARNED, Patient
from headway.models import Head
from headway.tasks import Problems

FLOOR = 0.5
"""of accuracy, below which drops say little about heads"""
FEWEST_SEEDS = 3


@check("resolution")
def resolution(patient: Patient) -> Checked:
    """Whether the number of examples can resolve the claimed margin."""
    n, margin = patient.subject.claimed_on, patient.subject.max_drop
    if n is None:
        return skipped("no claim was given; Subject(claimed_on=EXAMPLES, max_drop=MARGIN) says on what it rests")
    accuracy = min(max(patient.accuracy, 1 / n), 1 - 1 / n)
    half = 1.96 * math.sqrt(2 * accuracy * (1 - accuracy) / n)
    need = math.ceil(2 * accuracy * (1 - accuracy) * (1.96 / margin) ** 2)
    if half <= margin:
        return passed(f"{n:,} examples tell accuracies apart that differ by {half:.4f}", examples=n, resolves=half)
    return warned(
        f"{n:,} examples cannot tell a difference of {margin:g} from noise: the 95% interval is ±{half:.3f}",
        f"use at least {need:,} examples, or claim less",
        examples=n, resolves=half, needed=need,
    )  # fmt: skip


@check("floor", forbids=("heads",))
def floor(patient: Patient) -> Checked:
    """A baseline too low to rank heads on."""
    if not patient.subject.heads:
        return skipped("it has no heads to rank; name them as Subject(heads=…)")
    right, ranked_on = patient.right, patient.subject.ranked_on
    if ranked_on is not None:
        right = patient.judge(patient.run(ranked_on), ranked_on)
    accuracy = float(right.float().mean())
    if accuracy >= FLOOR:
        return passed(f"the baseline that heads are held against is {accuracy:.4f}", baseline=accuracy)
    return failed(
        f"the baseline that heads are held against is {accuracy:.3f}: with most problems wrong already, a drop says "
        "little about a head",
        "rank heads on problems that the model gets right",
        baseline=accuracy, problems=len(right),
    )  # fmt: skip


@check("together")
def together(patient: Patient) -> Checked:
    """A claim made of single-head drops: what is left when those heads go together."""
    claimed, before = patient.subject.claimed, patient.accuracy
    if not claimed:
        return skipped("no heads are claimed to be prunable; Subject(claimed=[…]) names them")
    if not patient.can_ablate:
        return skipped("it needs your ablation: Subject(ablate=lambda problems, heads: logits)")
    joint = _accuracy_without(patient, claimed, patient.problems)
    numbers = {"baseline": before, "together": joint, "heads": [str(head) for head in claimed]}
    rest = f"without all {{}} {joint:.4f} are right, {before:.4f} with"
    if before - joint <= patient.subject.max_drop:
        return passed(rest.format(f"{len(claimed)} claimed heads"), **numbers)
    return failed(
        f"{len(claimed)} heads may each go alone; {rest.format('of them')}",
        "count heads that can go together: headway heads searches for them",
        **numbers,
    )


@check("seeds")
def seeds(patient: Patient) -> Checked:
    """How many seeds, their spread, and which findings change between them."""
    if not patient.subject.others:
        return skipped("1 seed: nothing shows how findings vary; name a folder of runs, or give Subject(others=[…])")
    everyone = [patient, *(Patient(ready(other)) for other in patient.subject.others)]
    accuracies = [each.accuracy for each in everyone]
    learned = [each.interval.low >= LEARNED for each in everyone]
    costliest = [_costliest(each) for each in everyone]
    numbers = {
        "seeds": len(everyone),
        "accuracies": accuracies,
        "learned": learned,
        "costliest_head": [str(head) if head else None for head in costliest],
    }
    spread = f"{len(everyone)} seeds, accuracy {min(accuracies):.4f} to {max(accuracies):.4f}"
    if len(set(learned)) > 1:
        return warned(
            f"{spread}: {sum(learned)} of {len(everyone)} have learned the task, so one seed says little",
            "report every seed, and mend what keeps the others from learning",
            **numbers,
        )
    if patient.subject.claimed and len(set(costliest)) > 1:
        named = ", ".join(str(head) for head in costliest[:FEWEST_SEEDS])
        meaning = f"{spread}, but the head that costs most is not the same: {named}"
        return warned(meaning, "claim how many heads are needed, over seeds, not which", **numbers)
    if len(everyone) < FEWEST_SEEDS:
        return warned(f"{spread}: too few to tell how findings vary", f"train at least {FEWEST_SEEDS} seeds", **numbers)
    return passed(f"{spread}; all have {'' if all(learned) else 'not '}learned the task", **numbers)


def _costliest(patient: Patient) -> Head | None:
    """The head whose loss costs most, where heads can be closed."""
    if not patient.subject.heads or not patient.can_ablate:
        return None
    return min(patient.subject.heads, key=lambda head: _accuracy_without(patient, (head,), patient.few))


def _accuracy_without(patient: Patient, heads: tuple[Head, ...], problems: Problems) -> float:
    return float(patient.judge(patient.ablate(problems, heads), problems).float().mean())
