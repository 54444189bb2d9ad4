"""A check, and what it finds: whether all is well, what was measured, what that means, and how to mend it. A new check
is a function under `@check(…)` in a file that `examination.MODULES` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headway.doctor.patient import Patient

Status = Literal["pass", "warn", "fail", "skipped"]
Study = Literal["heads", "lengths"]
Scalar = str | int | float | bool | None
Evidence = Scalar | Sequence[Scalar] | Mapping[str, Scalar | Sequence[Scalar]]


@dataclass(frozen=True)
class Checked:
    status: Status
    meaning: str  # what it means for conclusions, with a number; of a skipped check, what it lacks
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    remedy: str = ""


def passed(meaning: str, **evidence: Evidence) -> Checked:
    return Checked("pass", meaning, evidence)


def warned(meaning: str, remedy: str, **evidence: Evidence) -> Checked:
    return Checked("warn", meaning, evidence, remedy)


def failed(meaning: str, remedy: str, **evidence: Evidence) -> Checked:
    return Checked("fail", meaning, evidence, remedy)


def skipped(why: str) -> Checked:
    return Checked("skipped", why)


@dataclass(frozen=True)
class Check:
    """A function of a patient under the name that people see."""

    name: str
    run: Callable[[Patient], Checked]
    forbids: tuple[Study, ...]  # the studies whose findings are withheld where it fails
    explains: tuple[str, ...]  # the checks that fail because this one does
    as_warning: bool  # whether it explains failures also where it only warns

    def __call__(self, patient: Patient) -> Checked:
        return self.run(patient)

    @property
    def about(self) -> str:
        return (self.run.__doc__ or "").partition("\n")[0]


def check(
    name: str, *, forbids: tuple[Study, ...] = (), explains: tuple[str, ...] = (), as_warning: bool = False
) -> Callable[[Callable[[Patient], Checked]], Check]:
    """Makes a check of a function, whose docstring is what `headway list checks` says of it."""
    return lambda run: Check(name, run, forbids, explains, as_warning)
