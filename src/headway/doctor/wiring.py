"""Does an ablation ablate? Checks of gates, and of what is claimed from single heads."""

from __future__ import annotations

import torch

from headway.doctor.check import Checked, failed, passed, skipped
from headway.doctor.patient import FEW, SAME, Patient
from headway.evaluation.examples import batches
from headway.heads.pruning import closed_gates


def gates(patient: Patient) -> Checked:
    """Open gates change nothing, closed ones something."""
    subject, problems = patient.subject, patient.problems[:FEW]
    if not subject.heads:
        return skipped("it has no heads with gates; name them as Subject(heads=…)")
    plain = patient.logits[:FEW]
    with torch.no_grad():
        opened = subject.model(problems.source, problems.answer, closed_gates(subject.model, ()))
        closed = subject.model(problems.source, problems.answer, closed_gates(subject.model, subject.heads))
    moved, left = float((opened - plain).abs().max()), float((closed - plain).abs().max())
    if moved > SAME:
        return failed(
            f"opening all {len(subject.heads)} gates moves logits by up to {moved:.2g}: it should change nothing",
            "apply a gate as g·z + (1 − g)·r before the output projection",
            opened=moved, closed=left,
        )  # fmt: skip
    if left <= SAME:
        return failed(
            f"closing all {len(subject.heads)} heads moves no logit by more than {left:.1g}: the ablation is not wired",
            "multiply the heads' outputs, before the output projection, by their gates",
            opened=moved, closed=left,
        )  # fmt: skip
    return passed(
        f"all {len(subject.heads)} gates open move no logit by more than {moved:.1g}, all closed up to {left:.2g}",
        opened=moved, closed=left,
    )  # fmt: skip


def together(patient: Patient) -> Checked:
    """A claim made of single-head drops: what is left when those heads go together."""
    subject = patient.subject
    if not subject.claimed:
        return skipped("no heads are claimed to be prunable; Subject(claimed=[…]) names them")
    shut, right = closed_gates(subject.model, subject.claimed), []
    with torch.no_grad():
        for some in batches(patient.problems):
            right.append(subject.correct(subject.model(some.source, some.answer, shut), some))
    joint, before = float(torch.cat(right).float().mean()), float(patient.right.float().mean())
    numbers = {"baseline": before, "together": joint, "heads": [str(head) for head in subject.claimed]}
    if before - joint <= subject.max_drop:
        return passed(
            f"without all {len(subject.claimed)} claimed heads {joint:.4f} are right, {before:.4f} with", **numbers
        )
    return failed(
        f"{len(subject.claimed)} heads may each go alone; without all of them {joint:.4f} are right, {before:.4f} with",
        "count heads that can go together: headway heads searches for them",
        **numbers,
    )
