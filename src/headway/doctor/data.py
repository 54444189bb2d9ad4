"""What is it given? Checks of the problems, whether they were seen before and are fair, and of what the model sees of
their order."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.patient import LEARNED, Patient
from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import best_constant, largest
from headway.tasks import Problems
from headway.tasks.random import digest

BY_CHANCE = 0.01  # a share of test problems that small may be among the training problems where the space is small
UNEVEN = 0.6  # a class with a larger share makes a constant answer look like skill
BLIND = 1e-5


@check("overlap", explains=("converged",))
def overlap(patient: Patient) -> Checked:
    """Test problems that training has seen, and accuracy on seen and never-seen apart."""
    subject, problems = patient.subject, patient.problems
    if subject.held_out is not None:
        fresh = patient.call("held_out", subject.held_out, problems)
        if not isinstance(fresh, Tensor) or fresh.dtype != torch.bool or fresh.shape != (len(problems),):
            raise patient.wrong("held_out", fresh, "; return one bool a problem")
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
    meaning = f"in {name} one class has {shares[name]:.3f}: always answering it scores that"
    return warned(meaning, "balance the set, or report what always answering the same scores", commonest=shares)


@check("blindness", forbids=("heads", "lengths"), explains=("converged", "constant", "floor"), as_warning=True)
def blindness(patient: Patient) -> Checked:
    """Outputs that do not change when the input is permuted or reversed."""
    problems = patient.problems
    if problems.source.shape[1] < 2:
        return skipped("a source of one token has no order")
    others = {"permuted": problems.source.roll(1, 1), "reversed": problems.source.flip(1)}
    runs = {name: patient.run(replace(problems, source=source)) for name, source in others.items()}
    moved = {name: largest(logits - patient.logits) for name, logits in runs.items()}
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
    subject, found = patient.subject, {}
    if subject.untrained is not None:
        for name, problems in patient.sets.items():
            found[name] = [int(row) for row in patient.call("untrained", subject.untrained, problems)]
    elif subject.tables and subject.trained_on is not None:
        trained = [_rows_used(patient, table, patient.trained_on) for table in subject.tables]
        if not any(trained):
            return skipped("no answer depends on the 1 or more tables given; give the parameters themselves, no slices")
        for name, problems in patient.sets.items():
            used = [_rows_used(patient, table, [problems]) for table in subject.tables]
            found[name] = sorted({row for rows, seen in zip(used, trained, strict=True) for row in rows - seen})
    else:
        return skipped("it needs the position table and what it was trained on: Subject(tables=[…], trained_on=[…])")
    untrained = {name: rows for name, rows in found.items() if rows}
    if not untrained:
        return passed(f"every position of {len(found)} evaluated sets was trained")
    name, rows = max(untrained.items(), key=lambda entry: len(entry[1]))
    meaning = f"{name} uses {len(rows)} positions that no training step has touched ({rows[0]} to {rows[-1]})"
    return warned(meaning, "claim nothing of those lengths, or choose an encoding without a table", untrained=untrained)


def _rows_used(patient: Patient, table: Tensor, sets: Sequence[Problems]) -> set[int]:
    """The rows of a table that any answer depends on, by its gradient."""
    used, needed = set(), table.requires_grad
    table.requires_grad_(True)
    try:
        for some in (batch for problems in sets for batch in batches(problems)):
            with torch.enable_grad():
                total = patient.run(some).pow(2).sum()
            if not total.requires_grad:
                name = patient.subject.name
                raise HeadwayError(f"{name} answers without gradients; leave out torch.no_grad(), or tables")
            (gradient,) = torch.autograd.grad(total, table, allow_unused=True)
            if gradient is not None:
                used |= set(gradient.flatten(1).abs().sum(1).nonzero()[:, 0].tolist())
    finally:
        table.requires_grad_(needed)
    return used
