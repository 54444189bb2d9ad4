"""Does an ablation ablate? A check of how heads are closed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from headway.doctor.check import Checked, check, failed, passed, skipped
from headway.doctor.patient import Patient
from headway.evaluation.verdicts import largest
from headway.models import Attention, Head, Site
from headway.tasks import Problems

TRIED = 6
"""heads that are closed one by one"""
ROUNDING = 1e-3
"""of logits that are computed in two ways"""


@check("gates", forbids=("heads",))
def gates(patient: Patient) -> Checked:
    """Open gates change nothing, closed ones something, and one closed head is the columns of its projection."""
    subject, problems = patient.subject, patient.few
    if not subject.heads:
        return skipped("it has no heads with gates; name them as Subject(heads=…)")
    if not patient.can_ablate:
        return skipped("it needs your ablation: Subject(ablate=lambda problems, heads: logits)")
    plain, count = patient.logits[: len(problems)], len(subject.heads)
    opened = largest(patient.ablate(problems, ()) - plain)
    closed = largest(patient.ablate(problems, subject.heads) - plain)
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
                instead = "rows are zeroed, which mix all heads" if rows else "something else is closed"
                return head, differences[0], instead
    return None


def _zeroes_rows(patient: Patient, problems: Problems, output: nn.Module, head: Head, width: int) -> bool:
    """Whether closing a head is zeroing its rows of the projection, with or without those of the bias."""
    own, closed = _slice_of(head, width), patient.ablate(problems, (head,))

    def is_closing(**parts: slice) -> bool:
        with _zeroed(output, **parts):
            return largest(patient.run(problems) - closed) <= ROUNDING

    return is_closing(weight=own) or is_closing(weight=own, bias=own)


def _beside(patient: Patient, problems: Problems, output: nn.Module, head: Head, width: int) -> float:
    """What closing a head changes besides its columns: with these zeroed nothing, whatever is put in their place; and
    with them open something, where they carry something."""
    with _zeroed(output, weight=(slice(None), _slice_of(head, width))):
        zeroed, closed = patient.run(problems), patient.ablate(problems, (head,))
    plain, alone = patient.logits[: len(problems)], patient.ablate(problems, (head,))
    carries, does = largest(zeroed - plain), largest(alone - plain)
    return max(largest(zeroed - closed), carries if does <= ROUNDING < carries else 0.0)


def _slice_of(head: Head, width: int) -> slice:
    return slice(head.number * width, (head.number + 1) * width)


@contextmanager
def _zeroed(output: nn.Module, **parts: slice | tuple[slice, slice]) -> Iterator[None]:
    """An output projection with parts of its weight, or of its bias, zeroed for a while."""
    kept = {name: parameter.detach().clone() for name, parameter in output.named_parameters()}
    try:
        for name, part in parts.items():
            if isinstance(parameter := getattr(output, name, None), Tensor):
                parameter.data[part] = 0
        yield
    finally:
        for name, parameter in output.named_parameters():
            parameter.data.copy_(kept[name])
