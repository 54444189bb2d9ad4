"""The page in a real browser: what users see and do."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from visiting import ROOT, Visit, needs_browser, save_file, type_sum

from headway.attach.opening import open_subject
from headway.causes.maps import worked_examples
from headway.cli import main
from headway.models import Head
from headway.report.page import Inline, build_content, find_sources, render_page
from headway.report.page.markdown import render_markdown
from headway.tasks import Problems


def test_a_page_holds_everything_and_is_small(report: Path) -> None:
    text = report.read_text()
    assert report.stat().st_size < 6_000_000
    assert "http://" not in text.split('id="content"')[0]
    assert 'src="' not in text.split('id="content"')[0]
    plain = report.with_suffix(".md").read_text()
    assert "- Together, 13 of 24 heads can go." in plain
    assert "| encoder self L0H2 | 0.5212 | 0.4788 | critical | aligned |" in plain
    assert "| sinusoidal | sequential | default | 16 | 16 |" in plain
    assert "![lengths/lengths-curves.svg](lengths/lengths-curves.svg)" in plain


@needs_browser
def test_every_section_is_there_and_answers_come_first(visit: Any, folder: Path) -> None:
    assert visit.locator("main > section h2").all_inner_texts() == [
        "Answers",
        "Try it",
        "Heads",
        "Try a length",
        "Length",
        "How it was made",
    ]
    assert visit.locator(".headline strong").all_inner_texts() == [
        "11 of its 24 heads are enough",
        "On the probe default it works up to 16, its training length; at 32 it gives every problem the same answer",
    ]
    first = visit.locator(".headline").first
    assert first.locator("p").first.inner_text() == (
        "Under zero ablation the other 13 can go together (the largest set found, not proved to be the largest): "
        "100.0% of the answers are right. 19 heads look removable one at a time; remove them together and 47.6% are "
        "wrong. Another kind of ablation gives another set: 16 under mean ablation."
    )
    assert visit.locator("#answers .findings").count() == 0  # they stand beside what they explain
    first.locator("summary").click()
    found = dict(zip(*(first.locator(tag).all_inner_texts() for tag in ("dt", "dd")), strict=True))
    assert found.pop("command") == f"headway heads {folder / 'adder'}"
    assert found == {
        "problems": "10,000",
        "right with all heads": "1.0000",
        "ablation": "zero",
        "held out, with all heads": "0 wrong of 968",
        "model": "addition-learned-seed0-429f3ca7",
        "seeds": "1 (others: see Over seeds)",
        "check": "the doctor's checks forbid nothing here",
    }
    visit.locator("#heads .evidence > summary").first.click()
    sentence = visit.locator("#heads .findings li").first
    assert "Together, 13 of 24 heads can go." in sentence.inner_text()
    sentence.locator("summary").click()
    assert "0.5143 to 0.5339" in sentence.inner_text()
    assert "15,150 contexts" in visit.locator("#length").inner_text()
    assert visit.locator("#made table tbody tr").count() == 2


@needs_browser
def test_sums_are_answered_while_typing(visit: Any) -> None:
    assert type_sum(visit, 457, 968) == "1425"
    assert "right" in visit.locator("#verdict").inner_text()
    assert type_sum(visit, 0, 7) == "0007"
    visit.get_by_label("first number").fill("x")
    assert "from 0 to 999" in visit.get_by_role("alert").inner_text()
    invalid = [visit.get_by_label(f"{name} number").get_attribute("aria-invalid") for name in ("first", "second")]
    assert invalid == ["true", "false"]
    visit.locator("#random").click()
    assert visit.locator(".digit").count() == 4
    visit.locator("#hardest").click()
    first, second = (int(visit.get_by_label(f"{name} number").input_value()) for name in ("first", "second"))
    assert first + second == 1000
    assert first % 10  # the last column makes the first carry
    assert "".join(visit.locator(".digit b").all_inner_texts()) == "1000"


@needs_browser
def test_every_head_can_be_closed_and_opened(visit: Any) -> None:
    type_sum(visit, 457, 968)
    gates = visit.locator("#try input[type=checkbox]")
    assert gates.count() == 24
    for number in range(24):
        gates.nth(number).uncheck()
        assert visit.locator(".sites .heat.off").count() == number + 1
    visit.get_by_role("button", name="all open").click()
    assert visit.locator(".sites .heat.off").count() == 0
    visit.get_by_role("button", name="what the single-head rule would prune (19)").click()
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 19
    best = visit.get_by_role("button", name="largest safe set found (13)")  # no proof that there is no larger one
    best.click()
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 13
    assert best.get_attribute("aria-pressed") == "true"
    visit.get_by_role("button", name="all open").click()
    assert best.get_attribute("aria-pressed") == "false"
    visit.get_by_role("button", name="encoder self L0", exact=True).click()  # a whole site
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 4
    visit.get_by_role("checkbox", name="encoder self L0H2", exact=True).check()
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 3
    assert visit.locator("#accuracy").get_attribute("aria-live") == "off"  # while it counts
    visit.get_by_role("button", name="all open").click()
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 0
    visit.wait_for_selector("#accuracy:has-text('300 of 300 fresh sums right')", timeout=600_000)
    assert visit.locator("#accuracy").get_attribute("aria-live") == "polite"


@needs_browser
def test_a_head_is_chosen_everywhere(visit: Any) -> None:
    visit.get_by_label("enlarge decoder cross L0H3").click()
    assert "decoder cross L0H3" in visit.locator(".enlarged").inner_text()
    assert "decoder cross L0H3" in visit.locator("#ranking tr.chosen").inner_text()
    visit.locator("#ranking button", has_text="encoder self L0H2").click()
    assert "encoder self L0H2" in visit.locator(".enlarged h3").inner_text()
    assert "Alone it costs 47.88% (critical); pattern: aligned." in visit.locator(".enlarged").inner_text()
    first = visit.locator("#ranking tbody tr").first
    assert "encoder self L0H2" in first.inner_text()  # costs most
    visit.locator("#ranking th button", has_text="cost").click()
    assert "encoder self L0H2" not in first.inner_text()


@needs_browser
def test_heads_without_a_measurable_cost_are_one_line_that_opens(visit: Any, folder: Path) -> None:
    rows = json.loads((folder / "adder" / "heads.json").read_text())["heads"]
    quiet = [row for row in rows if row["interval"][0] <= 0 <= row["interval"][1] < 0.01]
    assert len(quiet) >= 15
    assert visit.locator("#ranking tbody tr").count() == 24 - len(quiet) + 1
    line = visit.locator("#ranking .fold button")
    assert f"{len(quiet)} heads: no measurable cost alone" in line.inner_text()
    line.focus()
    visit.keyboard.press("Enter")
    assert line.get_attribute("aria-expanded") == "true"
    assert visit.locator("#ranking tbody tr").count() == 24 + 1
    line.click()


@needs_browser
def test_a_link_shows_the_same(browser: Any, report: Path) -> None:
    first = Visit(browser, report, "#a=999&b=1&off=decoder.0.cross.3,encoder.0.self.2&head=decoder.1.self.0")
    assert first.page.get_by_label("first number").input_value() == "999"
    assert first.page.locator("#try input[type=checkbox]:not(:checked)").count() == 2
    assert "decoder self L1H0" in first.page.locator(".enlarged").inner_text()
    type_sum(first.page, 12, 34)
    assert "a=12&b=34&off=decoder.0.cross.3,encoder.0.self.2" in first.page.url
    first.page.evaluate("location.hash = '#a=5&b=6&head=encoder.0.self.1'")
    first.page.wait_for_selector(".enlarged h3:has-text('encoder self L0H1')")
    assert first.page.get_by_label("first number").input_value() == "5"
    assert first.page.locator("#try input[type=checkbox]:not(:checked)").count() == 0
    first.close()
    wrong = Visit(browser, report, "#a=99999&b=<script>&off=nothing.1,decoder.0.cross.9&head=x")
    assert wrong.page.get_by_label("first number").input_value() == "457"
    assert wrong.page.locator("#try input[type=checkbox]:not(:checked)").count() == 0
    wrong.close()


@needs_browser
def test_everything_works_with_the_keyboard_alone(browser: Any, report: Path) -> None:
    visited = Visit(browser, report)
    page = visited.page
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.innerText"
            )
        )
        if "gate-encoder.0.self.0" in reached:
            break
    assert {"first number", "second number", "random", "hardest", "theme"} <= reached
    page.keyboard.press("Space")
    assert page.locator("#try input[type=checkbox]:not(:checked)").count() == 1
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText").startswith("verdict"):
            break
    page.keyboard.press("Enter")
    assert page.locator("#ranking th[aria-sort=ascending]").inner_text() == "verdict \u25b2"
    assert "critical" in page.locator("#ranking tbody tr").first.inner_text()
    row = page.get_by_role("group", name="pairs of heads", exact=True).locator(".row").nth(5)
    row.focus()
    page.keyboard.press("Enter")
    assert page.locator(".enlarged h3").inner_text() == "encoder self L1H1"
    assert row.get_attribute("aria-pressed") == "true"
    box = page.locator(".box.pick").first
    box.focus()
    page.keyboard.press("Space")
    assert page.locator(".enlarged h3").inner_text().split() == box.get_attribute("aria-label").split()[1:]
    visited.close()


@needs_browser
def test_the_url_of_a_section_opens_it(browser: Any, report: Path) -> None:
    visited = Visit(browser, report, "#length", viewport={"width": 1200, "height": 900})
    top = "document.getElementById('{}').getBoundingClientRect().top"
    assert abs(visited.page.evaluate(top.format("length"))) < 100
    type_sum(visited.page, 3, 4)
    visited.page.evaluate("location.hash = '#heads'")
    visited.page.wait_for_function(f"Math.abs({top.format('heads')}) < 100")
    assert visited.page.get_by_label("first number").input_value() == "3"
    visited.close()


@needs_browser
def test_changing_the_theme_keeps_open_sections_open(browser: Any, report: Path) -> None:
    visited = Visit(browser, report)
    visited.page.locator(".headline summary").first.click()
    visited.page.locator("#theme").click()
    assert visited.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert visited.page.locator(".headline details[open]").count() == 1
    visited.close()


@needs_browser
def test_files_are_saved_from_inside_the_page(visit: Any, folder: Path) -> None:
    saved = {
        "adder-heads.json": "adder/heads.json",
        "adder-config.json": "adder/config.json",
        "certified-sorter-training.json": "certified-sorter/training.json",
        "lengths-lengths-curves.svg": "lengths/lengths-curves.svg",
    }
    for name, path in saved.items():
        button = visit.get_by_role("button", name=name, exact=True)
        assert save_file(visit, button).read_bytes() == (folder / path).read_bytes()


@needs_browser
def test_a_page_without_a_model_shows_precomputed_problems(browser: Any, folder: Path, tmp_path: Path) -> None:
    subject = open_subject("pretrained:adder")
    together = [
        Head.parse(name) for name in json.loads((folder / "adder" / "heads.json").read_text())["together"]["heads"]
    ]
    sets = {str(head): [head] for head in subject.heads} | {"together": together, "alone": subject.heads}
    problems = Problems.join([subject.draw(2, 7, False), subject.problem("457 + 968")])  # pyright: ignore
    content = {
        **build_content(find_sources([folder])),
        "model": None,
        "examples": worked_examples(subject, problems, sets),
    }
    (tmp_path / "page.html").write_text(render_page(content))
    visited = Visit(browser, tmp_path / "page.html", "#example=2")
    page = visited.page
    assert "were precomputed" in page.locator("#try").inner_text()
    assert page.locator(".read").inner_text() == "4 5 7 + 9 6 8 →"
    assert page.locator(".digit b").all_inner_texts() == ["1", "4", "2", "5"]
    assert page.locator("#try .sites canvas").count() == 24
    page.locator("#gate-encoder\\.0\\.self\\.2").uncheck()
    closed = subject.runner.close_heads([Head.parse("encoder.0.self.2")])
    with torch.no_grad():
        said = subject.model(problems.source[2:], problems.answer[2:], closed).argmax(-1)[0].tolist()
    assert page.locator(".digit b").all_inner_texts() == [str(digit) for digit in said]
    page.locator("#gate-encoder\\.0\\.self\\.1").uncheck()  # one at a time
    assert page.locator("#try input[type=checkbox]:not(:checked)").count() == 1
    page.get_by_role("button", name="largest safe set found (13)").click()
    assert page.locator(".digit b").all_inner_texts() == ["1", "4", "2", "5"]
    page.locator(".digit").nth(3).click()
    assert "Token 4 of 4" in page.locator(".chances").inner_text()
    page.get_by_role("button", name="problem 1").click()
    assert "example=0" in page.url
    assert "Token 1 of 4" in page.locator(".chances").inner_text()
    visited.close()
    thirteen = ",".join(str(head) for head in subject.heads[:13])  # as many as can go, but others
    other = Visit(browser, tmp_path / "page.html", f"#example=2&off={thirteen}")
    assert other.page.locator("#try input[type=checkbox]:not(:checked)").count() == 0
    other.close()
    same = Visit(browser, tmp_path / "page.html", "#example=2&off=" + ",".join(map(str, reversed(together))))
    assert same.page.locator("#try input[type=checkbox]:not(:checked)").count() == 13
    same.close()


@needs_browser
def test_a_notebook_shows_the_maps_alone(browser: Any, tmp_path: Path) -> None:
    subject = open_subject("pretrained:adder")
    problem = subject.problem("12+7")  # pyright: ignore
    shown = Inline({"examples": worked_examples(subject, problem, {})})._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><html data-ready=yes><body>{shown}</body></html>")
    visited = Visit(browser, tmp_path / "notebook.html")
    frame = visited.page.frame_locator("iframe")
    frame.locator("#try canvas").first.wait_for()
    assert frame.locator("#try canvas").count() == 24
    assert frame.locator(".read").inner_text() == "0 1 2 + 0 0 7 →"
    assert frame.locator("nav").count() == 0
    frame.get_by_label("enlarge decoder cross L1H0").click()
    assert "decoder cross L1H0" in frame.locator(".enlarged").inner_text()
    visited.close()


@needs_browser
def test_missing_and_hostile_content_is_shown_as_text(browser: Any, folder: Path, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=alert(1)>'\"🙂{script}{content}{title}" + "x" * 10_000
    content = build_content(find_sources([folder]))
    content |= {
        "title": bad,
        "heads": None,
        "seeds": [],
        "lengths": [],
        "missing": [{"what": "heads", "command": f"headway heads {bad}"}],
    }
    details = {bad: bad, "command": bad}
    content["findings"] = [{"text": bad, "details": details, "withheld": bad, "about": "lab", "study": None}]
    content["made"]["runs"] = [{"run": bad}]
    content["files"] = [{"name": bad, "data": base64.b64encode(gzip.compress(bad.encode())).decode()}]
    content["left_out"] = [bad]
    plain = {"question": bad, "answer": bad, "rest": bad, "details": details, "withheld": None}
    content["headlines"] = [{"about": "heads", **plain}, {"about": "length", **plain, "question": "?", "withheld": bad}]
    (tmp_path / "hostile.html").write_text(render_page(content))
    assert "<img" not in re.sub("`[^`]*`", "", render_markdown(content))  # as code it is text
    visited = Visit(browser, tmp_path / "hostile.html", viewport={"width": 800, "height": 600})
    assert visited.page.locator("img").count() == 0
    assert "</script><img" in visited.page.locator(".findings").inner_text()
    assert "{script}{content}{title}" in visited.page.locator(".findings summary").first.inner_text()
    assert visited.page.locator(".findings s").count() == 1
    assert "left in the folder: </script><img" in visited.page.locator("#left-out").inner_text()
    assert "headway heads" in visited.page.locator("#heads .missing").inner_text()
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 800
    visited.close()


def test_folders_without_anything_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run and no study" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("npm") is None, reason="NO NPM: the page's script is not built again")
def test_the_committed_script_is_built_from_its_source(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "web", tmp_path / "web", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "src" / "headway" / "report" / "page").mkdir(parents=True)
    for command in ("npm ci --no-audit --no-fund", "npm run check", "npm run build"):
        done = subprocess.run(command.split(), cwd=tmp_path / "web", capture_output=True, text=True, env={**os.environ})
        assert done.returncode == 0, done.stderr
    for name in ("page.js", "page.css"):
        built = (tmp_path / "src" / "headway" / "report" / "page" / name).read_bytes()
        assert built == (ROOT / "src" / "headway" / "report" / "page" / name).read_bytes(), f"{name}: run make page"
