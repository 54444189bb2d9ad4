"""`headway doctor` as functions, for one subject or for many."""

import glob
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import torch

from headway.attach.opening import open_subject
from headway.attach.question import Opening
from headway.doctor.examination import CHECKS, Examination, examine_subject, load_check
from headway.errors import HeadwayError
from headway.evaluation.exact import evaluate_chunks
from headway.machine import choose_device
from headway.plugins import import_neighbours, working_folder
from headway.progress import Progress
from headway.subjects.naming import find_runs, kind_of
from headway.subjects.own import Run, can_be_stacked, open_one, open_run, subject_of
from headway.subjects.subject import Subject
from headway.tasks import Problems


def examine(
    subject: Subject | Run | str | Path,
    *,
    strict: bool = False,
    device: str = "auto",
    opening: Opening | None = None,
    checks: Sequence[str] = (),
) -> Examination:
    """Checks whether conclusions may be drawn from a subject: what is wrong, how it shows, how to fix it. `checks` are
    the user's own, each `file.py:function`; they run after all others."""
    name, chosen = str(subject), [*CHECKS.values(), *map(load_check, checks)]
    if isinstance(subject, str | Path) and kind_of(name) in ("run", "runs"):
        subject = open_one(name, choose_device(device))
    if isinstance(subject, Run):
        subject = _with_score(subject)
    if isinstance(subject, Subject):
        return examine_subject(subject, strict, chosen)
    with import_neighbours(name), redirect_stdout(sys.stderr):  # what a factory prints must not mix with the result
        found = examine_subject(open_subject(name, choose_device(device), opening), strict, chosen)
    return replace(found, subject=name) if kind_of(name) == "factory" else found


def examine_all(
    names: Sequence[str], *, strict: bool = False, checks: Sequence[str] = (), device: str = "auto", quiet: bool = True
) -> list[Examination]:
    """Examines every subject that these name; one that cannot be examined does not stop the others."""
    found, everyone = [], [each for name in names for each in _expand(name)]
    with Progress("examining", quiet) as watch:
        for number, name in enumerate(everyone):
            watch(number, len(everyone), name)
            try:
                if kind_of(name) == "runs":
                    found += _examine_folder(name, strict, choose_device(device), checks)
                elif name in names:
                    found.append(examine(name, strict=strict, checks=checks, device=device))
                else:
                    found.append(_examine_in_folder(name, strict, device, list(map(_make_absolute, checks))))
            except HeadwayError as error:
                found.append(Examination(name, {}, strict, refused=str(error)))
    return found


def _make_absolute(plugin: str) -> str:
    return os.path.abspath(plugin) if plugin.partition(":")[0].endswith(".py") else plugin


def _examine_in_folder(name: str, strict: bool, device: str, checks: Sequence[str]) -> Examination:
    """Examines a subject that a pattern named: a file among many, whose relative paths start at its own folder."""
    file, colon, factory = name.partition(":")
    if not file.endswith(".py"):
        return examine(name, strict=strict, checks=checks, device=device)
    with working_folder(Path(file).parent):
        found = examine(f"{Path(file).name}{colon}{factory}", strict=strict, checks=checks, device=device)
    return replace(found, subject=name)


def _with_score(run: Run) -> Subject:
    """Makes a run a subject, with the accuracy that `headway evaluate` reports for it."""

    def score(problems: Problems) -> float:
        return evaluate_chunks(run.model, run.task, [problems], len(problems), is_sample=True).exact_match

    return replace(subject_of(run), score=score)


def _examine_folder(folder: str, strict: bool, device: torch.device, checks: Sequence[str]) -> list[Examination]:
    """Examines every run of a folder; the check `seeds` compares them all."""
    folders, chosen = find_runs(folder), [*CHECKS.values(), *map(load_check, checks)]
    subjects = [replace(_with_score(open_run(each, device)), name=str(each.path)) for each in folders]
    if not can_be_stacked(folders):
        return [examine_subject(each, strict, chosen) for each in subjects]
    subjects[0] = replace(subjects[0], others=subjects[1:])
    first, *others = [examine_subject(each, strict, chosen) for each in subjects]
    return [first, *(replace(each, checks={**each.checks, "seeds": first.checks["seeds"]}) for each in others)]


def _expand(name: str) -> list[str]:
    """Expands a pattern such as submissions/*/subject.py:build, which a shell does not expand."""
    home, colon, factory = name.partition(":")
    if "*" not in home:
        return [name]
    found = sorted(glob.glob(home))
    if not found:
        raise HeadwayError(f"nothing matches {home!r}; write it like submissions/*/subject.py:build")
    return [f"{each}{colon}{factory}" for each in found]
