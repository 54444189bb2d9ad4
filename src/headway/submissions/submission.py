"""A member of a class: one submission with what the doctor found, or why it could not be examined. Imports no torch.

`summarize` is the one place that reads an examination: its causes, its sentence and its accuracies."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict

HEALTHY = "no check found a reason to withhold conclusions"
SHOWN = ("submission", "healthy", "reported", "decoded", "forced", "causes", "sentence")


class CheckJson(TypedDict):
    """A check as the doctor writes it."""

    check: str
    cause: bool
    status: str
    meaning: str
    remedy: str
    evidence: Mapping[str, Any]
    found: NotRequired[list[str]]  # the mechanisms that were identified
    under: NotRequired[str]  # the cause that this follows from
    hidden_by: NotRequired[str]
    uncover: NotRequired[str]


@dataclass(frozen=True)
class Summary:
    """An examination in short."""

    causes: tuple[str, ...]
    sentence: str
    reported: float | None
    decoded: float | None
    forced: float | None


@dataclass(frozen=True)
class Submission:
    submission: str  # its name in tables
    folder: str
    healthy: bool = False
    causes: tuple[str, ...] = ()
    sentence: str = ""
    reported: float | None = None  # as published
    decoded: float | None = None
    forced: float | None = None
    seconds: float = 0.0
    refused: str | None = None  # why it could not be examined
    ended: str = "examined"  # or: error, exit, signal, memory, timeout
    checks: tuple[CheckJson, ...] = ()
    printed: int = 0  # bytes
    output: str = ""  # the beginning and the end of what it printed

    @property
    def status(self) -> int:
        """Its part of the exit status."""
        return 2 if self.refused else 0 if self.healthy else 1

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The names of what is wrong; submissions with the same ones form a group."""
        if self.refused:
            return (ENDINGS.get(self.ended, "not examined"),)
        found = {each["check"]: each for each in self.checks}
        return tuple(name_mistake(found[cause]) if cause in found else cause for cause in self.causes)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mistakes": list(self.mistakes)}


ENDINGS = {
    "timeout": "did not finish in time",
    "memory": "needed too much memory",
    "exit": "ended its process",
    "signal": "crashed",
    "error": "could not be built or run",
}
"""names of the groups of submissions that were not examined"""


def summarize(examination: Mapping[str, Any], accuracies: Mapping[str, float | None]) -> Summary:
    """Reads an examination as `headway doctor --json` prints it; what it does not state itself is derived from its
    checks and from the accuracies that were measured beside it."""
    checks: dict[str, CheckJson] = {each["check"]: each for each in examination["checks"]}
    causes = [name for name in examination.get("causes", checks) if checks[name]["cause"]]
    failed = [name for name in causes if checks[name]["status"] == "fail"]
    if not failed and not examination["healthy"]:  # warnings count as failures
        failed = causes
    sentence = "; ".join(checks[name]["meaning"] for name in failed[:2]) or HEALTHY
    if not failed and causes:
        sentence = f"{HEALTHY}, with a warning: {checks[causes[0]]['meaning']}"
    metric = checks["metric"]["evidence"] if "metric" in checks else {}
    measured = {"reported": metric.get("reported"), **accuracies, **_read_accuracies(examination)}
    numbers = {name: _number(measured.get(name)) for name in ("reported", "decoded", "forced")}
    return Summary(tuple(failed), str(examination.get("sentence") or sentence), **numbers)


def _read_accuracies(examination: Mapping[str, Any]) -> dict[str, object]:
    """Returns the accuracies that an examination states; that of the one pass stands in for a teacher-forced one."""
    stated: dict[str, object] = {
        name: each.get("value") if isinstance(each, Mapping) else each
        for name, each in (examination.get("accuracies") or {}).items()
    }
    return {"forced": stated["whole"], **stated} if "whole" in stated else stated


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def name_mistake(found: CheckJson) -> str:
    """Names a mistake: the check and, where the doctor found out how it came about, that, without its numbers."""
    if why := found["evidence"].get("hypothesis"):
        return f"{found['check']}: {re.sub(r'[0-9][0-9.,%]*', 'N', str(why))}"
    mechanisms = [each for each in found.get("found", ()) if each not in found["check"]]
    return f"{found['check']}: {', '.join(mechanisms)}" if mechanisms else found["check"]


class Mistake(TypedDict):
    """A mistake, and who makes it."""

    mistake: str
    count: int
    submissions: list[str]
    sentence: str  # of the first of them
    remedy: str


class MistakeGroup(TypedDict):
    """Submissions with exactly the same mistakes."""

    mistakes: list[str]
    count: int
    submissions: list[str]


def count_mistakes(members: Sequence[Submission]) -> list[Mistake]:
    """Counts which mistakes a class makes, the most frequent first; what could not be examined comes last."""
    found: dict[str, Mistake] = {}
    for member in members:
        by_name = {name_mistake(each): each for each in member.checks}
        for name in member.mistakes:
            check = by_name.get(name)
            sentence, remedy = (check["meaning"], check["remedy"]) if check else (member.sentence, "")
            new = Mistake(mistake=name, count=0, submissions=[], sentence=sentence, remedy=remedy)
            entry = found.setdefault(name, new)
            entry["count"] += 1
            entry["submissions"].append(member.submission)
    return sorted(found.values(), key=lambda each: (each["mistake"] in ENDINGS.values(), -each["count"]))


def group_submissions(members: Sequence[Submission]) -> list[MistakeGroup]:
    """Groups the submissions by their mistakes, the largest group first; then those that could not be examined, and
    those without mistakes."""
    found: dict[tuple[str, ...], list[str]] = {}
    for member in members:
        found.setdefault(tuple(sorted(member.mistakes)), []).append(member.submission)
    last = {**dict.fromkeys(((each,) for each in ENDINGS.values()), 1), (): 2}
    ordered = sorted(found.items(), key=lambda each: (last.get(each[0], 0), -len(each[1])))
    return [MistakeGroup(mistakes=list(key), count=len(who), submissions=who) for key, who in ordered]
