"""Does it see the order? Checks of positions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.patient import LEARNED, Patient
from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.evaluation.verdicts import largest
from headway.tasks import Problems

BLIND = 1e-5


@check("blindness", forbids=("heads", "lengths"), explains=("converged", "constant", "floor"), as_warning=True)
def blindness(patient: Patient) -> Checked:
    """Outputs that do not change when the input is permuted or reversed."""
    problems = patient.problems
    if problems.source.shape[1] < 2:
        return skipped("a source of one token has no order")
    moved = {}
    for name, source in (("permuted", problems.source.roll(1, 1)), ("reversed", problems.source.flip(1))):
        logits = patient.run(Problems(source, problems.answer, problems.scored))
        moved[name] = largest(logits - patient.logits)
    if max(moved.values()) > BLIND:
        return passed(f"permuting the source moves logits by up to {moved['permuted']:.2g}", **moved)
    meaning = f"no logit moves by more than {max(moved.values()):.1g} when the source is permuted: it sees no order"
    remedy = "tell it the order: positions that are not symmetric, or a mask"
    if patient.interval.low < LEARNED:
        return failed(meaning, remedy, **moved)
    return warned(f"{meaning}, and is right: the answer needs none, or something else gives it away", remedy, **moved)


@check("positions", explains=("constant",), as_warning=True)
def positions(patient: Patient) -> Checked:
    """Positions that the evaluation uses and no training step has touched."""
    subject = patient.subject
    if subject.untrained is not None:
        returned = {name: patient.call("untrained", subject.untrained, each) for name, each in patient.sets.items()}
        found = {name: [int(row) for row in rows] for name, rows in returned.items()}
    elif subject.tables and subject.trained_on is not None:
        trained = [_rows_used(patient, table, patient.trained_on) for table in subject.tables]
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
        for some in (batch for problems in sets for batch in batches(problems)):
            with torch.enable_grad():
                total = patient.run(some).pow(2).sum()
            if not total.requires_grad:
                raise HeadwayError(
                    f"{patient.subject.name} answers without gradients; leave out torch.no_grad(), or tables"
                )
            (gradient,) = torch.autograd.grad(total, table, allow_unused=True)
            if gradient is not None:
                used |= set(gradient.flatten(1).abs().sum(1).nonzero()[:, 0].tolist())
    finally:
        table.requires_grad_(needed)
    return used
