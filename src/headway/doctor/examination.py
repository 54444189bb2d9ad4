"""All checks of a subject, and which of the failures is the cause of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from headway.attach.opening import ready
from headway.doctor import answers, counting, data, decoding, repeating, sight, wiring
from headway.doctor.check import Checked
from headway.doctor.patient import Patient
from headway.errors import HeadwayError
from headway.machine import exact_products
from headway.subjects.subject import Subject

CHECKS: dict[str, Callable[[Patient], Checked]] = {
    "converged": answers.converged,
    "constant": answers.constant,
    "greedy": decoding.greedy,
    "start token": decoding.start_token,
    "given digits": decoding.given_digits,
    "metric": counting.metric,
    "causality": sight.causality,
    "padding": sight.padding,
    "evaluation mode": repeating.evaluation_mode,
    "overlap": data.overlap,
    "balance": answers.balance,
    "blindness": sight.blindness,
    "positions": sight.positions,
    "gates": wiring.gates,
    "resolution": counting.resolution,
    "floor": counting.floor,
    "together": wiring.together,
    "seeds": repeating.seeds,
}
FORBID = {
    "heads": (
        "converged", "constant", "greedy", "start token", "given digits", "metric", "causality", "evaluation mode",
        "blindness", "gates", "floor",
    ),
    "lengths": (
        "converged", "greedy", "start token", "given digits", "metric", "causality", "evaluation mode", "balance",
        "blindness",
    ),
}  # fmt: skip
"""of a study: the checks that forbid its findings where they fail"""
EXPLAINS = {
    "start token": {"greedy", "converged", "floor", "metric"},
    "given digits": {"greedy", "metric", "converged", "floor"},
    "causality": {"greedy", "converged", "floor", "metric"},
    "evaluation mode": {"given digits", "greedy", "converged", "floor", "metric", "gates", "causality", "padding"},
    "padding": {"converged", "floor"},
    "overlap": {"converged"},
    "balance": {"converged", "constant"},
    "metric": {"converged", "floor"},
    "blindness": {"converged", "constant", "floor"},
    "positions": {"constant"},
    "converged": {"floor", "constant", "greedy"},
    "constant": {"floor"},
}
"""a check that fails, and those that fail because of it"""
SLIGHT = ("balance", "positions", "blindness")
"""warnings that explain failures"""


@dataclass(frozen=True)
class Examination:
    subject: str
    checks: dict[str, Checked]
    strict: bool = False

    @property
    def alarms(self) -> list[str]:
        return [name for name, found in self.checks.items() if found.status in ("warn", "fail")]

    @property
    def healthy(self) -> bool:
        bad = ("warn", "fail") if self.strict else ("fail",)
        return not any(found.status in bad for found in self.checks.values())

    @property
    def status(self) -> int:
        """of the command"""
        return 0 if self.healthy else 1

    def is_cause(self, name: str) -> bool:
        """Whether no other alarm explains this one."""
        if name not in self.alarms:
            return False
        failing = self.checks[name].status == "fail"  # a warning explains a failure only where it is known to
        others = [each for each in self.alarms if not failing or self.checks[each].status == "fail" or each in SLIGHT]
        return not any(name in EXPLAINS.get(other, ()) for other in others)

    @property
    def causes(self) -> list[str]:
        return [name for name in self.alarms if self.is_cause(name)]

    def message(self, name: str, width: int = 80) -> list[str]:
        """A check in short lines: what was found, and how to mend it."""
        found = self.checks[name]
        cause = " (cause)" if self.is_cause(name) and len(self.alarms) > 1 else ""
        lines = wrap(
            f"{name}{cause}: {found.meaning}", width, initial_indent=f"{found.status:8}", subsequent_indent=" " * 8
        )
        return lines + (
            wrap(f"→ {found.remedy}", width, initial_indent=" " * 8, subsequent_indent=" " * 10) if found.remedy else []
        )

    def row(self) -> dict[str, Any]:
        """A line of a table of many."""
        metric = self.checks.get("metric")
        worst = {found.status for found in self.checks.values()}
        return {
            "subject": self.subject,
            "reported": None if metric is None else metric.evidence.get("reported"),
            "verdict": "fail" if "fail" in worst else "warn" if "warn" in worst else "pass",
            "cause": ", ".join(self.causes),
            "symptoms": ", ".join(name for name in self.alarms if name not in self.causes),
            "skipped": sum(found.status == "skipped" for found in self.checks.values()),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "healthy": self.healthy,
            "checks": [
                {
                    "check": name,
                    "status": found.status,
                    "cause": self.is_cause(name),
                    "evidence": found.evidence,
                    "meaning": found.meaning,
                    "remedy": found.remedy,
                }
                for name, found in self.checks.items()
            ],
        }


def forbidden(subject: Subject, study: Literal["heads", "lengths"]) -> tuple[dict[str, str], ...]:
    """Why the findings of a study of this subject may not be told: the causes, none where they may."""
    found = examine_subject(subject, checks=FORBID[study])
    failing = {name: each for name, each in found.checks.items() if each.status == "fail"}
    causes = Examination(subject.name, failing).causes  # among failures alone: a warning hides none
    return tuple({"check": name, "reason": failing[name].meaning} for name in causes)


def examine_subject(subject: Subject, strict: bool = False, checks: Collection[str] = tuple(CHECKS)) -> Examination:
    subject = ready(subject)
    patient = Patient(subject)
    kept = {name: buffer.clone() for name, buffer in subject.model.named_buffers()}
    with exact_products():  # a GPU's rounding differs from batch to batch
        _ = patient.right  # a model that fails on its own examples is refused before any check
        found = {name: _checked(name, patient) for name in checks}
    for name, buffer in subject.model.named_buffers():  # running means, which a model in training mode moves
        buffer.copy_(kept[name])
    return Examination(subject.name, found, strict)


def _checked(name: str, patient: Patient) -> Checked:
    try:
        return CHECKS[name](patient)
    except HeadwayError:
        raise
    except (Exception, SystemExit) as error:  # of what a user's code returns
        said = f"{type(error).__name__}: {error}"
        raise HeadwayError(f"the check {name} of {patient.subject.name} could not be made ({said})") from error
