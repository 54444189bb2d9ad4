"""All checks of a subject, and which of the failures is the cause of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.doctor import answers, data, decoding, order, wiring
from headway.doctor.check import Checked
from headway.doctor.patient import Patient
from headway.subjects.subject import Subject

CHECKS: dict[str, Callable[[Patient], Checked]] = {
    "converged": answers.converged,
    "constant": answers.constant,
    "greedy": decoding.greedy,
    "start token": decoding.start_token,
    "given digits": decoding.given_digits,
    "metric": decoding.metric,
    "causality": decoding.causality,
    "padding": decoding.padding,
    "evaluation mode": decoding.evaluation_mode,
    "overlap": data.overlap,
    "balance": answers.balance,
    "blindness": order.blindness,
    "positions": order.positions,
    "gates": wiring.gates,
    "resolution": answers.resolution,
    "floor": answers.floor,
    "together": wiring.together,
}
EXPLAINS = {
    "start token": {"greedy", "converged", "floor", "metric"},
    "given digits": {"greedy", "metric", "evaluation mode"},
    "causality": {"greedy", "converged", "floor", "metric"},
    "evaluation mode": {"greedy", "converged", "floor", "metric", "gates", "causality", "padding"},
    "padding": {"converged", "floor"},
    "blindness": {"converged", "constant", "floor"},
    "positions": {"constant"},
    "converged": {"floor", "constant", "greedy"},
    "constant": {"floor"},
}
"""a check that fails, and those that fail because of it"""


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

    def is_cause(self, name: str) -> bool:
        """Whether no other alarm explains this one."""
        return name in self.alarms and not any(name in EXPLAINS.get(other, ()) for other in self.alarms)

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


def examine_subject(subject: Subject, strict: bool = False) -> Examination:
    patient = Patient(subject)
    return Examination(subject.name, {name: check(patient) for name, check in CHECKS.items()}, strict)
