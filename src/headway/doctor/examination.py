"""Runs all checks of a subject, and finds which of the failures cause the others."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from textwrap import wrap
from typing import Any

import torch

from headway.attach.opening import prepare_subject
from headway.doctor.check import Check, Checked, Scalar, Study, hidden, warned
from headway.doctor.patient import Patient
from headway.doctor.randomness import without_randomness
from headway.doctor.readings import label_accuracies
from headway.doctor.sight import measure_repeats
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.plugins import load_function
from headway.subjects.subject import Subject

SCHEMA = "headway.doctor/1"
MODULES = ("answers", "scoring", "sight", "data", "claims")  # the files of checks, in the order in which they run
CHECKS = {
    each.name: each
    for module in MODULES
    for each in vars(import_module(f"headway.doctor.{module}")).values()
    if isinstance(each, Check)
}
COMPARES = ("greedy", "given digits", "metric", "causality", "padding", "gates")
"""the checks that compare two evaluations; they need one that can be repeated"""


@dataclass(frozen=True)
class Examination:
    subject: str
    checks: dict[str, Checked]
    strict: bool = False
    refused: str | None = None  # why it could not be examined
    accuracies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # reported, decoded, forced, whole

    @property
    def alarms(self) -> list[str]:
        return [name for name, found in self.checks.items() if found.status in ("warn", "fail")]

    @property
    def verdict(self) -> str:
        statuses = {found.status for found in self.checks.values()}
        return next((status for status in ("fail", "warn") if status in statuses), "pass")

    @property
    def healthy(self) -> bool:
        return self.refused is None and (self.verdict == "pass" or (self.verdict == "warn" and not self.strict))

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 2 if self.refused else 0 if self.healthy else 1

    @cached_property
    def causes(self) -> list[str]:
        """The alarms that no other alarm explains."""
        return [name for name in self.alarms if name not in self.explained]

    @cached_property
    def explained(self) -> dict[str, str]:
        """The alarms that another one explains, each with that one."""
        found = {name: [other for other in self.alarms if self._explains(other, name)] for name in self.alarms}
        return {name: next((o for o in others if not found[o]), others[0]) for name, others in found.items() if others}

    def _explains(self, other: str, name: str) -> bool:
        """Tells whether an alarm explains another one: as was tested where that was possible, or else as declared."""
        check, explained_by = CHECKS.get(other), self.checks[name].explained_by
        if check is None or other == name:
            return False
        by_failing = self.checks[other].status == "fail" or self.checks[name].status == "warn"
        named = name in check.explains if explained_by is None else other in explained_by
        return named and (by_failing or check.as_warning)

    @property
    def sentence(self) -> str:
        """What a student needs to know first: the causes, each with what to change."""
        failing = [name for name in self.causes if self.checks[name].status == "fail"]
        shown = [self.checks[name] for name in (failing or self.causes)[:2]]
        more = len(failing or self.causes) - len(shown)
        parts = [f"{each.meaning} → {each.remedy}" if each.remedy else each.meaning for each in shown]
        return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")

    def message(self, name: str, width: int = 80) -> list[str]:
        """Formats a check as short lines: what was found, and how to fix it."""
        found = self.checks[name]
        cause = " (cause)" if name in self.causes and len(self.alarms) > 1 else ""
        cause = f" (follows from {self.explained[name]})" if name in self.explained else cause
        lines = wrap(f"{found.status:8}{name}{cause}: {found.meaning}", width, subsequent_indent=" " * 8)
        return lines + wrap(f"{'':8}→ {found.remedy}" if found.remedy else "", width, subsequent_indent=" " * 10)

    def lines(self, width: int = 80) -> list[str]:
        """Formats the whole examination: the accuracies, then the causes, each with its symptoms under it, then what
        could not be checked because of them, and the rest."""
        shown = [f"{'':8}{name} {each['value']:.4f}: {each['what']}" for name, each in self.accuracies.items()]
        lines = [line for text in shown for line in wrap(text, width, subsequent_indent=" " * 10)]
        order: list[str] = []
        for cause in sorted(self.causes, key=lambda name: self.checks[name].status != "fail"):
            order += [cause, *(name for name, other in self.explained.items() if other == cause)]
        hides = [name for name, each in self.checks.items() if each.evidence.get("hidden_by")]
        rest = sorted(self.checks, key=lambda name: self.checks[name].status == "skipped")
        for name in dict.fromkeys((*order, *self.alarms, *hides, *rest)):
            indent = "  " if name in self.explained else ""
            lines += [indent + line for line in self.message(name, width - len(indent))]
        return lines

    def row(self) -> dict[str, Scalar]:
        """Makes a row for a table of many subjects."""
        if self.refused:
            return {"subject": self.subject, "verdict": "not examined"}
        reported = self.accuracies.get("reported", {}).get("value")
        return {
            "subject": self.subject,
            "reported": reported if isinstance(reported, float) else None,
            "verdict": self.verdict,
            "cause": ", ".join(self.causes),
            "symptoms": ", ".join(name for name in self.alarms if name not in self.causes),
            "skipped": sum(found.status == "skipped" for found in self.checks.values()),
        }

    def to_json(self) -> dict[str, Any]:
        content = {
            "schema": SCHEMA,
            "subject": self.subject,
            "healthy": self.healthy,
            "sentence": self.sentence,
            "causes": sorted(self.causes, key=lambda name: self.checks[name].status != "fail"),
            "accuracies": dict(self.accuracies),
            "checks": [self._check_json(name) for name in self.checks],
        }
        return content if self.refused is None else {**content, "refused": self.refused}

    def _check_json(self, name: str) -> dict[str, Any]:
        """Returns a check; `found`, `under`, `hidden_by` and `uncover` only where there is something to say."""
        found = self.checks[name]
        fields = {key: getattr(found, key) for key in ("status", "meaning", "evidence", "remedy")}
        more = {"found": list(found.found), "under": self.explained.get(name)}
        more |= {"hidden_by": found.evidence.get("hidden_by")}
        more |= {"uncover": found.remedy if more["hidden_by"] else None}
        return {"check": name, "cause": name in self.causes, **fields, **{k: v for k, v in more.items() if v}}


def find_vetoes(subject: Subject, study: Study) -> tuple[dict[str, str], ...]:
    """Finds why the findings of a study of this subject must be withheld: its causes, or none if they may be reported.

    Only the checks that can forbid this study are run.
    """
    found = examine_subject(subject, checks=[check for check in CHECKS.values() if study in check.forbids])
    failing = {name: each for name, each in found.checks.items() if each.status == "fail"}
    causes = Examination(subject.name, failing).causes  # a warning must not hide a failure
    return tuple({"check": name, "reason": failing[name].meaning} for name in causes)


def examine_subject(subject: Subject, strict: bool = False, checks: Iterable[Check | str] | None = None) -> Examination:
    """Runs these checks, or all, and leaves the model unchanged."""
    patient = Patient(prepare_subject(subject))
    chosen = [CHECKS[each] if isinstance(each, str) else each for each in (CHECKS if checks is None else checks)]
    buffers = {name: buffer.clone() for name, buffer in subject.model.named_buffers()}
    with full_precision_matmul(), torch.no_grad():  # a GPU's rounding differs from batch to batch
        _ = patient.right  # a model that fails on its examples is refused before any check
        repeats = measure_repeats(patient)
        reported = patient.reported if repeats.differ else None
        if repeats.differ:
            patient = Patient(patient.subject, repeats)
        with without_randomness(subject.model) if repeats.differ else nullcontext():
            noisy = repeats.differ and measure_repeats(patient).differ
            found = {check.name: _run(check, patient, noisy) for check in chosen}
            complete = CHECKS.keys() <= found.keys()
            accuracies = label_accuracies(patient) if complete else {}
        if reported is not None and "reported" in accuracies:
            accuracies["reported"]["value"] = reported.value  # as it was, with its randomness
    for name, buffer in subject.model.named_buffers():  # running means change in training mode
        buffer.copy_(buffers[name])
    return Examination(subject.name, found, strict, accuracies=accuracies)


def _run(check: Check, patient: Patient, noisy: bool) -> Checked:
    """Runs a check. One that fails because a function of the subject does becomes a warning that says so."""
    if noisy and check.name in COMPARES:
        why = "two evaluations differ even with dropout and sampling off, so nothing can be compared"
        return hidden("evaluation mode", why, "make the evaluation repeatable, and examine again")
    try:
        return patient.call(f"the check {check.name}", check, patient)
    except HeadwayError as error:
        return warned(f"it could not run: {error}", "mend what it names, and examine again", checked=0)


def load_check(name: str) -> Check:
    """Loads a user's check, `file.py:function`."""
    found = load_function(name)
    if not isinstance(found, Check):
        raise HeadwayError(f'{name!r} is not a check; write @check("its name") before the function')
    return found
