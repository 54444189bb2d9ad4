"""Checks of what an answer should not depend on: later tokens, padding, a second evaluation, and the rest of the
batch."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch

from headway.doctor.check import Checked, check, failed, passed, skipped
from headway.doctor.decoding import NO_DECODE
from headway.doctor.patient import Patient
from headway.doctor.randomness import Repeats, without_randomness
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
    if leaks.in_ablation:
        what = f"moves earlier logits by up to {leaks.ablate:.2g} where heads are ablated: it sees the answer"
        return failed(f"replacing later tokens {what}", remedy, moved=leaks.ablate).because_of()
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
        where = (
            "your own passes have one" if leaks.forced or leaks.ablate is not None else "answers are no worse without"
        )
        meaning = f"{what} (later tokens move earlier logits by up to {leaks.decode:.2g}), but {where}"
        return passed(f"{meaning}; it was run prefix by prefix", **numbers)
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
    first, again = patient.run_as_given(patient.few), patient.run_as_given(patient.few)
    forced, decoded = (_count_changed(patient, what) for what in ("forced", "generate"))
    found = Repeats(largest(first - again), patient.tolerance_of(first), forced, decoded, len(patient.singles))
    if not found.differ:
        return found
    with without_randomness(patient.subject.model, sampling=True):
        return replace(found, sampled=_count_changed(patient, "generate"))


def _count_changed(patient: Patient, what: str) -> int:
    """Counts the answers that differ when a function of the subject is called twice."""
    few, function = patient.few[: len(patient.singles)], getattr(patient.subject, what)
    one, two = (None if function is None else patient.write(what, function, few) for _ in range(2))
    if one is None or two is None:
        return 0
    return len(one) if one.shape != two.shape else int((one != two).any(1).sum())


@check("evaluation mode", forbids=("heads", "lengths"), explains=("floor",))
def evaluation_mode(patient: Patient) -> Checked:
    """Checks that two evaluations agree, and that an answer does not depend on the rest of its batch."""
    problems, singles = patient.few, patient.singles
    found = [*_find_randomness(patient.repeats)]
    first = patient.logits[: len(problems)]  # in another batch than alone or backwards
    try:
        alone = torch.cat([patient.run(single) for single in singles])
    except HeadwayError as error:
        what = f"it fails on 1 problem alone: {error}"
        return failed(what, "make the model accept a batch of any size").because_of()
    backwards = torch.arange(len(problems) - 1, -1, -1, device=problems.source.device)
    company = largest(first[: len(singles)] - alone, first - patient.run(problems[backwards]).flip(0))
    if company > patient.tolerance and not found:
        meaning = f"an answer depends on the batch: alone or in another order its logits differ by {company:.2g}"
        found.append(("statistics of the batch", meaning, "use no statistics over the batch, such as its mean"))
    if not (company > patient.tolerance):
        found += _compare_outputs(patient)
    numbers = {"twice": patient.repeats.logits, "company": company}
    if not found:
        moved = max(patient.repeats.logits, company)
        return passed(f"evaluated twice, alone and in another order the logits agree to {moved:.1g}", moved=company)
    mechanisms, meanings, remedies = zip(*found, strict=True)
    result = failed("; and ".join(meanings), "; ".join(dict.fromkeys(remedies)), **numbers)
    return result.with_found(*mechanisms).because_of()


def _find_randomness(repeats: Repeats) -> Iterator[tuple[str, str, str]]:
    """Yields why two evaluations differ: the mechanism, what it means, and how to mend it."""
    if repeats.logits > repeats.tolerance:
        meaning = f"the same problems twice give logits that differ by {repeats.logits:.2g}: dropout is on"
        yield "dropout", meaning, "call model.eval() before evaluating"
    elif repeats.forced or (repeats.decoded and not repeats.sampled):
        what, changed = ("decoded", repeats.decoded) if repeats.decoded else ("predicted", repeats.forced)
        meaning = f"{what} twice, {changed} of {repeats.rows} answers differ: dropout or sampling is on"
        yield "randomness", meaning, "call model.eval() before evaluating, and decode greedily"
    if repeats.sampled:
        meaning = f"decoded twice, {repeats.sampled} of {repeats.rows} answers differ: decoding samples"
        yield "sampling", meaning, "decode greedily: logits.argmax(-1)"


def _compare_outputs(patient: Patient) -> Iterator[tuple[str, str, str]]:
    """Yields how teacher-forced predictions and decoded answers depend on the batch: the mechanism, what it means, and
    how to mend it."""
    few = patient.few
    for name, what, changed in (
        ("forced", "predicted by the teacher-forced pass", patient.forced_depends),
        ("generate", "decoded", patient.decoding_depends),
    ):
        tokens = patient.predict(few) if name == "forced" else patient.generate(few)
        if tokens is None or patient.answers_with_class or not (changed or name in patient.broadcast):
            continue
        if bool((tokens == tokens[:1]).all()):
            meaning = (
                f"one row of tokens is {what} for all {len(few)} problems, the first row's, and compared with every "
            )
            meaning += "answer of the batch"
            remedy = "compare each answer with its own prediction: remove the [0] after the model's output"
            yield "first row for all", meaning, remedy
        elif name == "forced":
            meaning = f"{what} alone, {changed} of {len(patient.singles)} answers differ from those in a batch"
            yield "predictions of the batch", meaning, "compare each answer with its own prediction, whatever the batch"
        else:
            meaning = f"{what} alone, {changed} of {len(patient.singles)} answers differ from those in a batch: "
            remedy = "begin every answer with the same start token, whatever the batch"
            yield "decoding of the batch", f"{meaning}decoding depends on the batch", remedy
