"""Checks of the data: whether test problems were trained on and are balanced, and whether the model sees the order of
their tokens."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from headway.doctor.check import Checked, check, failed, passed, skipped, warned
from headway.doctor.patient import LEARNED, Patient
from headway.doctor.readings import read_best
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import best_constant, largest
from headway.subjects.tables import find_used_rows
from headway.tasks.random import digest

BY_CHANCE = 0.01  # a share of test problems that may be trained on by chance, where there are few problems
UNEVEN = 0.6  # with a larger share for one class, a constant answer looks like skill
BLIND = 1e-5


@check("overlap", explains=("floor",))
def overlap(patient: Patient) -> Checked:
    """Finds test problems that were trained on, and compares accuracy on seen and unseen ones."""
    subject, problems = patient.subject, patient.problems
    if subject.held_out is None and subject.trained_on is None:
        return skipped("it needs the training problems: Subject(trained_on=Problems(source, answer))")
    fresh, seen = patient.once(find_held_out), patient.once(find_trained_on)
    if "held_out" in patient.broken:
        remedy = "return one bool per problem"
        return warned(f"held_out could not be used: {patient.broken['held_out']}", remedy, examples=len(problems))
    if fresh is not None:
        if seen is not None and (both := float((fresh & seen).float().mean())):
            meaning = f"{both:.1%} of the test problems are called held out and were trained on; "
            found = _compare(patient, seen)
            remedy = "keep what is held out from the training problems"
            return failed(meaning + found.meaning, remedy, seen=both).because_of()
        if fresh.any():
            return _compare(patient, ~fresh)
        return warned("no problem is held out: all may have been trained on (0 unseen)", "hold some out")
    if seen is None:
        width = problems.source.shape[1]
        return skipped(f"no given training problem has {width} tokens, as the examples do")
    share, count = float(seen.float().mean()), sum(map(len, patient.trained_on))
    if not share:
        return passed(f"none of {len(problems):,} test problems is among {count:,} training problems")
    found, chance = _compare(patient, seen), estimate_chance(patient)
    by_chance = wilson(int(seen.sum()), len(seen)).low <= max(chance, BY_CHANCE)
    beside = f" ({chance:.1%} would be by chance)" if chance >= 0.0005 else ""
    meaning = f"{share:.1%} of the test problems were trained on{beside}; {found.meaning}"
    if found.status == "pass" and by_chance:
        return passed(meaning, seen=share, chance=chance)
    alarm = warned if found.status == "pass" else failed
    remedy = "remove them from the test set, or report both numbers"
    return alarm(meaning, remedy, seen=share, chance=chance).because_of()


def find_held_out(patient: Patient) -> Tensor | None:
    """Marks the problems that the subject says training never uses; None if it does not say."""
    subject, problems = patient.subject, patient.problems
    if subject.held_out is None:
        return None
    fresh = patient.attempt("held_out", subject.held_out, problems)
    if "held_out" in patient.broken:
        return None
    if not isinstance(fresh, Tensor) or fresh.dtype != torch.bool or fresh.shape != (len(problems),):
        patient.broken["held_out"] = str(patient.bad_return("held_out", fresh, "; return one bool per problem"))
        return None
    return fresh


def find_trained_on(patient: Patient) -> Tensor | None:
    """Marks the problems that are among the training problems; None if none of these has their length."""
    if patient.subject.trained_on is None:
        return None
    source = patient.problems.source
    known = [digest(each.source) for each in patient.trained_on if each.source.shape[1] == source.shape[1]]
    return torch.isin(digest(source), torch.cat(known)) if known else None


def find_seen(patient: Patient) -> Tensor | None:
    """Marks the problems that may have been trained on."""
    fresh = patient.once(find_held_out)
    return ~fresh if fresh is not None and fresh.any() else patient.once(find_trained_on)


def estimate_chance(patient: Patient) -> float:
    """Estimates which share of the test problems is trained on if both are drawn at random: the different training
    problems of this length, among all that there can be, each token with every value that it takes anywhere."""
    source = patient.problems.source
    known = [each.source for each in patient.trained_on if each.source.shape[1] == source.shape[1]]
    every, columns = torch.cat((source, *known)), range(source.shape[1])
    possible = math.prod(len(every[:, at].unique()) for at in columns)
    if patient.subject.count is not None:
        possible = min(possible, patient.subject.count)
    return min(1.0, len(torch.cat([digest(each) for each in known]).unique()) / possible)


def _compare(patient: Patient, seen: Tensor) -> Checked:
    """Compares accuracy on seen and unseen problems: if the latter is worse beyond chance, it has memorized."""

    right = patient.right if len(best := patient.once(read_best).right) < len(patient.right) else best

    def accuracy(rows: Tensor) -> str:
        return f"{float(right[rows].float().mean()):.4f} of {int(rows.sum()):,}" if rows.any() else "none"

    meaning = f"right on {accuracy(seen)} that may have been trained on, {accuracy(~seen)} that were not"
    if seen.all() or not seen.any():
        return passed(meaning)
    known, new = (wilson(int(right[rows].sum()), int(rows.sum())) for rows in (seen, ~seen))
    if new.high >= known.low:
        return passed(meaning, new=new.to_json())
    return failed(meaning, "hold out at random, and report accuracy on unseen problems", new=new.to_json()).because_of()


@check("balance", forbids=("lengths",), explains=("converged", "constant", "floor"), as_warning=True)
def balance(patient: Patient) -> Checked:
    """Checks what a constant answer scores on every evaluated set."""
    if not patient.answers_with_class:
        share = best_constant(patient.problems)
        if share <= UNEVEN:
            return passed(f"the commonest answer has a share of {share:.4f}", commonest=share)
        meaning = f"one answer has a share of {share:.3f}: always giving it scores that"
        return warned(meaning, "draw problems with different answers", commonest=share)
    shares = {name: best_constant(problems) for name, problems in patient.sets.items()}
    name = max(shares, key=shares.__getitem__)
    if shares[name] <= UNEVEN:
        return passed(f"the larger class has at most {shares[name]:.3f} of any set", commonest=shares)
    meaning = f"in {name} one class has {shares[name]:.3f}: a constant answer scores that"
    return warned(meaning, "balance the set, or report what a constant answer scores", commonest=shares)


@check("blindness", forbids=("heads", "lengths"), explains=("converged", "constant", "floor"), as_warning=True)
def blindness(patient: Patient) -> Checked:
    """Checks that the output changes when the input is permuted or reversed."""
    problems = patient.problems
    if problems.source.shape[1] < 2:
        return skipped("sources have one token, which has no order")
    moved = {}
    for name, source in (("permuted", problems.source.roll(1, 1)), ("reversed", problems.source.flip(1))):
        moved[name] = largest(patient.run(replace(problems, source=source)) - patient.logits)
        if moved[name] > BLIND:
            what = "permuting" if name == "permuted" else "reversing"
            return passed(f"{what} the source moves logits by up to {moved[name]:.2g}", **moved)
    meaning = f"no logit moves by more than {max(moved.values()):.1g} when the source is permuted: it sees no order"
    remedy = "add positions that are not symmetric, or a mask"
    if patient.interval.low < LEARNED:
        return failed(meaning, remedy, **moved)
    return warned(f"{meaning}, and is right: the answer needs none, or something else leaks it", remedy, **moved)


@check("positions", explains=("constant",), as_warning=True)
def positions(patient: Patient) -> Checked:
    """Checks that the evaluation uses no position that was never trained."""
    subject, found = patient.subject, {}
    if subject.untrained is not None:
        for name, problems in patient.sets.items():
            found[name] = [int(row) for row in patient.call("untrained", subject.untrained, problems)]
    elif subject.tables and subject.trained_on is not None:
        trained = find_used_rows(patient.run, subject.tables, patient.trained_on, subject.name)
        if not any(trained):
            return skipped("no answer depends on the 1 or more tables given; give the parameters, not slices")
        for name, problems in patient.sets.items():
            used = find_used_rows(patient.run, subject.tables, [problems], subject.name)
            found[name] = sorted({row for rows, seen in zip(used, trained, strict=True) for row in rows - seen})
    else:
        return skipped("it needs the position tables and the training problems: Subject(tables=[…], trained_on=[…])")
    untrained = {name: rows for name, rows in found.items() if rows}
    if not untrained:
        return passed(f"every position of {len(found)} evaluated sets was trained")
    name, rows = max(untrained.items(), key=lambda entry: len(entry[1]))
    meaning = f"{name} uses {len(rows)} positions that were never trained ({rows[0]} to {rows[-1]})"
    return warned(meaning, "claim nothing about those lengths, or use an encoding without a table", untrained=untrained)
