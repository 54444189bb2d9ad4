"""The files for graders: what they count is what the doctor found."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.submissions.grading import gradescope_results, otter_results, write_grades
from headway.submissions.submission import (
    CheckJson,
    Submission,
    count_mistakes,
    group_submissions,
    name_mistake,
    summarize,
)

VISIBILITY = {"hidden", "after_due_date", "after_published", "visible"}  # of Gradescope


def check(name: str, status: str, cause: bool = False, **evidence: Any) -> CheckJson:
    remedy = "mend it" if status in ("fail", "warn") else ""
    return CheckJson(
        check=name, cause=cause, status=status, meaning=f"{name} means 3 of 4", remedy=remedy, evidence=evidence
    )


CHECKS = (
    check("converged", "fail"),
    check("greedy", "fail", True, hypothesis="it starts with token 3"),
    check("metric", "pass", reported=0.5),
    check("balance", "warn", True),
    check("seeds", "skipped"),
)
BROKEN = Submission("anna", "a", causes=("greedy",), sentence="it starts with token 3", seconds=2.4, checks=CHECKS)
HUNG = Submission("ben/lab", "b", sentence="it did not finish", refused="it did not finish", ended="timeout")
FINE = Submission("chris", "c", healthy=True, sentence="nothing", checks=(check("metric", "pass"),))


def test_a_symptom_costs_nothing_and_a_cause_one_point() -> None:
    found = gradescope_results(BROKEN)
    tests = {test["name"]: test for test in found["tests"]}
    assert set(tests) == {"converged", "greedy", "metric", "balance"}
    assert {name: test["status"] for name, test in tests.items() if test["status"] == "failed"} == {
        "converged": "failed", "greedy": "failed",
    }  # fmt: skip
    assert "score" not in tests["converged"]
    assert found["score"] == sum(test.get("score", 0) for test in tests.values()) == 2.0
    assert sum(test.get("max_score", 0) for test in tests.values()) == 3.0
    assert {
        found["visibility"],
        found["stdout_visibility"],
        *(test["visibility"] for test in tests.values()),
    } <= VISIBILITY
    assert tests["greedy"]["output"].endswith("→ mend it")


def test_what_could_not_be_examined_gets_nothing_and_says_why() -> None:
    found = gradescope_results(HUNG)
    assert (found["score"], found["output"], found["tests"]) == (0.0, "it did not finish", [])
    (case,) = otter_results(HUNG)["test_file_results"][0]["test_case_results"]
    assert (case["passed"], case["error"]) == (False, "it did not finish")


def test_otter_reads_the_same_points() -> None:
    """Reads the keys that `GradingResults.from_ottr_json` of otter-grader reads, as it does."""
    (file,) = json.loads(json.dumps(otter_results(BROKEN)))["test_file_results"]
    cases = [(case["test_case"], case["passed"], case["error"]) for case in file["test_case_results"]]
    needed = {"name", "code", "hidden", "points", "success_message", "failure_message"}
    assert all(set(test) == needed for test, _, _ in cases)
    assert sum(test["points"] for test, passed, _ in cases if passed) == 2
    assert file["points"] == sum(test["points"] for test, _, _ in cases) == 3
    assert file["filename"]


def test_every_submission_has_its_file(tmp_path: Path) -> None:
    members = [BROKEN, HUNG, FINE, replace(FINE, submission="ben-lab")]
    home = write_grades("gradescope", members, tmp_path)
    assert sorted(path.parent.name for path in home.glob("*/results.json")) == ["anna", "ben-lab", "ben-lab-", "chris"]
    assert len(list(write_grades("otter", members, tmp_path).glob("*.json"))) == 4
    rows = list(csv.DictReader(write_grades("nbgrader", members, tmp_path).read_text().splitlines()))
    assert [(row["student_id"], row["score"], row["max_score"]) for row in rows] == [
        ("anna", "2.0", "3.0"), ("ben/lab", "0.0", "0.0"), ("chris", "1.0", "1.0"), ("ben-lab", "1.0", "1.0"),
    ]  # fmt: skip


def test_the_same_mistake_with_other_numbers_is_one_group() -> None:
    other = (check("greedy", "fail", True, hypothesis="it starts with token 7"), *CHECKS[2:])
    second = Submission("dora", "d", causes=("greedy",), sentence="it starts with token 7", checks=other)
    third = Submission(
        "eve", "e", causes=("greedy",), checks=(check("greedy", "fail", True, hypothesis="something else"),)
    )
    groups = group_submissions([FINE, HUNG, third, BROKEN, second])
    assert [group["submissions"] for group in groups] == [["anna", "dora"], ["eve"], ["ben/lab"], ["chris"]]
    mistakes = count_mistakes([FINE, HUNG, third, BROKEN, second])
    assert [(each["mistake"], each["count"]) for each in mistakes] == [
        ("greedy: it starts with token N", 2), ("greedy: something else", 1), ("did not finish in time", 1),
    ]  # fmt: skip


def test_an_examination_is_summarized_from_its_checks() -> None:
    found = summarize({"healthy": False, "checks": list(CHECKS)}, {"decoded": 0.1, "forced": 0.9})
    assert (found.causes, found.sentence) == (("greedy",), "greedy means 3 of 4")
    assert (found.reported, found.decoded, found.forced) == (0.5, 0.1, 0.9)
    warned = summarize({"healthy": True, "checks": list(CHECKS[2:])}, {})
    assert warned.causes == ()
    assert "with a warning: balance means" in warned.sentence
    assert summarize({"healthy": False, "checks": list(CHECKS[2:])}, {}).causes == ("balance",)  # --strict


def test_an_examination_is_summarized_by_its_own_words_where_it_has_them() -> None:
    accuracies = {name: {"value": value, "examples": 9} for name, value in (("reported", 0.4), ("whole", 0.7))}
    own = {"causes": ["greedy", "balance"], "sentence": "Start with 11.", "accuracies": accuracies}
    found = summarize({"healthy": False, "checks": list(CHECKS), **own}, {"decoded": 0.1, "forced": 0.9})
    assert (found.causes, found.sentence) == (("greedy",), "Start with 11.")
    assert (found.reported, found.decoded, found.forced) == (0.4, 0.1, 0.7)


def test_a_mechanism_names_the_mistake() -> None:
    identified: CheckJson = {**check("metric", "fail", True), "found": ["tokens"]}
    assert name_mistake(identified) == "metric: tokens"
    assert name_mistake({**check("given digits", "fail", True), "found": ["given"]}) == "given digits"
