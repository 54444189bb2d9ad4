"""Checks of claims: how heads are ablated, and what a claim about heads or about one seed is based on."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from headway.attach.opening import prepare_subject
from headway.doctor.check import Checked, check, failed, hidden, passed, skipped, warned
from headway.doctor.patient import LEARNED, Patient
from headway.doctor.readings import judge_best, read_best
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import largest
from headway.models import Attention, Head, Site
from headway.tasks import Problems

TRIED = 6  # heads to ablate one by one
ZEROED = 100  # problems on which each of them is ablated
ROUNDING = 1e-3  # tolerance for logits that are computed in two ways
FLOOR = 0.5  # accuracy below which drops say little about heads
FEWEST_SEEDS = 3
LOWER_ACCURACY = (
    "converged", "constant", "start token", "given digits", "never said", "causality", "padding", "evaluation mode",
    "overlap", "balance", "blindness",
)  # fmt: skip
"""the checks whose failure can make most answers wrong"""
NO_ABLATION = "it needs your ablation: Subject(ablate=lambda problems, heads: logits)"


@check("gates", forbids=("heads",))
def gates(patient: Patient) -> Checked:
    """Checks that open gates change nothing, and that ablating a head zeroes its columns of the output projection."""
    heads, problems = patient.subject.heads, patient.few
    if not heads:
        both = patient.subject.reader is not None and patient.subject.decode is not None
        unused = "; beside decode, reader is used only with sites" if both else ""
        return skipped(f"it has no heads with gates; name them with Subject(heads=…), or give sites='auto'{unused}")
    if not patient.can_ablate:
        return skipped(NO_ABLATION)
    plain, count = patient.ablate(problems, ()), len(heads)
    opened, closed = _measure_opening(patient, plain), largest(patient.ablate(problems, heads) - plain)
    numbers = {"opened": opened, "closed": closed}
    if opened is not None and opened > patient.tolerance:
        meaning = f"opening all {count} gates moves logits by up to {opened:.2g}, but should change nothing"
        remedy = "apply a gate as g·z + (1 − g)·r before the output projection"
        return failed(meaning, remedy, **numbers).because_of()
    if closed <= patient.tolerance:
        meaning = f"ablating all {count} heads moves no logit by more than {closed:.1g}: the ablation has no effect"
        remedy = "multiply the heads' outputs by their gates, before the output projection"
        return failed(meaning, remedy, **numbers).because_of()
    ours = {m.site: m.out for m in patient.subject.model.modules() if isinstance(m, Attention) and m.heads}
    projections = patient.subject.projections or ours
    wrong = _find_wrong_axis(patient, projections, plain[:ZEROED])
    if wrong is not None:
        head, difference, instead = wrong
        what = f"ablating {head} does not zero its columns of the output projection (logits differ by {difference:.2g})"
        remedy = "a head is a block of columns of the projection's weight: zero those"
        return failed(f"{what}: {instead}", remedy, **numbers, head=str(head), difference=difference).because_of()
    proved = "; ablating a head zeroes its columns" if projections else ""
    shown = f"opening all {count} gates moves no logit by more than {opened or 0.0:.1g}, closing all up to {closed:.2g}"
    if opened is None:
        shown = f"closing all {count} gates moves logits by up to {closed:.2g}"
    return passed(f"{shown}{proved}", **numbers)


def _measure_opening(patient: Patient, opened: Tensor) -> float | None:
    """Measures how far logits with every gate open are from those of the model, run as the ablation may run it: as
    every other check does, in one pass, without a start token, or on one token more. None if they have another width
    than all of these."""
    problems, runner = patient.few, patient.subject.runner
    if patient.subject.ablate is None and runner.is_attached:
        return largest(runner.logits(problems) - opened)
    candidates = [patient.logits[: len(problems)]]
    if candidates[0].shape == opened.shape and (moved := largest(candidates[0] - opened)) <= patient.tolerance:
        return moved
    if patient.subject.decode is not None:
        inputs = [problems.answer[:, :-1], problems.answer]
        if patient.subject.start is not None:
            started = patient.decoder_input(problems)
            inputs += [started, torch.cat((started, problems.answer[:, -1:]), 1)]
        for given in inputs:
            if given.shape[1] == opened.shape[1]:
                with suppress(HeadwayError):
                    candidates.append(patient.decode(problems.source, given))
    moved = [largest(each - opened) for each in candidates if each.shape == opened.shape]
    leaks = patient.leaks
    sees_later = leaks.in_forced or leaks.in_ablation or leaks.in_decode  # it may run the model without its mask
    if not moved or (min(moved) > patient.tolerance and (sees_later or opened.shape[1] != problems.answer.shape[1])):
        return None
    return min(moved)


def _find_wrong_axis(
    patient: Patient, projections: Mapping[Site, nn.Module], plain: Tensor
) -> tuple[Head, float, str] | None:
    """Finds a head whose ablation changes more than its columns, by how much, and what it changes instead."""
    heads = patient.subject.heads
    for head in heads[:: max(1, len(heads) // TRIED)]:
        output = projections.get(head.site)
        weight = getattr(output, "weight", None)
        if output is None or not isinstance(weight, Tensor) or weight.dim() != 2:
            continue
        every, fewest = weight.shape[1], max(each.number for each in heads if each.site == head.site) + 1
        counts = [count for count in range(fewest, every + 1) if every % count == 0]  # not all heads may be named
        alone = patient.ablate(patient.few[:ZEROED], (head,))
        excess = []
        for count in counts:
            excess.append(_excess(patient, output, head, every // count, plain, alone))
            if excess[-1] <= ROUNDING:
                break
        if excess and min(excess) > ROUNDING:
            rows = any(_zeroes_rows(patient, output, head, len(weight) // count, alone) for count in counts)
            instead = "rows are zeroed, which mix all heads" if rows else "something else is ablated"
            return head, excess[0], instead
    return None


def _zeroes_rows(patient: Patient, output: nn.Module, head: Head, width: int, alone: Tensor) -> bool:
    """Tells whether ablating a head zeroes its rows of the projection, with or without those of the bias."""
    rows = slice(head.number * width, (head.number + 1) * width)
    for parts in ({"weight": rows}, {"weight": rows, "bias": rows}):
        with _zero_parts(output, **parts):
            if largest(_run_open(patient) - alone) <= ROUNDING:
                return True
    return False


def _run_open(patient: Patient) -> Tensor:
    """Runs a few problems with every gate open, in the same way as with gates closed."""
    if patient.subject.ablate is None and not patient.subject.runner.is_attached:
        return patient.run(patient.few[:ZEROED])
    return patient.ablate(patient.few[:ZEROED], ())


def _excess(patient: Patient, output: nn.Module, head: Head, width: int, plain: Tensor, alone: Tensor) -> float:
    """Measures what ablating a head changes besides its columns. Once these are zeroed it must change nothing, and
    before that it must change something if they matter."""
    with _zero_parts(output, weight=(slice(None), slice(head.number * width, (head.number + 1) * width))):
        zeroed, closed = _run_open(patient), patient.ablate(patient.few[:ZEROED], (head,))
    carries, does = largest(zeroed - plain), largest(alone - plain)
    return max(largest(zeroed - closed), carries if does <= ROUNDING < carries else 0.0)


@contextmanager
def _zero_parts(output: nn.Module, **parts: slice | tuple[slice, slice]) -> Iterator[None]:
    """Zeroes parts of the weight or bias of an output projection, and restores them afterwards."""
    original = {name: parameter.detach().clone() for name, parameter in output.named_parameters()}
    try:
        for name, part in parts.items():
            if isinstance(parameter := getattr(output, name, None), Tensor):
                parameter.data[part] = 0
        yield
    finally:
        for name, parameter in output.named_parameters():
            parameter.data.copy_(original[name])


@check("resolution")
def resolution(patient: Patient) -> Checked:
    """Checks that the number of examples can resolve the claimed margin."""
    n, margin = patient.subject.claimed_on, patient.subject.max_drop
    if n is None:
        return skipped("no claim was given; give its basis with Subject(claimed_on=EXAMPLES, max_drop=MARGIN)")
    accuracy = min(max(patient.accuracy, 1 / n), 1 - 1 / n)
    half = 1.96 * math.sqrt(2 * accuracy * (1 - accuracy) / n)
    need = math.ceil(2 * accuracy * (1 - accuracy) * (1.96 / margin) ** 2)
    if half <= margin:
        return passed(f"{n:,} examples distinguish accuracies that differ by {half:.4f}", examples=n, resolves=half)
    meaning = f"{n:,} examples cannot separate a difference of {margin:g} from noise: the 95% interval is ±{half:.3f}"
    remedy = f"use at least {need:,} examples, or claim less"
    return warned(meaning, remedy, examples=n, resolves=half, needed=need)


@check("floor", forbids=("heads",))
def floor(patient: Patient) -> Checked:
    """Checks that the baseline is high enough to rank heads."""
    if not patient.subject.heads:
        return skipped("it has no heads to rank; name them with Subject(heads=…)")
    ranked_on, right = patient.subject.ranked_on, patient.once(read_best).right
    ranked = right if ranked_on is None else judge_best(patient, ranked_on)
    accuracy = float(ranked.float().mean())
    if accuracy >= FLOOR:
        return passed(f"heads are ranked against a baseline of {accuracy:.4f}", baseline=accuracy)
    why = "with most problems wrong already, a drop says little about a head"
    meaning = f"heads are ranked against a baseline of {accuracy:.3f}: {why}"
    remedy = "rank heads on problems that the model gets right"
    result = failed(meaning, remedy, baseline=accuracy, problems=len(ranked))
    harder = wilson(int(ranked.sum()), len(ranked)).high < wilson(int(right.sum()), len(right)).low
    return result.because_of() if ranked_on is not None and harder else result.because_of(*LOWER_ACCURACY)


@check("together")
def together(patient: Patient) -> Checked:
    """Measures the accuracy without all heads that were claimed to be prunable one at a time."""
    claimed = patient.subject.claimed
    if not claimed:
        return skipped("no heads are claimed to be prunable; name them with Subject(claimed=[…])")
    if not patient.can_ablate:
        return skipped(NO_ABLATION)
    before, joint = (_accuracy_without(patient, heads, patient.problems) for heads in ((), claimed))
    numbers = {"baseline": before, "together": joint, "heads": [str(head) for head in claimed]}
    rest = f"accuracy without all {{}} is {joint:.4f}, {before:.4f} with"
    if before - joint <= patient.subject.max_drop:
        if largest(patient.ablate(patient.few, claimed) - patient.ablate(patient.few, ())) <= patient.tolerance:
            why = f"ablating {len(claimed)} heads moves no logit, so what they cost cannot be measured"
            return hidden(
                "gates", why, "mend the ablation until closing all heads changes something, and examine again"
            )
        if patient.repeats.differ:
            why = (
                f"the {len(claimed)} heads were ranked while two evaluations differ; measured without that they can go"
            )
            return hidden("evaluation mode", why, "rank the heads again after model.eval(), and examine again")
        if before < FLOOR:
            why = f"the accuracy is {before:.4f} with all heads, which {len(claimed)} fewer can hardly lower"
            remedy = "rank heads on problems that the model gets right, and examine again"
            return hidden("floor", why, remedy)
        return passed(rest.format(f"{len(claimed)} claimed heads"), **numbers)
    meaning = f"{len(claimed)} heads may each be removed alone; {rest.format('of them')}"
    remedy = "count heads that can be removed together: headway heads searches for them"
    return failed(meaning, remedy, **numbers).because_of()


@check("seeds")
def seeds(patient: Patient) -> Checked:
    """Checks how many seeds there are, their spread, and which findings change between them."""
    if not patient.subject.others:
        return skipped("1 seed does not show how findings vary; name a folder of runs, or give Subject(others=[…])")
    everyone = [patient, *(Patient(prepare_subject(other)) for other in patient.subject.others)]
    accuracies, count = [each.accuracy for each in everyone], len(everyone)
    learned = [each.interval.low >= LEARNED for each in everyone]
    costliest = [_find_costliest(each) for each in everyone]
    numbers = {"seeds": count, "accuracies": accuracies, "learned": learned, "costliest_head": costliest}
    spread = f"{count} seeds, accuracy {min(accuracies):.4f} to {max(accuracies):.4f}"
    if len(set(learned)) > 1:
        meaning = f"{spread}: {sum(learned)} of {count} have learned the task, so one seed says little"
        return warned(meaning, "report every seed, and fix what keeps the others from learning", **numbers)
    if patient.subject.claimed and len(set(costliest)) > 1:
        named = ", ".join(map(str, costliest[:FEWEST_SEEDS]))
        meaning = f"{spread}, but the costliest head differs: {named}"
        return warned(meaning, "report how many heads are needed over seeds, not which", **numbers)
    if count < FEWEST_SEEDS:
        return warned(f"{spread}: too few to show how findings vary", f"train at least {FEWEST_SEEDS} seeds", **numbers)
    return passed(f"{spread}; all have {'' if all(learned) else 'not '}learned the task", **numbers)


def _find_costliest(patient: Patient) -> str | None:
    """Finds the head whose ablation costs most, if heads can be ablated."""
    if not patient.subject.heads or not patient.can_ablate:
        return None
    return str(min(patient.subject.heads, key=lambda head: _accuracy_without(patient, (head,), patient.few)))


def _accuracy_without(patient: Patient, heads: tuple[Head, ...], problems: Problems) -> float:
    return float(patient.judge_ablated(problems, heads).float().mean())
