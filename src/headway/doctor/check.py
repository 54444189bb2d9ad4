"""Checks and their results: the status, what was measured, what it means, and how to fix it. A new check is a function
under `@check(…)` in a file that `examination.MODULES` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    meaning: str  # what it means for conclusions, with a number; for a skipped check, what it needs
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    remedy: str = ""
    found: tuple[str, ...] = ()  # the mechanisms that were identified, each in a few words
    explained_by: tuple[str, ...] | None = None
    """the checks whose failure would explain this one, as was tested here; None: as the checks themselves declare"""

    def because_of(self, *checks: str) -> Checked:
        """Returns a copy that only the failure of one of these checks explains."""
        return replace(self, explained_by=checks)

    def with_found(self, *mechanisms: str) -> Checked:
        return replace(self, found=mechanisms)


def passed(meaning: str, **evidence: Evidence) -> Checked:
    return Checked("pass", meaning, evidence)


def warned(meaning: str, remedy: str, **evidence: Evidence) -> Checked:
    return Checked("warn", meaning, evidence, remedy)


def failed(meaning: str, remedy: str, **evidence: Evidence) -> Checked:
    return Checked("fail", meaning, evidence, remedy)


def skipped(why: str) -> Checked:
    return Checked("skipped", why)


def hidden(by: str, why: str, remedy: str) -> Checked:
    """Makes the result of a check that cannot run because of what another one found; the remedy uncovers it."""
    return Checked("skipped", f"hidden by {by}: {why}", {"hidden_by": by}, remedy)


@dataclass(frozen=True)
class Check:
    """A function that checks a patient, with its display name and its consequences."""

    name: str
    run: Callable[[Patient], Checked]
    forbids: tuple[Study, ...]  # the studies whose findings are withheld if it fails
    explains: tuple[str, ...]  # the checks that fail because this one does
    as_warning: bool  # whether a mere warning also explains failures

    def __call__(self, patient: Patient) -> Checked:
        return self.run(patient)

    @property
    def about(self) -> str:
        return (self.run.__doc__ or "").partition("\n")[0]


def check(
    name: str, *, forbids: tuple[Study, ...] = (), explains: tuple[str, ...] = (), as_warning: bool = False
) -> Callable[[Callable[[Patient], Checked]], Check]:
    """Makes a check of a function, whose docstring is shown by `headway list checks`."""
    return lambda run: Check(name, run, forbids, explains, as_warning)
