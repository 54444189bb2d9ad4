"""Was it seen before? Checks of the problems themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.doctor.check import Checked, failed, passed, skipped, warned
from headway.doctor.patient import Patient, shown
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.tasks import Problems
from headway.tasks.random import digest

BY_CHANCE = 0.01
"""a share of test problems that small may be among the training problems where the space is small"""


def overlap(patient: Patient) -> Checked:
    """Test problems that training has seen, and accuracy on seen and never-seen apart."""
    subject, problems = patient.subject, patient.problems
    if subject.held_out is not None:
        fresh = patient.asked("held_out", subject.held_out, problems)
        if not isinstance(fresh, Tensor) or fresh.dtype != torch.bool or fresh.shape != (len(problems),):
            raise HeadwayError(f"held_out of {subject.name} returned {shown(fresh)}; return one bool a problem")
        if not fresh.any():
            return warned(
                "none of the problems is held out: all may have been trained on (0 never seen)", "hold some out"
            )
        return _compared(patient, ~fresh)
    if subject.trained_on is None:
        return skipped("it needs the training problems: Subject(trained_on=Problems(source, answer))")
    lists = [subject.trained_on] if isinstance(subject.trained_on, Problems) else list(subject.trained_on)
    known = [digest(each.source) for each in lists if each.source.shape[1] == problems.source.shape[1]]
    if not known:
        return skipped(f"no training problem given has the {problems.source.shape[1]} tokens of the examples")
    seen = torch.isin(digest(problems.source), torch.cat(known))
    share = float(seen.float().mean())
    if not share:
        count = sum(map(len, lists))
        return passed(f"none of {len(problems):,} test problems is among {count:,} training problems")
    found = _compared(patient, seen)
    told = f"{share:.1%} of the test problems were trained on; {found.meaning}"
    if found.status == "pass" and share <= BY_CHANCE:
        return passed(told, seen=share)
    say = warned if found.status == "pass" else failed
    return say(told, "take them out of the test, or report both numbers", seen=share)


def _compared(patient: Patient, seen: Tensor) -> Checked:
    """Seen and never seen apart: where the latter is worse beyond chance, it was learned by heart."""
    told = _apart(patient, seen)
    if seen.all() or not seen.any():
        return passed(told)
    known, new = (wilson(int(patient.right[rows].sum()), int(rows.sum())) for rows in (seen, ~seen))
    if new.high >= known.low:
        return passed(told, new=new.to_json())
    return failed(told, "hold out at random, and report what it was never shown", new=new.to_json())


def _apart(patient: Patient, seen: Tensor) -> str:
    def accuracy(rows: Tensor) -> str:
        return f"{float(patient.right[rows].float().mean()):.4f} of {int(rows.sum()):,}" if rows.any() else "none"

    return f"right on {accuracy(seen)} that training may have shown, {accuracy(~seen)} that it never did"
