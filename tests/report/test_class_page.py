"""The page of a class: every submission is a row, and every row opens the whole examination."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from visiting import Visit, needs_browser, save_file

from headway.report.page.classroom import write_class_page
from headway.submissions.classroom import describe_class
from headway.submissions.submission import CheckJson, Submission

START = "the start token is kept in the output, so every token is one place late"


def check(name: str, status: str, meaning: str, cause: bool = False, why: str = "") -> CheckJson:
    evidence = {"hypothesis": why} if why else {}
    remedy = "drop the first token" if status == "fail" else ""
    return CheckJson(check=name, cause=cause, status=status, meaning=meaning, remedy=remedy, evidence=evidence)


def members() -> list[Submission]:
    passed = [check("overlap", "skipped", "it needs trained_on"), check("balance", "pass", "the commonest has 0.0100")]
    kept = (check("greedy", "fail", f"decoding and teacher forcing disagree: {START}", True, START),
            check("floor", "fail", "baseline 0.0000"), *passed)  # fmt: skip
    counted = (check("metric", "fail", "reported 0.9210: it is accuracy over tokens", True), *passed)
    found = [
        Submission(f"anna-{n}", f"/class/anna-{n}", True, (), "nothing wrong", 1.0, 1.0, 1.0, 0.5, checks=tuple(passed))
        for n in range(14)
    ]
    found += [
        Submission(f"ben-{n}", "/b", False, ("greedy",), kept[0]["meaning"], 0.0, 0.0, n / 10, 1.5, checks=kept)
        for n in range(9, 12)
    ]
    found += [
        Submission("<b>odd</b>", "/o", False, ("metric",), counted[0]["meaning"], 0.921, 0.8, 0.8, checks=counted)
    ]
    hung = "it did not finish within 60 s; it was at train.py, line 31"
    output = "loss 0.1\n</script><script>alert(1)</script>"
    found += [
        Submission("zoe", "/z", sentence=hung, refused=hung, ended="timeout", seconds=61.0, printed=42, output=output)
    ]
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_class_page(describe_class(members()), tmp_path_factory.mktemp("class") / "class.html")


@pytest.fixture(scope="module")
def page(browser: Any, written: Path) -> Iterator[Any]:
    visited = Visit(browser, written, viewport={"width": 1200, "height": 900})
    yield visited.page
    visited.close()


def names(page: Any) -> list[str]:
    return [name.split(" ", 1)[1] for name in page.locator("#class .name").all_inner_texts()]


@needs_browser
def test_it_says_which_mistakes_the_class_makes_and_who_has_the_same(page: Any) -> None:
    assert page.locator("main > section h2").all_inner_texts() == ["Mistakes", "Submissions"]
    assert page.locator(".headlines strong").all_inner_texts() == ["14 of 19", "4 of 19", "1 of 19"]
    assert page.locator("#mistakes .mistake").all_inner_texts() == [
        f"greedy: {START}",
        "metric",
        "did not finish in time",
    ]
    groups = page.locator("#mistakes .groups").first.locator("li")
    assert [group.locator("b").inner_text() for group in groups.all()] == ["3", "14"]
    assert groups.first.locator("button").all_inner_texts() == ["ben-9", "ben-10", "ben-11"]
    page.get_by_role("button", name="metric", exact=True).click()
    assert names(page) == ["<b>odd</b>"]
    page.get_by_role("button", name="show all mistakes").click()
    assert len(names(page)) == 19


@needs_browser
def test_rows_can_be_searched_and_sorted(page: Any) -> None:
    search = page.get_by_label("search submissions")
    search.fill("START token ben")
    assert names(page) == ["ben-9", "ben-10", "ben-11"]
    page.get_by_role("button", name="teacher-forced").click()
    assert names(page) == ["ben-9", "ben-10", "ben-11"]
    page.get_by_role("button", name="teacher-forced").click()
    assert names(page) == ["ben-11", "ben-10", "ben-9"]
    assert page.locator("#class th[aria-sort=descending]").inner_text() == "teacher-forced ▼"
    search.fill("")
    page.get_by_role("button", name="not examined", exact=True).click()
    assert names(page) == ["zoe"]
    page.get_by_role("button", name="all", exact=True).click()
    assert names(page)[-1] == "zoe"  # it has no number, so it comes last either way
    page.get_by_role("button", name="submission", exact=True).click()
    assert names(page)[-4:] == ["ben-9", "ben-10", "ben-11", "zoe"]
    rows = list(csv.DictReader(save_file(page, page.get_by_label("save as CSV: submissions")).read_text().splitlines()))
    assert [row["submission"] for row in rows] == names(page)
    search.fill("nobody at all")
    assert names(page) == []
    search.fill("")


@needs_browser
def test_a_row_opens_the_examination(page: Any) -> None:
    button = page.locator("#class").get_by_role("button", name="ben-10")
    assert button.get_attribute("aria-expanded") == "false"
    button.click()
    opened = page.locator(".examination")
    assert opened.locator("> ul > li").count() == 3
    first = opened.locator("> ul > li").first.inner_text()
    assert first.startswith("fail greedy cause")
    assert first.endswith("→ drop the first token")
    assert "1 checks did not run" in opened.inner_text()
    button.click()
    assert page.locator(".examination").count() == 0
    page.locator("#class").get_by_role("button", name="zoe").click()
    assert "alert(1)" in page.locator(".examination pre").inner_text()  # shown, not run
    page.locator("#class").get_by_role("button", name="zoe").click()


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser: Any, written: Path, scheme: str) -> None:
    visited = Visit(browser, written, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = visited.page
    page.locator("#class").get_by_role("button", name="zoe").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#class").bounding_box()["width"] <= 360  # rows are stacked, nothing is cut off
    colour = {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 27, 33)"}[scheme]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour
    visited.close()
