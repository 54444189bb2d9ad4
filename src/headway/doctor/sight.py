"""Checks of what an answer should not depend on: later tokens, padding, a second evaluation, and the rest of the
batch."""

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.decoding import NO_DECODE
from headway.doctor.patient import Patient
from headway.doctor.randomness import Repeats
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest

PADDED = (4, 2, 1)  # tokens of padding to add: the most that the model accepts


@check("causality", forbids=("heads", "lengths"), explains=("floor",))
def causality(patient: Patient) -> Checked:
    """Checks that a later decoder token does not change an earlier output."""
    if patient.answers_with_class:
        return skipped("it is a classifier; there are no later tokens")
    if patient.few.answer.shape[1] < 2:
        return skipped("answers have one token; there is no later one")
    remedy, leaks = "use the causal mask, in training and in evaluation", patient.leaks
    if changed := leaks.in_forced:
        what = f"changes {changed:.1%} of the predictions before them: it sees the answer"
        return failed(f"replacing later tokens {what}", remedy, changed=changed).because_of()
    if leaks.decode is None:
        if leaks.forced:
            return passed(f"replacing later tokens changes none of the {len(patient.few)} predictions before them")
        return skipped(NO_DECODE)
    if not leaks.in_decode:
        return passed(
            f"replacing later tokens moves no earlier logit by more than {leaks.decode:.1g}", moved=leaks.decode
        )
    numbers = {"moved": leaks.decode, "one_pass": leaks.one_pass, "stepwise": leaks.stepwise}
    if leaks.only_in_decode and not _scores_in_one_pass(patient):
        what = "decode, as it is given here, has no causal mask"
        where = "your teacher-forced pass has one" if leaks.forced else "token by token the answers are no worse"
        meaning = f"{what} (later tokens move earlier logits by up to {leaks.decode:.2g}), but {where}"
        return warned(f"{meaning}; it was run prefix by prefix", "pass the mask in decode as well", **numbers)
    what = f"moves earlier logits by up to {leaks.decode:.2g}: it sees the answer it should predict"
    return failed(f"replacing later tokens {what}", remedy, **numbers).because_of()


def _scores_in_one_pass(patient: Patient) -> bool:
    """Tells whether the reported accuracy is the one of a pass that sees later tokens."""
    some = patient.few
    if patient.subject.score is None or (value := patient.score(some)) is None:
        return False
    near = 0.5 / len(some) + 1e-6
    return abs(value - patient.leaks.one_pass) <= near < abs(value - patient.leaks.stepwise)


@check("padding", explains=("floor",))
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
    ).because_of()


def measure_repeats(patient: Patient) -> Repeats:
    """Evaluates the same problems twice: the logits, the teacher-forced predictions, and decoding."""
    few, subject = patient.few[: len(patient.singles)], patient.subject
    first, again = patient.run_as_given(patient.few), patient.run_as_given(patient.few)
    changed = []
    for what, function in (("forced", subject.forced), ("generate", subject.generate)):
        runs = [None if function is None else patient.write(what, function, few) for _ in range(2)]
        changed.append(_count_changed(runs[0], runs[1]))
    return Repeats(largest(first - again), patient.tolerance_of(first), *changed, len(few))


def _count_changed(one: Tensor | None, two: Tensor | None) -> int:
    if one is None or two is None:
        return 0
    return len(one) if one.shape != two.shape else int((one != two).any(1).sum())


@check("evaluation mode", forbids=("heads", "lengths"), explains=("floor",))
def evaluation_mode(patient: Patient) -> Checked:
    """Checks that two evaluations agree, and that an answer does not depend on the rest of its batch."""
    problems, singles, repeats = patient.few, patient.singles, patient.repeats
    if repeats.logits > repeats.tolerance:
        meaning = f"the same problems twice give logits that differ by {repeats.logits:.2g}: dropout or sampling is on"
        return failed(meaning, "call model.eval() before evaluating", twice=repeats.logits).because_of()
    if repeats.decoded or repeats.forced:
        what, changed = ("decoded", repeats.decoded) if repeats.decoded else ("predicted", repeats.forced)
        meaning = f"{what} twice, {changed} of {repeats.rows} answers differ: sampling or dropout is on"
        return failed(meaning, "decode greedily, after model.eval()", changed=changed).because_of()
    first = patient.run(problems)
    try:
        alone = torch.cat([patient.run(single) for single in singles])
    except HeadwayError as error:
        what = f"it fails on 1 problem alone: {error}"
        return failed(what, "make the model accept a batch of any size").because_of()
    backwards = torch.arange(len(problems) - 1, -1, -1, device=problems.source.device)
    company = largest(first[: len(singles)] - alone, first - patient.run(problems[backwards]).flip(0))
    if company > patient.tolerance:
        meaning = f"an answer depends on the batch: alone or in another order its logits differ by {company:.2g}"
        return failed(meaning, "use no statistics over the batch, such as its mean", company=company).because_of()
    agree = f"evaluated twice, alone and in another order the logits agree to {max(repeats.logits, company):.1g}"
    return _compare_outputs(patient) or passed(agree, moved=company)


def _compare_outputs(patient: Patient) -> Checked | None:
    """Compares teacher-forced predictions and decoded answers with those alone; None if all agree."""
    count = len(patient.singles)
    for name, what, changed in (
        ("forced", "predicted by the teacher-forced pass", patient.forced_depends),
        ("generate", "decoded", patient.decoding_depends),
    ):
        if name in patient.broadcast and not patient.answers_with_class:
            meaning = f"one row of tokens is {what} for {len(patient.few)} problems, and compared with every answer"
            remedy = "compare each answer with its own prediction: remove the [0] after the model's output"
            return failed(meaning, remedy, broadcast=name).with_found("first row for all").because_of()
        if changed:
            depends = f"{changed} of {count} answers differ from those in a batch: "
            if name == "forced":
                remedy = "compare each answer with its own prediction, whatever else is in the batch"
                meaning = f"{what} alone, {depends}a prediction depends on the batch"
            else:
                remedy = "begin every answer with the same start token, whatever the batch"
                meaning = f"{what} alone, {depends}decoding depends on the batch"
            return failed(meaning, remedy, changed=changed, of=name).because_of()
    return None
