"""Does an ablation ablate? Checks of how heads are closed, and of what is claimed from single heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headway.doctor.check import Checked, failed, passed, skipped
from headway.doctor.patient import SAME, Patient
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
    opened = _largest(patient.without(problems, ()) - plain)
    closed = _largest(patient.without(problems, subject.heads) - plain)
    numbers = {"opened": opened, "closed": closed}
    if opened > SAME:
        return failed(
            f"opening all {count} gates moves logits by up to {opened:.2g}: it should change nothing",
            "apply a gate as g·z + (1 − g)·r before the output projection",
            **numbers,
        )
    if closed <= SAME:
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
    """A head whose closing is not the zeroing of its columns, by how much it differs, and what it is instead."""
    outputs, heads = _projections(patient), patient.subject.heads
    for head in heads[:: max(1, len(heads) // TRIED)]:
        output = outputs.get(head.site)
        if output is None:
            continue
        place = sorted(each.number for each in heads if each.site == head.site).index(head.number)
        weight = output.weight
        assert isinstance(weight, Tensor)
        width = weight.shape[1] // sum(each.site == head.site for each in heads)
        own, ours = slice(place * width, (place + 1) * width), patient.without(problems, (head,))

        def columns(weight: Tensor, bias: Tensor | None, own: slice = own) -> None:
            weight[:, own] = 0

        def rows(weight: Tensor, bias: Tensor | None, own: slice = own) -> None:
            weight[own] = 0

        def rows_and_bias(weight: Tensor, bias: Tensor | None, own: slice = own) -> None:
            weight[own] = 0
            if bias is not None:
                bias[own] = 0

        difference = _largest(_with(patient, problems, output, columns) - ours)
        if difference > ROUNDING:
            other = any(
                _largest(_with(patient, problems, output, edit) - ours) <= ROUNDING for edit in (rows, rows_and_bias)
            )
            return head, difference, "rows are zeroed, which mix all heads" if other else "something else is closed"
    return None


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


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())
