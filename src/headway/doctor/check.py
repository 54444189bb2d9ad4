"""What a check says: whether it is well, what was measured, what that means for conclusions, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Checked:
    status: Status
    meaning: str
    """what it means for conclusions, with a number; of a skipped check, what it lacks"""
    evidence: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""


def passed(meaning: str, **evidence: Any) -> Checked:
    return Checked("pass", meaning, evidence)


def warned(meaning: str, remedy: str, **evidence: Any) -> Checked:
    return Checked("warn", meaning, evidence, remedy)


def failed(meaning: str, remedy: str, **evidence: Any) -> Checked:
    return Checked("fail", meaning, evidence, remedy)


def skipped(why: str) -> Checked:
    return Checked("skipped", why)
