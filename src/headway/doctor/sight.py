"""Does the model see what it should, and nothing else? Checks of masks, padding, order and positions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from headway.doctor.answers import LEARNED
from headway.doctor.check import Checked, failed, passed, skipped, warned
from headway.doctor.decoding import NO_DECODE, forced_sees_later, sees_later
from headway.doctor.patient import Patient, largest
from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.evaluation.intervals import wilson
from headway.tasks import Problems

BLIND = 1e-5
PADDED = (4, 2, 1)
"""tokens of padding to add: as many as the model takes"""


def causality(patient: Patient) -> Checked:
    """Whether a later decoder token changes an earlier output."""
    if patient.answers_with_class:
        return skipped("it answers with a class; there are no later tokens")
    if patient.few.answer.shape[1] < 2:
        return skipped("answers have one token; there is no later one")
    changed = forced_sees_later(patient, patient.few)
    if changed:
        return failed(
            f"exchanging later tokens changes {changed:.1%} of what the one pass says before them: it sees the answer",
            "use the causal mask, in training and in evaluation",
            changed=changed,
        )
    if patient.subject.decode is None or patient.subject.start is None:
        return skipped(NO_DECODE)
    worst = sees_later(patient, patient.few)
    if worst <= patient.same:
        return passed(f"exchanging later tokens moves no earlier logit by more than {worst:.1g}", moved=worst)
    return failed(
        f"exchanging later tokens moves earlier logits by up to {worst:.2g}: it sees the answer that it is to predict",
        "use the causal mask, in training and in evaluation",
        moved=worst,
    )


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
                tried.append(patient.told(Problems(torch.cat(parts, 1), problems.answer, problems.scored)))
        if tried:
            break
    if not tried:
        return skipped(
            f"the model takes no source longer than {problems.source.shape[1]} tokens; give shorter examples"
        )
    told = min(tried, key=lambda logits: largest(logits - plain))
    moved = largest(told - plain)
    changed = float((told.argmax(-1) != plain.argmax(-1)).any(-1).float().mean())
    if moved <= patient.same:
        return passed(f"{added} tokens of padding move no logit by more than {moved:.1g}", moved=moved, added=added)
    return failed(
        f"{added} tokens of padding move logits by up to {moved:.2g} and change {changed:.1%} of the answers: padding "
        "receives attention, or shifts positions",
        "mask padded keys in every attention, in evaluation too",
        moved=moved, changed=changed, added=added,
    )  # fmt: skip


def blindness(patient: Patient) -> Checked:
    """Outputs that do not change when the input is permuted or reversed."""
    problems = patient.problems
    length = problems.source.shape[1]
    if length < 2:
        return skipped("a source of one token has no order")
    moved = {}
    for name, source in (("permuted", problems.source.roll(1, 1)), ("reversed", problems.source.flip(1))):
        told = patient.told(Problems(source, problems.answer, problems.scored))
        moved[name] = largest(told - patient.logits)
    if max(moved.values()) > BLIND:
        return passed(f"permuting the source moves logits by up to {moved['permuted']:.2g}", **moved)
    told = f"no logit moves by more than {max(moved.values()):.1g} when the source is permuted: it sees no order"
    remedy = "tell it the order: positions that are not symmetric, or a mask"
    if wilson(int(patient.right.sum()), len(problems)).low >= LEARNED:
        return warned(f"{told}, and is right: the answer needs none, or something else gives it away", remedy, **moved)
    return failed(told, remedy, **moved)


def positions(patient: Patient) -> Checked:
    """Positions that the evaluation uses and no training step has touched."""
    subject = patient.subject
    if subject.untrained is not None:
        told = {name: patient.asked("untrained", subject.untrained, each) for name, each in patient.sets.items()}
        found = {name: [int(row) for row in rows] for name, rows in told.items()}
    elif subject.tables and subject.trained_on is not None:
        trained_on = [subject.trained_on] if isinstance(subject.trained_on, Problems) else subject.trained_on
        trained = [_rows_used(patient, table, trained_on) for table in subject.tables]
        if not any(trained):
            return skipped("no answer depends on the 1 or more tables given; give the parameters themselves, no slices")
        found = {
            name: sorted({row for table, seen in zip(subject.tables, trained, strict=True)
                          for row in _rows_used(patient, table, [problems]) - seen})
            for name, problems in patient.sets.items()
        }  # fmt: skip
    else:
        return skipped("it needs the position table and what it was trained on: Subject(tables=[…], trained_on=[…])")
    used = {name: rows for name, rows in found.items() if rows}
    if not used:
        return passed(f"every position of {len(found)} evaluated sets was trained")
    name, rows = max(used.items(), key=lambda entry: len(entry[1]))
    return warned(
        f"{name} uses {len(rows)} positions that no training step has touched ({rows[0]} to {rows[-1]})",
        "claim nothing of those lengths, or choose an encoding without a table",
        untrained=used,
    )


def _rows_used(patient: Patient, table: Tensor, sets: Sequence[Problems]) -> set[int]:
    """The rows of a table that any answer depends on, by its gradient."""
    used, needed = set(), table.requires_grad
    table.requires_grad_(True)
    try:
        for problems in sets:
            for some in batches(problems):
                with torch.enable_grad():
                    logits = _with_gradients(patient, some)
                if not logits.requires_grad:
                    raise HeadwayError(
                        f"{patient.subject.name} answers without gradients; leave out torch.no_grad(), or tables"
                    )
                (slope,) = torch.autograd.grad(logits.float().pow(2).sum(), table, allow_unused=True)
                if slope is not None:
                    used |= set(slope.flatten(1).abs().sum(1).nonzero()[:, 0].tolist())
    finally:
        table.requires_grad_(needed)
    return used


def _with_gradients(patient: Patient, problems: Problems) -> Tensor:
    """One pass by the same door as every other, with gradients on."""
    subject = patient.subject
    try:
        if subject.decode is not None and subject.start is not None:
            return subject.decode(problems.source, patient.written(problems))
        return subject.runner.run(problems)
    except Exception as error:
        raise HeadwayError(f"the model of {subject.name} failed ({type(error).__name__}: {error})") from error
