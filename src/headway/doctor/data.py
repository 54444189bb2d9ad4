"""Was it seen before, and is it fair? Checks of the problems themselves."""

import torch
from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.patient import Patient, describe
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import best_constant
from headway.tasks.random import digest

BY_CHANCE = 0.01
"""a share of test problems that small may be among the training problems where the space is small"""
UNEVEN = 0.6
"""a class with a larger share makes a constant answer look like skill"""


@check("overlap", explains=("converged",))
def overlap(patient: Patient) -> Checked:
    """Test problems that training has seen, and accuracy on seen and never-seen apart."""
    subject, problems = patient.subject, patient.problems
    if subject.held_out is not None:
        fresh = patient.call("held_out", subject.held_out, problems)
        if not isinstance(fresh, Tensor) or fresh.dtype != torch.bool or fresh.shape != (len(problems),):
            raise HeadwayError(f"held_out of {subject.name} returned {describe(fresh)}; return one bool a problem")
        if fresh.any():
            return _compare(patient, ~fresh)
        return warned("none of the problems is held out: all may have been trained on (0 never seen)", "hold some out")
    if subject.trained_on is None:
        return skipped("it needs the training problems: Subject(trained_on=Problems(source, answer))")
    width = problems.source.shape[1]
    known = [digest(each.source) for each in patient.trained_on if each.source.shape[1] == width]
    if not known:
        return skipped(f"no training problem given has the {width} tokens of the examples")
    seen = torch.isin(digest(problems.source), torch.cat(known))
    share = float(seen.float().mean())
    if not share:
        count = sum(map(len, patient.trained_on))
        return passed(f"none of {len(problems):,} test problems is among {count:,} training problems")
    found = _compare(patient, seen)
    meaning = f"{share:.1%} of the test problems were trained on; {found.meaning}"
    if found.status == "pass" and share <= BY_CHANCE:
        return passed(meaning, seen=share)
    alarm = warned if found.status == "pass" else failed
    return alarm(meaning, "take them out of the test, or report both numbers", seen=share)


def _compare(patient: Patient, seen: Tensor) -> Checked:
    """Seen and never seen apart: where the latter is worse beyond chance, it was learned by heart."""

    def accuracy(rows: Tensor) -> str:
        return f"{float(patient.right[rows].float().mean()):.4f} of {int(rows.sum()):,}" if rows.any() else "none"

    meaning = f"right on {accuracy(seen)} that training may have shown, {accuracy(~seen)} that it never did"
    if seen.all() or not seen.any():
        return passed(meaning)
    known, new = (wilson(int(patient.right[rows].sum()), int(rows.sum())) for rows in (seen, ~seen))
    if new.high >= known.low:
        return passed(meaning, new=new.to_json())
    return failed(meaning, "hold out at random, and report what it was never shown", new=new.to_json())


@check("balance", forbids=("lengths",), explains=("converged", "constant"), as_warning=True)
def balance(patient: Patient) -> Checked:
    """What always answering the same scores on every evaluated set."""
    if not patient.answers_with_class:
        share = best_constant(patient.problems)
        if share <= UNEVEN:
            return passed(f"the commonest answer has a share of {share:.4f}", commonest=share)
        meaning = f"one answer has a share of {share:.3f}: giving it always scores that"
        return warned(meaning, "draw problems with different answers", commonest=share)
    shares = {name: best_constant(problems) for name, problems in patient.sets.items()}
    name = max(shares, key=shares.__getitem__)
    if shares[name] <= UNEVEN:
        return passed(f"the larger class has at most {shares[name]:.3f} of any set", commonest=shares)
    return warned(
        f"in {name} one class has {shares[name]:.3f}: always answering it scores that",
        "balance the set, or report what always answering the same scores",
        commonest=shares,
    )
