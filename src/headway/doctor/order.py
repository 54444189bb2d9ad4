"""Can the model see what it is asked about? Checks of order and of positions."""

from __future__ import annotations

import torch

from headway.doctor.check import Checked, failed, passed, skipped, warned
from headway.doctor.patient import Patient
from headway.tasks import Problems

BLIND = 1e-5


def blindness(patient: Patient) -> Checked:
    """Outputs that do not change when the input is permuted or reversed."""
    problems = patient.problems
    length = problems.source.shape[1]
    if length < 2:
        return skipped("a source of one token has no order")
    order = torch.randperm(length, generator=torch.Generator().manual_seed(0)).to(problems.source.device)
    moved = {}
    for name, source in (("permuted", problems.source[:, order]), ("reversed", problems.source.flip(1))):
        told = patient.told(Problems(source, problems.answer, problems.scored))
        moved[name] = float((told - patient.logits).abs().max())
    blind = [name for name, value in moved.items() if value <= BLIND]
    if not blind:
        return passed(f"permuting the source moves logits by up to {moved['permuted']:.2g}", **moved)
    return failed(
        f"no logit moves by more than {moved[blind[0]]:.1g} when the source is {blind[0]}: to it they are the same",
        "tell it the order: a position encoding that is not symmetric, or a causal mask",
        **moved,
    )


def positions(patient: Patient) -> Checked:
    """Positions that the evaluation uses and no training step has touched."""
    untrained = patient.subject.untrained
    if untrained is None:
        return skipped("it needs to know which positions were trained: Subject(untrained=lambda problems: [indices])")
    found = {name: untrained(problems) for name, problems in patient.sets.items()}
    used = {name: rows for name, rows in found.items() if rows}
    if not used:
        return passed(f"every position of {len(found)} evaluated sets was trained")
    name, rows = max(used.items(), key=lambda entry: len(entry[1]))
    return warned(
        f"{name} uses {len(rows)} positions that no training step has touched ({rows[0]} to {rows[-1]})",
        "claim nothing of those lengths, or choose an encoding without a table",
        untrained=used,
    )
