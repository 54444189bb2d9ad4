"""The results in the formats that graders read: results.json of Gradescope for each submission, the JSON from which
otter-grader makes its GradingResults, and a table in the columns of `nbgrader export`.

A check that ran is a test of one point. A failed cause gets 0; a symptom costs nothing, because its cause already does;
a skipped check does not count. A submission that could not be examined gets 0.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.output import as_csv
from headway.runs import disk
from headway.submissions.question import Format
from headway.submissions.submission import CheckJson, Submission

NBGRADER = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email", "raw_score",
    "late_submission_penalty", "score", "max_score",
)  # fmt: skip
"""the columns that `nbgrader export` writes"""


def write_grades(kind: Format, members: Sequence[Submission], out: Path) -> Path:
    """Writes the results for a grader; returns the folder or the file."""
    if kind == "nbgrader":
        disk.write_bytes(out / "nbgrader.csv", as_csv(nbgrader_table(members)).encode(errors="replace"))
        return out / "nbgrader.csv"
    for member, name in zip(members, _file_names(members), strict=True):
        if kind == "gradescope":
            disk.write_json(out / kind / name / "results.json", gradescope_results(member))
        else:
            disk.write_json(out / kind / f"{name}.json", otter_results(member))
    return out / kind


def _file_names(members: Sequence[Submission]) -> list[str]:
    """Names the file of each submission; no two are the same."""
    names: list[str] = []
    for member in members:
        name = member.submission.replace("/", "-")
        while name in names:
            name += "-"
        names.append(name)
    return names


def counted(member: Submission) -> list[CheckJson]:
    """Returns the checks that count: those that ran, without symptoms."""
    ran = [each for each in member.checks if each["status"] != "skipped"]
    return [each for each in ran if each["status"] in ("pass", "warn") or each["cause"]]


def score(member: Submission) -> tuple[int, int]:
    """Returns the points of a submission, and the most that it could get."""
    checks = counted(member)
    return sum(each["status"] != "fail" for each in checks), len(checks)


def gradescope_results(member: Submission) -> dict[str, Any]:
    """Returns the content of Gradescope's results.json."""
    scoring = counted(member)
    tests = []
    for check in member.checks:
        if check["status"] == "skipped":
            continue
        test = {
            "name": check["check"],
            "status": "failed" if check["status"] == "fail" else "passed",
            "output": message(check),
            "visibility": "visible",
        }
        if check in scoring:
            test |= {"score": float(check["status"] != "fail"), "max_score": 1.0}
        tests.append(test)
    return {
        "score": float(score(member)[0]),
        "execution_time": round(member.seconds),
        "output": member.sentence,
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {"healthy": member.healthy, "causes": list(member.causes), "refused": member.refused},
    }


def otter_results(member: Submission) -> dict[str, Any]:
    """Returns what otter-grader's GradingResults.from_ottr_json reads: a file of tests, with a case for each check."""
    cases = []
    for check in counted(member):
        case = {
            "name": check["check"],
            "code": "",
            "points": 1,
            "hidden": False,
            "success_message": check["meaning"],
            "failure_message": message(check),
        }
        passed = check["status"] != "fail"
        cases.append({"passed": passed, "error": None if passed else message(check), "test_case": case})
    if member.refused:
        case = {"name": "examined", "code": "", "points": 1, "hidden": False, "success_message": None}
        case["failure_message"] = member.refused
        cases.append({"passed": False, "error": member.refused, "test_case": case})
    return {"test_file_results": [{"filename": "headway.py", "points": len(cases), "test_case_results": cases}]}


def nbgrader_table(members: Sequence[Submission]) -> list[Sequence[str | float]]:
    rows: list[Sequence[str | float]] = [NBGRADER]
    for member in members:
        points, most = map(float, score(member))
        rows.append(("headway", "", "", member.submission, "", "", "", points, 0.0, points, most))
    return rows


def message(check: CheckJson) -> str:
    """Formats a check for a student: what was found, and what to change."""
    return f"{check['meaning']}\n→ {check['remedy']}" if check["remedy"] else check["meaning"]
