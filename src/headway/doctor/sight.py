"""What does an answer depend on that it should not? Checks of later tokens, of padding, and of evaluating twice, alone,
and in another order."""

from contextlib import suppress
from dataclasses import replace

import torch

from headway.doctor.answers import NO_DECODE, forced_sees_later, sees_later
from headway.doctor.check import Checked, check, failed, passed, skipped
from headway.doctor.patient import Patient
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest

PADDED = (4, 2, 1)  # tokens of padding to add: as many as the model takes


@check("causality", forbids=("heads", "lengths"), explains=("greedy", "converged", "floor", "metric"))
def causality(patient: Patient) -> Checked:
    """Whether a later decoder token changes an earlier output."""
    if patient.answers_with_class:
        return skipped("it answers with a class; there are no later tokens")
    if patient.few.answer.shape[1] < 2:
        return skipped("answers have one token; there is no later one")
    remedy = "use the causal mask, in training and in evaluation"
    changed = forced_sees_later(patient, patient.few)
    if changed:
        what = f"changes {changed:.1%} of what the one pass says before them: it sees the answer"
        return failed(f"exchanging later tokens {what}", remedy, changed=changed)
    if patient.subject.decode is None or patient.subject.start is None:
        return skipped(NO_DECODE)
    worst = sees_later(patient, patient.few)
    if worst <= patient.same:
        return passed(f"exchanging later tokens moves no earlier logit by more than {worst:.1g}", moved=worst)
    what = f"moves earlier logits by up to {worst:.2g}: it sees the answer that it is to predict"
    return failed(f"exchanging later tokens {what}", remedy, moved=worst)


@check("padding", explains=("converged", "floor"))
def padding(patient: Patient) -> Checked:
    """Whether adding padding changes an answer."""
    pad, problems = patient.subject.pad, patient.few
    if pad is None:
        return skipped("no padding token was given; Subject(pad=TOKEN) where sequences are padded")
    plain, added, tried = patient.logits[: len(problems)], 0, []
    for added in PADDED:
        more = torch.full_like(problems.source[:, :1], pad).expand(-1, added)
        for parts in ((problems.source, more), (more, problems.source)):  # behind, as an encoder's; or before
            with suppress(HeadwayError):
                tried.append(patient.run(replace(problems, source=torch.cat(parts, 1))))
        if tried:
            break
    else:
        longest = problems.source.shape[1]
        return skipped(f"the model takes no source longer than {longest} tokens; give shorter examples")
    padded = min(tried, key=lambda logits: largest(logits - plain))
    moved = largest(padded - plain)
    changed = float((padded.argmax(-1) != plain.argmax(-1)).any(-1).float().mean())
    if moved <= patient.same:
        return passed(f"{added} tokens of padding move no logit by more than {moved:.1g}", moved=moved, added=added)
    what = f"{added} tokens of padding move logits by up to {moved:.2g} and change {changed:.1%} of the answers"
    remedy = "mask padded keys in every attention, in evaluation too"
    return failed(
        f"{what}: padding receives attention, or shifts positions", remedy, moved=moved, changed=changed, added=added
    )


@check(
    "evaluation mode",
    forbids=("heads", "lengths"),
    explains=("given digits", "greedy", "converged", "floor", "metric", "gates", "causality", "padding"),
)
def evaluation_mode(patient: Patient) -> Checked:
    """Whether two evaluations agree, and whether an answer depends on who else is in its batch."""
    problems, singles = patient.few, patient.singles
    first, again = patient.run(problems), patient.run(problems)
    twice = largest(first - again)
    if twice > patient.same:
        meaning = f"the same problems twice give logits that differ by {twice:.2g}: dropout or another draw is on"
        return failed(meaning, "call model.eval() before evaluating", twice=twice)
    try:
        alone = torch.cat([patient.run(single) for single in singles])
    except HeadwayError as error:
        return failed(f"it fails on 1 problem alone: {error}", "evaluate any number of problems the same way")
    backwards = torch.arange(len(problems) - 1, -1, -1, device=problems.source.device)
    company = largest(first[: len(singles)] - alone, first - patient.run(problems[backwards]).flip(0))
    if company > patient.same:
        meaning = f"an answer depends on the batch: alone or in another order its logits differ by {company:.2g}"
        return failed(meaning, "use nothing that is computed over the batch, such as its mean", company=company)
    changing = _decodes_otherwise(patient) if patient.decodes else None
    agree = f"twice, alone and in another order the logits agree to {max(twice, company):.1g}"
    return changing or passed(agree, moved=company)


def _decodes_otherwise(patient: Patient) -> Checked | None:
    """What is wrong where a few problems are not decoded the same again, or not the same alone."""
    few = patient.few[: len(patient.singles)]
    together, again = (patient.generate_wide(few) for _ in range(2))
    changed = int(((together != again) & patient.scored(few)).any(1).sum())
    if changed:
        meaning = f"decoded twice, {changed} of {len(few)} answers differ: sampling or dropout is on"
        return failed(meaning, "decode greedily, after model.eval()", changed=changed)
    alone = torch.cat([patient.generate_wide(single) for single in patient.singles])
    changed = int(((together != alone) & patient.scored(few)).any(1).sum())
    if not changed:
        return None
    what = f"{changed} of {len(few)} answers are other than in a batch: something is taken from the batch"
    remedy = "begin every answer with the same start token, whatever the batch"
    return failed(f"decoded alone, {what}", remedy, changed=changed)
