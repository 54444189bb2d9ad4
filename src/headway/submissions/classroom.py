"""Examines a class: finds the submissions, runs each in a process of its own, and writes the table, the page and the
files for graders."""

import glob
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.output import as_csv, strip_common_parts
from headway.progress import Progress
from headway.report.page.classroom import write_class_page
from headway.runs import disk
from headway.submissions.grading import write_grades
from headway.submissions.process import run_jobs
from headway.submissions.question import ClassQuestion
from headway.submissions.record import Records, hash_folder, hash_request
from headway.submissions.submission import SHOWN, Submission, count_mistakes, group_submissions
from headway.submissions.worker import Job
from headway.trials.claims import hold_lock

SCHEMA = "headway.class/1"
OUT, LOCK = "examined", ".headway-lock"
COLUMNS = (*SHOWN, "seconds", "ended")


@dataclass(frozen=True)
class ExaminedClass:
    members: list[Submission]
    left_out: list[str]  # what matched and is not a folder
    reused: int
    seconds: float
    files: dict[str, str]

    @property
    def status(self) -> int:
        return max(member.status for member in self.members)

    def to_json(self) -> dict[str, Any]:
        return {
            **describe_class(self.members),
            "left_out": self.left_out,
            "reused": self.reused,
            "seconds": self.seconds,
            **self.files,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of the table: one sentence for each submission."""
        return [
            {**{key: getattr(each, key) for key in SHOWN}, "causes": ", ".join(each.causes)} for each in self.members
        ]

    def sentences(self) -> list[str]:
        """Says which mistakes the class makes, and where the page is."""
        count = len(self.members)
        healthy = sum(member.healthy for member in self.members)
        found = [f"{healthy} of {count} submissions have nothing that forbids a conclusion."]
        found += [f"{each['count']} of {count}: {each['mistake']}." for each in count_mistakes(self.members)]
        if self.left_out:
            found.append(f"Left out, because they are not folders: {', '.join(self.left_out[:10])}.")
        return [*found, f"The page is {self.files['page']}."]


def describe_class(members: Sequence[Submission]) -> dict[str, Any]:
    """Returns the content of class.json."""
    return {
        "schema": SCHEMA,
        "healthy": all(member.healthy for member in members),
        "members": [member.to_json() for member in members],
        "mistakes": count_mistakes(members),
        "groups": group_submissions(members),
    }


def examine_class(
    adapter: str, question: ClassQuestion, *, strict: bool, checks: Sequence[str], quiet: bool
) -> ExaminedClass:
    """Examines every submission with one adapter; one that hangs, crashes or needs too much costs only its row."""
    question.check_class()
    began, out = time.monotonic(), Path(question.out or OUT)
    folders, left_out = find_submissions(question.each, out)
    adapter, own = _absolute(adapter), tuple(map(_absolute, checks))
    jobs = {
        folder: Job(
            os.path.realpath(folder), adapter, own, strict, question.device, question.timeout, question.memory_bytes,
            secrets.token_hex(16),
        )
        for folder in folders
    }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk.explain_os_error(error, out) from error
    with hold_lock(out / LOCK, 0.5), Progress("examining", quiet) as watch:
        records = Records(out, hash_request(next(iter(jobs.values()))))
        found, reused = _examine(list(jobs.values()), records, question.workers or _cores(), watch)
        names = [name.encode(errors="replace").decode() for name in _names(folders)]
        members = [replace(found[job.folder], submission=name) for name, job in zip(names, jobs.values(), strict=True)]
        files = write_results(members, out, question)
    return ExaminedClass(members, left_out, reused, round(time.monotonic() - began, 3), files)


def _examine(jobs: list[Job], records: Records, workers: int, watch: Progress) -> tuple[dict[str, Submission], int]:
    """Examines the submissions that have no valid result yet; returns all results, and how many were stored before."""
    before = {job.folder: hash_folder(Path(job.folder)) for job in jobs}
    stored = {job.folder: records.read(job, before[job.folder]) for job in jobs}
    found = {folder: member for folder, member in stored.items() if member is not None}
    reused = len(found)
    for job, member in run_jobs([job for job in jobs if job.folder not in found], workers):
        found[job.folder] = member
        records.write(job, member, before[job.folder], hash_folder(Path(job.folder)))  # it may have written files
        watch(len(found), len(jobs), Path(job.folder).name)
    return found, reused


def write_results(members: Sequence[Submission], out: Path, question: ClassQuestion) -> dict[str, str]:
    """Writes class.json, class.csv, the page and the files for graders; returns their paths."""
    content = describe_class(members)
    disk.write_json(out / "class.json", content)
    rows = [[", ".join(value) if isinstance(value := row[key], tuple) else value for key in COLUMNS]
            for row in map(Submission.to_json, members)]  # fmt: skip
    disk.write_bytes(out / "class.csv", as_csv([COLUMNS, *rows]).encode(errors="replace"))
    page = write_class_page(content, out / "class.html")
    graded = {kind: str(write_grades(kind, members, out)) for kind in dict.fromkeys(question.format)}
    return {"page": str(page), "csv": str(out / "class.csv"), **graded}


def find_submissions(patterns: Sequence[str], out: Path) -> tuple[list[str], list[str]]:
    """Finds the folders that these patterns name, each once, and what else matches them."""
    found, left_out, home = dict[str, str](), list[str](), os.path.realpath(out)
    for pattern in patterns:
        matching = sorted(glob.glob(pattern)) or ([pattern] if Path(pattern).is_dir() else [])
        for each in matching:
            if not Path(each).is_dir():
                left_out.append(each)
            elif os.path.realpath(each) != home or not (out / LOCK).exists():  # not the results of an earlier time
                found.setdefault(os.path.realpath(each), os.path.normpath(each))
    if not found:
        raise HeadwayError(f"no folder matches {' '.join(patterns)!r}; write it like `each='submissions/*'`")
    inside = next((each for each in found if home == each or home.startswith(each + os.sep)), None)
    if inside is not None:
        raise HeadwayError(f"the results would be written into the submission {found[inside]}; choose another `out`")
    return list(found.values()), left_out


def _names(folders: Sequence[str]) -> list[str]:
    """Names the submissions by what distinguishes their paths."""
    if len(folders) == 1:
        return [os.path.basename(os.path.realpath(folders[0]))]
    return strip_common_parts(folders)


def _absolute(plugin: str) -> str:
    """Makes the path of `file.py:function` absolute: each submission runs in its own folder."""
    file, colon, name = plugin.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise HeadwayError(f"{plugin!r} is not a file and a function; write it like adapter.py:build")
    if not Path(file).is_file():
        raise HeadwayError(f"there is no file {file!r}; 'headway new subject' writes an adapter to begin with")
    return f"{os.path.abspath(file)}:{name}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
