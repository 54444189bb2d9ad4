"""Would it come out the same again? A check of evaluating twice, alone, and in another order."""

import torch

from headway.doctor.check import Checked, check, failed, passed
from headway.doctor.decoding import ALONE
from headway.doctor.patient import Patient
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.tasks import Problems


@check(
    "evaluation mode",
    forbids=("heads", "lengths"),
    explains=("given digits", "greedy", "converged", "floor", "metric", "gates", "causality", "padding"),
)
def evaluation_mode(patient: Patient) -> Checked:
    """Whether two evaluations agree, and whether an answer depends on who else is in its batch."""
    problems = patient.few
    first, again = patient.run(problems), patient.run(problems)
    twice = largest(first - again)
    if twice > patient.same:
        meaning = f"the same problems twice give logits that differ by {twice:.2g}: dropout or another draw is on"
        return failed(meaning, "call model.eval() before evaluating", twice=twice)
    singles = [problems[row : row + 1] for row in range(min(ALONE, len(problems)))]
    try:
        alone = torch.cat([patient.run(single) for single in singles])
    except HeadwayError as error:
        return failed(f"it fails on 1 problem alone: {error}", "evaluate any number of problems the same way")
    backwards = torch.arange(len(problems) - 1, -1, -1, device=problems.source.device)
    company = largest(first[: len(singles)] - alone, first - patient.run(problems[backwards]).flip(0))
    if company > patient.same:
        return failed(
            f"an answer depends on the batch: alone or in another order its logits differ by {company:.2g}",
            "use nothing that is computed over the batch, such as its mean",
            company=company,
        )
    if patient.subject.generate is not None and not patient.answers_with_class:
        changing = _decodes_otherwise(patient, problems[: len(singles)], singles)
        if changing is not None:
            return changing
    return passed(f"twice, alone and in another order the logits agree to {max(twice, company):.1g}", moved=company)


def _decodes_otherwise(patient: Patient, few: Problems, singles: list[Problems]) -> Checked | None:
    """What is wrong where a few problems are not decoded the same again, or not the same alone."""
    together, again = (patient.generate_wide(few) for _ in range(2))
    changed = int(((together != again) & patient.scored(few)).any(1).sum())
    if changed:
        return failed(
            f"decoded twice, {changed} of {len(few)} answers differ: sampling or dropout is on",
            "decode greedily, after model.eval()",
            changed=changed,
        )
    alone = torch.cat([patient.generate_wide(single) for single in singles])
    changed = int(((together != alone) & patient.scored(few)).any(1).sum())
    if not changed:
        return None
    return failed(
        f"decoded alone, {changed} of {len(few)} answers are other than in a batch: something is taken from the batch",
        "begin every answer with the same start token, whatever the batch",
        changed=changed,
    )
