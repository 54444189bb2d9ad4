"""Does an ablation ablate? Checks of how heads are closed, and of what is claimed from single heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headway.doctor.check import Checked, failed, passed, skipped
from headway.doctor.patient import Patient, largest
from headway.models import Attention, Head, Site
from headway.tasks import Problems

TRIED = 6
"""heads that are closed one by one"""
ROUNDING = 1e-3
"""of logits that are computed in two ways"""


def gates(patient: Patient) -> Checked:
    """Open gates change nothing, closed ones something, and one closed head is the columns of its projection."""
    subject, problems = patient.subject, patient.few
    if not subject.heads:
        return skipped("it has no heads with gates; name them as Subject(heads=…)")
    if not patient.can_ablate:
        return skipped("it needs your ablation: Subject(ablate=lambda problems, heads: logits)")
    plain, count = patient.logits[: len(problems)], len(subject.heads)
    opened = largest(patient.without(problems, ()) - plain)
    closed = largest(patient.without(problems, subject.heads) - plain)
    numbers = {"opened": opened, "closed": closed}
    if opened > patient.same:
        return failed(
            f"opening all {count} gates moves logits by up to {opened:.2g}: it should change nothing",
            "apply a gate as g·z + (1 − g)·r before the output projection",
            **numbers,
        )
    if closed <= patient.same:
        return failed(
            f"closing all {count} heads moves no logit by more than {closed:.1g}: the ablation is not wired",
            "multiply the heads' outputs, before the output projection, by their gates",
            **numbers,
        )
    axis = _wrong_axis(patient, problems)
    if axis is not None:
        return failed(
            f"closing {axis[0]} is not zeroing its columns of the output projection (logits differ by {axis[1]:.2g}): "
            f"{axis[2]}",
            "a head is some columns of the projection's weight: zero those",
            **numbers, head=str(axis[0]), difference=axis[1],
        )  # fmt: skip
    proved = "" if not _projections(patient) else "; closing one is zeroing its columns"
    return passed(
        f"all {count} gates open move no logit by more than {opened:.1g}, all closed up to {closed:.2g}{proved}",
        **numbers,
    )


def _projections(patient: Patient) -> Mapping[Site, nn.Module]:
    """The output projection of each site: as given, or those of a model of ours."""
    ours = {m.site: m.out for m in patient.subject.model.modules() if isinstance(m, Attention) and m.heads}
    return patient.subject.projections or ours


def _wrong_axis(patient: Patient, problems: Problems) -> tuple[Head, float, str] | None:
    """A head whose closing touches other than its columns, by how much, and what it touches instead."""
    outputs, heads = _projections(patient), patient.subject.heads
    for head in heads[:: max(1, len(heads) // TRIED)]:
        output = outputs.get(head.site)
        weight = getattr(output, "weight", None)
        if output is None or not isinstance(weight, Tensor) or weight.dim() != 2:
            continue
        fewest = max(each.number for each in heads if each.site == head.site) + 1
        differences = []
        for count in range(fewest, weight.shape[1] + 1):  # heads that are not named may follow
            if weight.shape[1] % count == 0:
                differences.append(_beside(patient, problems, output, head, weight.shape[1] // count))
                if differences[-1] <= ROUNDING:
                    break
        else:
            if differences:
                rows = _zeroes_rows(patient, problems, output, head, weight.shape[1] // fewest)
                told = "rows are zeroed, which mix all heads" if rows else "something else is closed"
                return head, differences[0], told
    return None


def _zeroes_rows(patient: Patient, problems: Problems, output: nn.Module, head: Head, width: int) -> bool:
    own, closed = slice(head.number * width, (head.number + 1) * width), patient.without(problems, (head,))

    def rows(weight: Tensor, bias: Tensor | None) -> None:
        weight[own] = 0

    def rows_and_bias(weight: Tensor, bias: Tensor | None) -> None:
        weight[own] = 0
        if bias is not None:
            bias[own] = 0

    return any(largest(_with(patient, problems, output, edit) - closed) <= ROUNDING for edit in (rows, rows_and_bias))


def _beside(patient: Patient, problems: Problems, output: nn.Module, head: Head, width: int) -> float:
    """What closing a head changes besides its columns: with these zeroed nothing, whatever is put in their place; and
    with them open something, where they bring something."""
    own = slice(head.number * width, (head.number + 1) * width)

    def columns(weight: Tensor, bias: Tensor | None) -> None:
        weight[:, own] = 0

    with _edited(output, columns):
        zeroed, closed = patient.told(problems), patient.without(problems, (head,))
    left = largest(zeroed - closed)
    plain, alone = patient.told(problems), patient.without(problems, (head,))
    brings, does = largest(zeroed - plain), largest(alone - plain)
    return max(left, brings if does <= ROUNDING < brings else 0.0)


def _with(
    patient: Patient, problems: Problems, output: nn.Module, edit: Callable[[Tensor, Tensor | None], None]
) -> Tensor:
    with _edited(output, edit):
        return patient.told(problems)


@contextmanager
def _edited(output: nn.Module, edit: Callable[[Tensor, Tensor | None], None]) -> Iterator[None]:
    """An output projection with part of its weights zeroed, for a while."""
    kept = {name: parameter.detach().clone() for name, parameter in output.named_parameters()}
    try:
        with torch.no_grad():
            edit(output.weight, getattr(output, "bias", None))  # pyright: ignore[reportArgumentType]
        yield
    finally:
        with torch.no_grad():
            for name, parameter in output.named_parameters():
                parameter.copy_(kept[name])


def together(patient: Patient) -> Checked:
    """A claim made of single-head drops: what is left when those heads go together."""
    subject = patient.subject
    if not subject.claimed:
        return skipped("no heads are claimed to be prunable; Subject(claimed=[…]) names them")
    if not patient.can_ablate:
        return skipped("it needs your ablation: Subject(ablate=lambda problems, heads: logits)")
    right = patient.judged(patient.without(patient.problems, subject.claimed), patient.problems)
    joint, before = float(right.float().mean()), float(patient.right.float().mean())
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
