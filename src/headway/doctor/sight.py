"""Checks of what an answer should not depend on: later tokens, padding, a second evaluation, and the rest of the
batch."""

from contextlib import suppress
from dataclasses import replace

import torch

from headway.doctor.answers import NO_DECODE, measure_forced_leak, measure_leak
from headway.doctor.check import Checked, check, failed, passed, skipped
from headway.doctor.patient import Patient
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest

PADDED = (4, 2, 1)  # tokens of padding to add: the most that the model accepts


@check("causality", forbids=("heads", "lengths"), explains=("greedy", "converged", "floor", "metric"))
def causality(patient: Patient) -> Checked:
    """Checks that a later decoder token does not change an earlier output."""
    if patient.answers_with_class:
        return skipped("it is a classifier; there are no later tokens")
    if patient.few.answer.shape[1] < 2:
        return skipped("answers have one token; there is no later one")
    remedy = "use the causal mask, in training and in evaluation"
    changed = measure_forced_leak(patient, patient.few)
    if changed:
        what = f"changes {changed:.1%} of the predictions before them: it sees the answer"
        return failed(f"replacing later tokens {what}", remedy, changed=changed)
    if patient.subject.decode is None or patient.subject.start is None:
        return skipped(NO_DECODE)
    worst = measure_leak(patient, patient.few)
    if worst <= patient.tolerance:
        return passed(f"replacing later tokens moves no earlier logit by more than {worst:.1g}", moved=worst)
    what = f"moves earlier logits by up to {worst:.2g}: it sees the answer it should predict"
    return failed(f"replacing later tokens {what}", remedy, moved=worst)


@check("padding", explains=("converged", "floor"))
def padding(patient: Patient) -> Checked:
    """Checks that adding padding does not change an answer."""
    pad, problems = patient.subject.pad, patient.few
    if pad is None:
        return skipped("no padding token was given; give Subject(pad=TOKEN) if sequences are padded")
    plain, added, tried = patient.logits[: len(problems)], 0, []
    for added in PADDED:
        more = torch.full_like(problems.source[:, :1], pad).expand(-1, added)
        for parts in ((problems.source, more), (more, problems.source)):  # padding on the right, or on the left
            with suppress(HeadwayError):
                tried.append(patient.run(replace(problems, source=torch.cat(parts, 1))))
        if tried:
            break
    else:
        longest = problems.source.shape[1]
        return skipped(f"the model accepts no source longer than {longest} tokens; give shorter examples")
    padded = min(tried, key=lambda logits: largest(logits - plain))
    moved = largest(padded - plain)
    changed = float((padded.argmax(-1) != plain.argmax(-1)).any(-1).float().mean())
    if moved <= patient.tolerance:
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
    """Checks that two evaluations agree, and that an answer does not depend on the rest of its batch."""
    problems, singles = patient.few, patient.singles
    first, again = patient.run(problems), patient.run(problems)
    twice = largest(first - again)
    if twice > patient.tolerance:
        meaning = f"the same problems twice give logits that differ by {twice:.2g}: dropout or sampling is on"
        return failed(meaning, "call model.eval() before evaluating", twice=twice)
    try:
        alone = torch.cat([patient.run(single) for single in singles])
    except HeadwayError as error:
        return failed(f"it fails on 1 problem alone: {error}", "make the model accept a batch of any size")
    backwards = torch.arange(len(problems) - 1, -1, -1, device=problems.source.device)
    company = largest(first[: len(singles)] - alone, first - patient.run(problems[backwards]).flip(0))
    if company > patient.tolerance:
        meaning = f"an answer depends on the batch: alone or in another order its logits differ by {company:.2g}"
        return failed(meaning, "use no statistics over the batch, such as its mean", company=company)
    changing = _compare_decodings(patient) if patient.decodes else None
    agree = f"evaluated twice, alone and in another order the logits agree to {max(twice, company):.1g}"
    return changing or passed(agree, moved=company)


def _compare_decodings(patient: Patient) -> Checked | None:
    """Compares decoding a few problems twice, and alone; None if all agree."""
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
    what = f"{changed} of {len(few)} answers differ from those in a batch: decoding depends on the batch"
    remedy = "begin every answer with the same start token, whatever the batch"
    return failed(f"decoded alone, {what}", remedy, changed=changed)
