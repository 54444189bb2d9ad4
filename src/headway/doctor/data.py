"""Was it seen before? Checks of the problems themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.doctor.check import Checked, failed, passed, skipped, warned
from headway.doctor.patient import Patient
from headway.tasks import Problems
from headway.tasks.random import digest


def overlap(patient: Patient) -> Checked:
    """Test problems that training has seen, and accuracy on seen and never-seen apart."""
    subject, problems = patient.subject, patient.problems
    if subject.held_out is not None:
        fresh = subject.held_out(problems)
        if not fresh.any():
            return warned(
                "none of the problems is held out: all may have been trained on (0 never seen)", "hold some out"
            )
        return passed(_apart(patient, ~fresh))
    if subject.trained_on is None:
        return skipped("it needs the training problems: Subject(trained_on=Problems(source, answer))")
    seen = torch.isin(_keys(problems), _keys(subject.trained_on))
    share = float(seen.float().mean())
    if not share:
        return passed(f"none of {len(problems):,} test problems is among {len(subject.trained_on):,} training problems")
    return failed(
        f"{share:.1%} of the test problems were trained on; {_apart(patient, seen)}",
        "take them out of the test, or report both numbers",
        seen=share,
    )


def _apart(patient: Patient, seen: Tensor) -> str:
    def accuracy(rows: Tensor) -> str:
        return f"{float(patient.right[rows].float().mean()):.4f} of {int(rows.sum()):,}" if rows.any() else "none"

    return f"right on {accuracy(seen)} that training may have shown, {accuracy(~seen)} that it never did"


def _keys(problems: Problems) -> Tensor:
    return digest(problems.source)
