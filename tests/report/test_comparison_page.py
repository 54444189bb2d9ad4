"""A comparison of runs on the page: the dots are the runs, the table is the groups."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from visiting import Visit, needs_browser, save_file

from headway.cli import main
from headway.compare import RunComparison
from headway.compare.groups import Group
from headway.report.figures import MOST_DOTS, thin_out
from headway.report.page import write_comparison

METRICS = ("reach", "final_loss")
REACH = {"rope": [16, 32, 64], "fire": [512, 512, 4096], "<b>odd</b>": [0, 16]}


def comparison() -> RunComparison:
    groups = []
    for name, reaches in REACH.items():
        runs: list[Any] = [
            {"run": f"runs/{name}-{seed}", "state": "complete", "seed": seed, "digest": f"{name}{seed}",
             "positions": name, "reach": reach, "final_loss": 0.1 + 0.01 * seed}
            for seed, reach in enumerate(reaches)
        ]  # fmt: skip
        runs += [{"run": f"runs/{name}-late", "state": "unfinished", "seed": 9}] if name == "rope" else []
        groups.append(Group({"positions": name}, tuple(runs), METRICS))
    return RunComparison(("runs",), ("positions",), METRICS, "seed<5", 20, tuple(groups))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "by positions"
    write_comparison(comparison(), out)
    return out


@pytest.fixture(scope="module")
def page(browser: Any, compared: Path) -> Iterator[Any]:
    visited = Visit(browser, compared / "report.html", viewport={"width": 1200, "height": 900})
    yield visited.page
    visited.close()


@needs_browser
def test_a_page_of_a_comparison_alone_shows_nothing_else(page: Any, compared: Path) -> None:
    assert page.locator("main > section h2").all_inner_texts() == ["Answers", "Comparison", "How it was made"]
    assert page.get_by_role("alert").count() == 0
    assert "Missing" not in page.locator("main").inner_text()
    sentences = page.locator("#comparison p").all_inner_texts()
    assert set(comparison().sentences()) <= set(sentences)
    command = page.locator("#made pre").inner_text()
    assert command.startswith("headway compare runs --by positions --metric reach,final_loss --where 'seed<5' --out ")
    files = page.locator("#made .files button").all_inner_texts()
    assert files == ["compare.json", "compare.csv", "compare-runs.csv", "compare.svg"]


@needs_browser
def test_every_run_is_a_dot_and_every_median_a_line(page: Any) -> None:
    chart = page.get_by_role("img", name="reach by positions")
    assert chart.locator(".dot").count() == 8
    titles = chart.locator(".dot title").all_text_contents()
    assert "runs/fire-2: 4,096" in titles
    at = {title: float(dot.get_attribute("cx")) for title, dot in zip(titles, chart.locator(".dot").all(), strict=True)}
    assert at["runs/<b>odd</b>-0: 0"] < at["runs/rope-0: 16"] < at["runs/rope-1: 32"] < at["runs/fire-2: 4,096"]
    assert at["runs/rope-1: 32"] - at["runs/rope-0: 16"] == pytest.approx(at["runs/rope-2: 64"] - at["runs/rope-1: 32"])
    middles = chart.locator(".middle")
    assert middles.locator("title").all_text_contents() == [
        "median of rope: 32", "median of fire: 512", "median of <b>odd</b>: 0",
    ]  # fmt: skip
    assert float(middles.nth(0).get_attribute("x1")) == pytest.approx(at["runs/rope-1: 32"])


@needs_browser
def test_the_table_has_the_numbers_and_can_be_sorted(page: Any) -> None:
    table = page.get_by_role("region", name="groups by positions")

    def first() -> list[str]:
        return [row.locator("td").first.inner_text() for row in table.locator("tbody tr").all()]

    assert first() == ["rope", "fire", "<b>odd</b>"]
    cells = table.locator("tbody tr").first.locator("td").all_inner_texts()
    assert cells[1].split("\n") == ["4", "1 unfinished"]
    interval = comparison().groups[0].spreads["reach"].interval
    assert interval is not None
    assert cells[3].split("\n")[:2] == ["32", "16 to 64"]
    assert cells[3].split("\n")[2].startswith("mean 37.33, 95%: -23.3")
    table.get_by_role("button", name="reach").click()
    assert first() == ["fire", "rope", "<b>odd</b>"]
    assert table.locator("th[aria-sort=descending]").inner_text() == "reach ▼"
    table.get_by_role("button", name="reach").click()
    assert first() == ["<b>odd</b>", "rope", "fire"]
    table.get_by_role("button", name="positions").click()
    rows = list(
        csv.reader(save_file(page, page.get_by_label("save as CSV: groups by positions")).read_text().splitlines())
    )
    assert rows[0][:7] == ["positions", "runs", "complete", "unfinished", "broken", "seeds", "reach.n"]
    assert len(rows) == 4
    assert [float(row[rows[0].index("reach.low")]) for row in rows if row[0] == "rope"] == [pytest.approx(interval[0])]
    drawing = ElementTree.parse(save_file(page, page.get_by_label("save as SVG: reach by positions"))).getroot()
    assert drawing.tag.endswith("svg")


@needs_browser
def test_it_fits_a_phone_in_dark_mode(browser: Any, compared: Path) -> None:
    visited = Visit(browser, compared / "report.html", viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = visited.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(24, 27, 33)"
    chart = page.get_by_role("img", name="reach by positions")
    drawn = float(chart.get_attribute("viewBox").split()[2])
    assert chart.bounding_box()["width"] == pytest.approx(drawn, abs=2)  # drawn for this width, not shrunk to it
    visited.close()


@needs_browser
def test_beside_other_studies_it_is_one_more_section(
    browser: Any, folder: Path, compared: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "lengths", tmp_path / "both" / "lengths")
    shutil.copytree(compared, tmp_path / "both" / "compared")
    assert main(["report", str(tmp_path / "both"), "--json"]) == 0
    visited = Visit(browser, tmp_path / "both" / "report.html", "#comparison")
    names = ["Answers", "Try it", "Heads", "Try a length", "Length", "Comparison", "How it was made"]
    assert visited.page.locator("main > section h2").all_inner_texts() == names
    assert visited.page.locator("#comparison .dot").count() == 16
    visited.close()


def test_a_malformed_comparison_gives_a_one_line_error(compared: Path, tmp_path: Path, capsys: Any) -> None:
    whole = json.loads((compared / "compare.json").read_text())
    altered = [
        [], {}, {**whole, "rows": 3}, {**whole, "by": ["index"]}, {**whole, "metrics": ["perfect"]},
        {**whole, "runs": [{"run": "a", "group": 7, "state": "complete"}]},
    ]  # fmt: skip
    for content in altered:
        (tmp_path / "compare.json").write_text(json.dumps(content))
        assert main(["report", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert "compare.json" in error
        assert error.count("\n") == 1
    (tmp_path / "compare.json").write_text("[" * 100_000)
    assert main(["report", str(tmp_path)]) == 2


def test_of_many_dots_an_evenly_spread_selection_is_drawn() -> None:
    values = [float(n) for n in range(10_000)]
    shown = thin_out(values)
    assert (len(shown), shown[0], shown[-1]) == (MOST_DOTS, 0.0, 9_999.0)
