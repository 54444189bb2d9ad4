"""Would it come out the same again? Checks of evaluating twice, in other company, and with other seeds."""

from __future__ import annotations

import torch

from headway.attach.opening import ready
from headway.doctor.answers import LEARNED
from headway.doctor.check import Checked, failed, passed, skipped, warned
from headway.doctor.decoding import ALONE, widened
from headway.doctor.patient import Patient, largest
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.models import Head

FEWEST_SEEDS = 3


def evaluation_mode(patient: Patient) -> Checked:
    """Whether two evaluations agree, and whether an answer depends on who else is in its batch."""
    problems = patient.few
    first, again = patient.told(problems), patient.told(problems)
    twice = largest(first - again)
    if twice > patient.same:
        return failed(
            f"the same problems twice give logits that differ by {twice:.2g}: dropout or another draw is on",
            "call model.eval() before evaluating",
            twice=twice,
        )
    some = range(min(ALONE, len(problems)))
    try:
        alone = torch.cat([patient.told(problems[row : row + 1]) for row in some])
    except HeadwayError as error:
        return failed(f"it fails on 1 problem alone: {error}", "evaluate any number of problems the same way")
    backwards = torch.arange(len(problems) - 1, -1, -1, device=problems.source.device)
    turned = patient.told(problems[backwards]).flip(0)
    company = max(largest(first[: len(some)] - alone), largest(first - turned))
    if company > patient.same:
        return failed(
            f"an answer depends on the batch: alone or in another order its logits differ by {company:.2g}",
            "use nothing that is computed over the batch, such as its mean",
            company=company,
        )
    if patient.subject.generate is not None and not patient.answers_with_class:
        few, counts = problems[: len(some)], patient.scored(problems[: len(some)])
        together, again = (widened(patient.generated(few), few) for _ in range(2))
        if bool(((together != again) & counts).any()):
            changed = int(((together != again) & counts).any(1).sum())
            return failed(
                f"decoded twice, {changed} of {len(some)} answers differ: sampling or dropout is on",
                "decode greedily, after model.eval()",
                changed=changed,
            )
        parts = [problems[row : row + 1] for row in some]
        single = torch.cat([widened(patient.generated(part), part) for part in parts])
        if bool(((together != single) & counts).any()):
            changed = int(((together != single) & counts).any(1).sum())
            return failed(
                f"decoded alone, {changed} of {len(some)} answers are other than in a batch: something is taken from "
                "the batch",
                "begin every answer with the same start token, whatever the batch",
                changed=changed,
            )
    return passed(f"twice, alone and in another order the logits agree to {max(twice, company):.1g}", moved=company)


def seeds(patient: Patient) -> Checked:
    """How many seeds, their spread, and which findings change between them."""
    if not patient.subject.others:
        return skipped("1 seed: nothing shows how findings vary; name a folder of runs, or give Subject(others=[…])")
    everyone = [patient, *(Patient(ready(other)) for other in patient.subject.others)]
    accuracies = [float(each.right.float().mean()) for each in everyone]
    learned = [wilson(int(each.right.sum()), len(each.right)).low >= LEARNED for each in everyone]
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
        return warned(
            f"{spread}, but the head that costs most is not the same: {named}",
            "claim how many heads are needed, over seeds, not which",
            **numbers,
        )
    if len(everyone) < FEWEST_SEEDS:
        return warned(f"{spread}: too few to tell how findings vary", f"train at least {FEWEST_SEEDS} seeds", **numbers)
    return passed(f"{spread}; all have {'' if all(learned) else 'not '}learned the task", **numbers)


def _costliest(patient: Patient) -> Head | None:
    """The head whose loss costs most, where heads can be closed."""
    if not patient.subject.heads or not patient.can_ablate:
        return None
    problems = patient.few
    left = {
        head: float(patient.judged(patient.without(problems, (head,)), problems).float().mean())
        for head in patient.subject.heads
    }
    return min(left, key=left.__getitem__)
