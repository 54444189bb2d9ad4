"""Measures the doctor: examines cases and compares the causes it names with the mistakes that were planted.

A planted mistake is *named* if a check of its `named_by` is a cause; where another planted mistake is named by the same
check, the check's text must also match the mistake's `words`. It is *hidden* if such a check was skipped and says which
alarm hides it (`hidden_by`); then the hiding mistake is mended, and the hidden one must be named. A cause is *false* if
no planted mistake lists it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.doctor.examination import Examination, examine_subject
from headway.errors import HeadwayError

from .cases import Case
from .lab import build_plan
from .mistakes import MISTAKES, plan_for


@dataclass(frozen=True)
class Outcome:
    """What the doctor said about a case."""

    case: str
    kind: str
    half: str
    planted: tuple[str, ...]
    causes: tuple[str, ...]
    symptoms: tuple[str, ...]
    named: tuple[str, ...]
    hidden: dict[str, str]
    """hidden mistakes, each with the check that hides it"""
    uncovered: tuple[str, ...]
    """hidden mistakes that were named once the hiding one was mended"""
    false: tuple[str, ...]
    failures: tuple[str, ...]
    """checks that failed, not counting warnings"""
    style: str
    refused: str | None = None

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(name for name in self.planted if name not in self.named and name not in self.hidden)

    @property
    def is_right(self) -> bool:
        return not (self.missed or self.false or self.refused or (self.kind == "healthy" and self.failures))


def text_of(found: Examination, check: str) -> str:
    """Returns everything that a check says."""
    each = found.checks[check]
    return f"{each.meaning} {each.remedy} {json.dumps(each.evidence, default=str)}"


def is_named(name: str, planted: Sequence[str], found: Examination) -> bool:
    """Tells whether the doctor names a planted mistake as a cause."""
    mistake = MISTAKES[name]
    for check in mistake.named_by:
        shared = any(check in MISTAKES[other].named_by for other in planted if other != name)
        if check in found.causes and (not shared or re.search(mistake.words, text_of(found, check))):
            return True
    return False


def find_hiding(name: str, found: Examination) -> str | None:
    """Returns the alarm that hides a mistake, if the doctor says so and says how to uncover it."""
    for check in MISTAKES[name].named_by:
        each = found.checks.get(check)
        if each is not None and each.status == "skipped" and each.remedy:
            hiding = each.evidence.get("hidden_by")
            if isinstance(hiding, str) and hiding in found.alarms:
                return hiding
    return None


def follow_advice(case: Case, name: str, hiding: str, folder: Path) -> bool:
    """Mends what hides a mistake, and tells whether the mistake is then named."""
    left = [each for each in case.mistakes if each == name or hiding not in MISTAKES[each].named_by]
    if len(left) == len(case.mistakes):
        return False
    found = examine_subject(build_plan(plan_for(left), case.style, folder))
    return is_named(name, left, found)


def measure(case: Case, folder: Path) -> Outcome:
    """Examines a case."""
    about = (case.name, case.kind, case.half, case.mistakes)
    try:
        found = examine_subject(build_plan(case.plan, case.style, folder))
    except HeadwayError as error:
        return Outcome(*about, (), (), (), {}, (), (), (), case.style.name, refused=str(error))
    named = tuple(name for name in case.mistakes if is_named(name, case.mistakes, found))
    hidden = {name: find_hiding(name, found) for name in case.mistakes if name not in named}
    hidden = {name: hiding for name, hiding in hidden.items() if hiding is not None}
    return Outcome(
        *about,
        causes=tuple(found.causes),
        symptoms=tuple(alarm for alarm in found.alarms if alarm not in found.causes),
        named=named,
        hidden=hidden,
        uncovered=tuple(name for name, hiding in hidden.items() if follow_advice(case, name, hiding, folder)),
        false=tuple(c for c in found.causes if not any(c in MISTAKES[name].named_by for name in case.mistakes)),
        failures=tuple(alarm for alarm in found.alarms if found.checks[alarm].status == "fail"),
        style=case.style.name,
    )


@dataclass(frozen=True)
class Totals:
    """The figures of many cases."""

    cases: int
    planted: int
    named: int
    hidden: int
    uncovered: int
    causes: int
    false: int
    refused: int
    healthy: int
    healthy_without_failure: int
    healthy_without_alarm: int

    @property
    def named_or_hidden(self) -> float:
        return (self.named + self.hidden) / max(1, self.planted)

    @property
    def hidden_share(self) -> float:
        return self.hidden / max(1, self.planted)

    @property
    def false_share(self) -> float:
        return self.false / max(1, self.causes)

    @property
    def meets_bars(self) -> bool:
        return (
            self.named_or_hidden >= 0.95
            and self.hidden_share <= 0.10
            and self.uncovered == self.hidden
            and self.false_share <= 0.02
            and self.healthy_without_failure == self.healthy
        )

    def to_json(self) -> dict[str, float]:
        shares = {name: getattr(self, name) for name in ("named_or_hidden", "hidden_share", "false_share")}
        return {**asdict(self), **shares, "meets_bars": self.meets_bars}


def total(outcomes: Iterable[Outcome]) -> Totals:
    """Adds up outcomes."""
    outcomes = list(outcomes)
    sick, well = ([each for each in outcomes if (each.kind == "healthy") == is_well] for is_well in (False, True))
    return Totals(
        cases=len(outcomes),
        planted=sum(len(each.planted) for each in sick),
        named=sum(len(each.named) for each in sick),
        hidden=sum(len(each.hidden) for each in sick),
        uncovered=sum(len(each.uncovered) for each in sick),
        causes=sum(len(each.causes) for each in sick),
        false=sum(len(each.false) for each in sick),
        refused=sum(each.refused is not None for each in outcomes),
        healthy=len(well),
        healthy_without_failure=sum(not each.failures and each.refused is None for each in well),
        healthy_without_alarm=sum(not each.causes and each.refused is None for each in well),
    )
