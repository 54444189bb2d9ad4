"""The page in a real browser, from a file, without a network: what people see, and that its model is PyTorch's."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import headway
from headway.cli import main
from headway.heads.maps import worked_examples
from headway.heads.pruning import closed_gates
from headway.models import Head
from headway.report.page import Inline, page_of
from headway.report.page.content import content_of, find
from headway.report.page.markdown import markdown_of
from headway.subjects.opening import open_subject
from headway.subjects.own import open_one
from headway.tasks import Problems

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM: pages are not tested in a browser")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a lab leaves: an adder with its heads, a certified classifier, a study of length."""
    home = tmp_path_factory.mktemp("page") / "study"
    shipped = open_one("pretrained:adder").path.parent
    shutil.copytree(shipped / "adder", home / "adder")
    shutil.copytree(shipped / "certified-sorter", home / "certified-sorter")
    heads = json.loads((ROOT / "results" / "heads" / "heads.json").read_text())
    heads["findings"] = ["Together, 13 of 24 heads can go."]
    (home / "adder" / "heads.json").write_text(json.dumps(heads))
    shutil.copy(ROOT / "results" / "heads" / "maps.json", home / "adder")
    many = json.loads((ROOT / "results" / "heads-thousand" / "heads.json").read_text())
    (home / "heads.json").write_text(json.dumps({**many, "members": many["members"][:20]}))
    (home / "lengths").mkdir()
    shutil.copy(ROOT / "results" / "lengths-plain" / "lengths.json", home / "lengths")
    shutil.copy(ROOT / "results" / "lengths-plain" / "lengths-curves.svg", home / "lengths")
    return home


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    assert main(["report", str(folder), "--json"]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


class Visit:
    """A page that must say nothing on the console and ask nothing of the network."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", **settings: Any) -> None:
        self.context = browser.new_context(offline=True, accept_downloads=True, **settings)
        self.page, self.errors, self.asked = self.context.new_page(), [], []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        began = time.monotonic()
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready=yes]", state="attached")
        self.seconds = time.monotonic() - began

    def close(self) -> None:
        self.context.close()
        assert self.errors == []
        assert all(url.startswith(("file://", "blob:", "data:")) for url in self.asked), self.asked


@pytest.fixture(scope="module")
def visit(browser: Any, report: Path) -> Iterator[Any]:
    visited = Visit(browser, report, viewport={"width": 1200, "height": 900})
    yield visited.page
    visited.close()


def typed(page: Any, a: int, b: int) -> str:
    page.get_by_label("first number").fill(str(a))
    page.get_by_label("second number").fill(str(b))
    return "".join(page.locator(".digit b").all_inner_texts())


def test_a_page_holds_everything_and_is_small(report: Path) -> None:
    text = report.read_text()
    assert report.stat().st_size < 6_000_000
    assert "http://" not in text.split('id="content"')[0]
    assert 'src="' not in text.split('id="content"')[0]
    plain = report.with_suffix(".md").read_text()
    assert "- Together, 13 of 24 heads can go." in plain
    assert "| encoder.0.self.2 | 0.5212 | 0.4788 | critical | aligned |" in plain
    assert "| sinusoidal | sequential | default | 16 | 16 |" in plain
    assert "![lengths/lengths-curves.svg](lengths/lengths-curves.svg)" in plain


@needs_browser
def test_every_section_is_there_and_answers_come_first(visit: Any) -> None:
    assert visit.locator("main > section h2").all_inner_texts() == [
        "Answers",
        "Try it",
        "Heads",
        "Length",
        "How it was made",
    ]
    assert visit.locator(".headlines strong").all_inner_texts() == [
        "13 of 24 heads can go together",
        "Sortedness, trained to 16: not past its training length",
    ]
    assert "Together, 13 of 24 heads can go." in visit.locator(".findings").inner_text()
    visit.locator(".findings summary").first.click()
    assert "headway heads adder" in visit.locator(".findings").inner_text()
    assert "15,150 contexts" in visit.locator("#length").inner_text()
    assert visit.locator("#made table tbody tr").count() == 2


@needs_browser
def test_the_evidence_about_heads_is_drawn(visit: Any) -> None:
    heads = visit.locator("#heads")
    for label in (
        "errors by kind of problem without each head",
        "pairs of heads",
        "what each head brings to the answer",
    ):
        assert heads.get_by_role("img", name=label, exact=True).locator(".row").count() == 24
    drawing = heads.get_by_role(
        "img", name="from what differs, through the heads that bring it, to the digit of the answer"
    )
    assert drawing.locator(".flow").count() >= 8
    assert "answer digit 3" in drawing.text_content()
    assert heads.locator(".patterns canvas").count() == 24
    assert "aligned 100%" in heads.locator(".patterns").inner_text()
    assert "Over 20 seeds" in heads.inner_text()
    assert heads.get_by_role("img", name="how many heads, over the seeds").locator("rect").count() >= 4
    heads.get_by_role("img", name="pairs of heads", exact=True).locator(".row").nth(3).locator("text").click()
    assert "Encoder self L0 H3" in visit.locator(".enlarged h3").inner_text()


@needs_browser
def test_the_evidence_about_length_is_drawn(visit: Any) -> None:
    length = visit.locator("#length")
    assert length.locator("svg .line").count() == 2 * 3  # two probes, three encodings
    board = length.get_by_role("region", name="reach, sortedness").locator("tbody tr").all_inner_texts()
    assert "default\tsinusoidal\t16\t16\t16, 16, 16, 16, 16" in board
    stops = length.get_by_role("region", name="why each stops, sortedness").inner_text()
    assert "unseen positions (5 of 5)" in stops
    assert "blind to order (5 of 5)" in stops
    assert length.locator(".plane canvas").count() == 4  # two tables, before and after


@needs_browser
def test_sums_are_answered_as_they_are_typed(visit: Any) -> None:
    assert typed(visit, 457, 968) == "1425"
    assert "right" in visit.locator("#verdict").inner_text()
    assert typed(visit, 0, 7) == "0007"
    visit.get_by_label("first number").fill("x")
    assert "from 0 to 999" in visit.get_by_role("alert").inner_text()
    visit.locator("#random").click()
    assert visit.locator(".digit").count() == 4
    visit.locator("#hardest").click()
    first, second = (int(visit.get_by_label(f"{name} number").input_value()) for name in ("first", "second"))
    assert first + second == 1000
    assert "".join(visit.locator(".digit b").all_inner_texts()) == "1000"


@needs_browser
def test_every_head_can_be_closed_and_opened(visit: Any) -> None:
    typed(visit, 457, 968)
    gates = visit.locator("#try input[type=checkbox]")
    assert gates.count() == 24
    for number in range(24):
        gates.nth(number).uncheck()
        assert visit.locator(".sites .heat.off").count() == 1
        gates.nth(number).check()
    visit.get_by_role("button", name="what the single-head rule would prune (19)").click()
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 19
    visit.get_by_role("button", name="largest safe set (13)").click()
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 13
    visit.get_by_role("button", name="Encoder self L0", exact=True).click()  # a whole site
    visit.get_by_role("button", name="all open").click()
    assert visit.locator("#try input[type=checkbox]:not(:checked)").count() == 0
    visit.wait_for_selector("#accuracy:has-text('300 of 300 fresh sums right')", timeout=60_000)


@needs_browser
def test_a_head_is_chosen_everywhere(visit: Any) -> None:
    visit.get_by_label("enlarge decoder.0.cross.3").click()
    assert "Decoder cross L0 H3" in visit.locator(".enlarged").inner_text()
    assert "Decoder cross L0 H3" in visit.locator("#ranking tr.chosen").inner_text()
    visit.locator("#ranking button", has_text="Encoder self L0 H2").click()
    assert "Encoder self L0 H2" in visit.locator(".enlarged h3").inner_text()
    first = visit.locator("#ranking tbody tr").first
    assert "Encoder self L0 H2" in first.inner_text()  # costs most
    visit.locator("#ranking th button", has_text="cost").click()
    assert "Encoder self L0 H2" not in first.inner_text()


@needs_browser
def test_a_link_shows_the_same(browser: Any, report: Path) -> None:
    first = Visit(browser, report, "#a=999&b=1&off=decoder.0.cross.3,encoder.0.self.2&head=decoder.1.self.0")
    assert first.page.get_by_label("first number").input_value() == "999"
    assert first.page.locator("#try input[type=checkbox]:not(:checked)").count() == 2
    assert "Decoder self L1 H0" in first.page.locator(".enlarged").inner_text()
    typed(first.page, 12, 34)
    assert "a=12&b=34&off=decoder.0.cross.3,encoder.0.self.2" in first.page.url
    first.close()
    wrong = Visit(browser, report, "#a=99999&b=<script>&off=nothing.1,decoder.0.cross.9&head=x")
    assert wrong.page.get_by_label("first number").input_value() == "457"
    assert wrong.page.locator("#try input[type=checkbox]:not(:checked)").count() == 0
    wrong.close()


@needs_browser
def test_by_keyboard_alone(browser: Any, report: Path) -> None:
    visited = Visit(browser, report)
    page = visited.page
    reached = set()
    for _ in range(60):
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
    visited.close()


@needs_browser
def test_dark_narrow_and_on_paper(browser: Any, report: Path, tmp_path: Path) -> None:
    visited = Visit(browser, report, viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = visited.page
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(24, 27, 33)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.pdf(path=str(tmp_path / "page.pdf"))
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    visited.close()


@needs_browser
def test_files_are_saved_from_inside_the_page(visit: Any, folder: Path) -> None:
    with visit.expect_download() as waiting:
        visit.get_by_role("button", name="adder-heads.json").click()
    assert Path(waiting.value.path()).read_text() == (folder / "adder" / "heads.json").read_text()
    with visit.expect_download() as waiting:
        visit.get_by_role("button", name="lengths-lengths-curves.svg").click()
    assert "<svg" in Path(waiting.value.path()).read_text()


@needs_browser
def test_every_figure_is_saved_as_svg_and_every_table_as_csv(visit: Any) -> None:
    figures, tables = (
        visit.locator("button[aria-label^='save as SVG']"),
        visit.locator("button[aria-label^='save as CSV']"),
    )
    assert figures.count() == visit.locator("main svg").count() > 6
    assert tables.count() == visit.locator("main table").count() > 4
    for number in range(figures.count()):
        with visit.expect_download() as waiting:
            figures.nth(number).click()
        visit.wait_for_timeout(250)  # chromium lets a page save ten files in a second or two, and drops the next
        drawn = ElementTree.parse(waiting.value.path()).getroot()
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert any("fill:rgb" in shape.get("style", "") for shape in drawn.iter())
    for number in range(tables.count()):
        with visit.expect_download() as waiting:
            tables.nth(number).click()
        visit.wait_for_timeout(250)
        rows = list(csv.reader(Path(waiting.value.path()).read_text().splitlines()))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1


@needs_browser
def test_a_page_without_a_model_shows_problems_worked_out_beforehand(
    browser: Any, folder: Path, tmp_path: Path
) -> None:
    subject = open_subject("pretrained:adder")
    together = [
        Head.parse(name) for name in json.loads((folder / "adder" / "heads.json").read_text())["together"]["heads"]
    ]
    sets = {str(head): [head] for head in subject.heads} | {"together": together, "alone": subject.heads}
    problems = Problems.join([subject.draw(2, 7, False), subject.problem("457 + 968")])  # pyright: ignore
    content = {**content_of(find([folder])), "model": None, "examples": worked_examples(subject, problems, sets)}
    (tmp_path / "page.html").write_text(page_of(content))
    visited = Visit(browser, tmp_path / "page.html", "#example=2")
    page = visited.page
    assert "worked out beforehand" in page.locator("#try").inner_text()
    assert page.locator(".read").inner_text() == "4 5 7 + 9 6 8 →"
    assert page.locator(".digit b").all_inner_texts() == ["1", "4", "2", "5"]
    assert page.locator("#try .sites canvas").count() == 24
    page.locator("#gate-encoder\\.0\\.self\\.2").uncheck()
    closed = closed_gates(subject.model, [Head.parse("encoder.0.self.2")])  # pyright: ignore
    with torch.no_grad():
        said = subject.model(problems.source[2:], problems.answer[2:], closed).argmax(-1)[0].tolist()
    assert page.locator(".digit b").all_inner_texts() == [str(digit) for digit in said]
    page.locator("#gate-encoder\\.0\\.self\\.1").uncheck()  # one at a time
    assert page.locator("#try input[type=checkbox]:not(:checked)").count() == 1
    page.get_by_role("button", name="largest safe set (13)").click()
    assert page.locator(".digit b").all_inner_texts() == ["1", "4", "2", "5"]
    page.get_by_role("button", name="problem 1").click()
    assert "example=0" in page.url
    visited.close()


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
    frame.get_by_label("enlarge decoder.1.cross.0").click()
    assert "Decoder cross L1 H0" in frame.locator(".enlarged").inner_text()
    visited.close()


@needs_browser
def test_it_is_ready_soon_and_follows_at_once(browser: Any, report: Path) -> None:
    seconds = []
    for _ in range(3):
        visited = Visit(browser, report)
        seconds.append(visited.seconds)
        visited.close()
    assert statistics.median(seconds) < 1.5
    visited = Visit(browser, report)
    visited.page.wait_for_selector("#accuracy:has-text('fresh sums right')", timeout=60_000)
    spent = visited.page.evaluate(
        """async () => {
          const field = document.querySelector('input[aria-label="first number"]'), spent = [];
          for (let n = 100; n < 125; n++) {
            const began = performance.now();
            field.value = String(n);
            field.dispatchEvent(new Event("input", { bubbles: true }));
            await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
            spent.push(performance.now() - began);
          }
          return spent;
        }"""
    )
    visited.close()
    print(f"ready in {statistics.median(seconds):.2f} s, a keystroke in {statistics.median(spent):.1f} ms")
    assert statistics.median(spent) < 50


def half_adder(name: str | Path = "pretrained:adder") -> Any:
    """PyTorch holding the weights that the page holds."""
    run = open_one(name)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.copy_(parameter.half().float())
    return run


def compared(browser: Any, report: Path, sums: int, sets: int, each: int) -> dict[str, float]:
    """The page's logits and answers beside PyTorch's: with all heads open, and under random sets of closed ones."""
    run, dice = half_adder(), torch.Generator().manual_seed(0)
    names = [f"{site}.{head}" for site in ("encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.0.cross",
             "decoder.1.self", "decoder.1.cross") for head in range(4)]  # fmt: skip
    asked: list[tuple[list[str], int]] = [([], sums)]
    for _ in range(sets):
        shut = (torch.rand(24, generator=dice) < 0.3).nonzero()[:, 0].tolist()
        asked.append(([names[number] for number in shut], each))
    visited = Visit(browser, report)
    largest, differ, close, checked = 0.0, 0, 0, 0
    for closed, rows in asked:
        pairs = torch.randint(1000, (rows, 2), generator=dice)
        said = visited.page.evaluate(
            "([pairs, closed]) => pairs.map(([a, b]) => headway.answer(a, b, closed))", [pairs.tolist(), closed]
        )
        source = torch.tensor([[*map(int, f"{a:03}"), 10, *map(int, f"{b:03}")] for a, b in pairs.tolist()])
        written = torch.tensor([row["digits"] for row in said])
        with torch.no_grad():
            gates = closed_gates(run.model, [Head.parse(name) for name in closed])
            logits = run.model(source, written, gates)
        theirs = torch.tensor([row["logits"] for row in said]).view_as(logits)
        largest = max(largest, float((logits - theirs).abs().max()))
        best = logits.topk(2, dim=-1).values
        sure = (best[..., 0] - best[..., 1]) > 1e-2
        differ += int(((logits.argmax(-1) != written) & sure).sum())
        close += int((~sure).sum())
        checked += rows
    visited.close()
    return {"checked": checked, "largest": largest, "differ": differ, "close": close}


@needs_browser
def test_the_page_computes_what_pytorch_computes(browser: Any, report: Path) -> None:
    found = compared(browser, report, 200, 10, 20)
    assert found["largest"] < 2e-3
    assert found["differ"] == 0


@needs_browser
@pytest.mark.parametrize("positions", ["sinusoidal", "none", "rope", "alibi"])
def test_the_page_knows_other_encodings(browser: Any, tmp_path: Path, positions: str) -> None:
    run = headway.train(
        "addition", positions=positions, steps=2, d_model=48, heads=6, d_ff=32, batch=8, out=tmp_path / "run"
    )
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    visited = Visit(browser, tmp_path / "page.html")
    pairs = [[457, 968], [0, 0], [999, 1]]
    said = visited.page.evaluate("pairs => pairs.map(([a, b]) => headway.answer(a, b, ['decoder.1.self.4']))", pairs)
    visited.close()
    half, written = half_adder(run.path), torch.tensor([row["digits"] for row in said])
    source = torch.cat([half.task.read(f"{a}+{b}").source for a, b in pairs])
    with torch.no_grad():
        logits = half.model(source, written, closed_gates(half.model, [Head.parse("decoder.1.self.4")]))
    assert float((logits - torch.tensor([row["logits"] for row in said]).view_as(logits)).abs().max()) < 1e-4


@needs_browser
@pytest.mark.slow
def test_the_page_computes_what_pytorch_computes_on_twenty_thousand_sums(browser: Any, report: Path) -> None:
    found = compared(browser, report, 20_000, 50, 100)
    print(found)
    assert found["largest"] < 2e-3
    assert found["differ"] == 0


@pytest.mark.slow
def test_the_adder_of_half_floats_is_perfect() -> None:
    from headway.evaluation.exact import evaluate_all

    run = half_adder()
    assert evaluate_all(run.model, run.task).errors == 0


@needs_browser
def test_the_worker_counts_as_python_does(browser: Any, report: Path) -> None:
    closed = ["decoder.0.cross.3", "encoder.0.self.2"]
    visited = Visit(browser, report, "#off=" + ",".join(closed))
    visited.page.wait_for_selector("#accuracy:has-text('of 300 fresh sums right')", timeout=60_000)
    shown = visited.page.locator("#accuracy").inner_text()
    pairs = visited.page.evaluate("headway.freshSums(300, 1)")
    visited.close()
    run = half_adder()
    source = torch.tensor([[*map(int, f"{a:03}"), 10, *map(int, f"{b:03}")] for a, b in pairs])
    right = torch.tensor([[*map(int, f"{a + b:04}")] for a, b in pairs])
    gates = closed_gates(run.model, [Head.parse(name) for name in closed])
    with torch.no_grad():
        count = int((run.model(source, right, gates).argmax(-1) == right).all(1).sum())
    assert shown.startswith(f"{count} of 300 fresh sums right")


@needs_browser
def test_what_is_missing_and_what_is_hostile_is_shown_as_text(browser: Any, folder: Path, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=alert(1)>'\"🙂" + "x" * 10_000
    content = content_of(find([folder]))
    content |= {
        "title": bad,
        "heads": None,
        "lengths": [],
        "missing": [{"what": "heads", "command": f"headway heads {bad}"}],
    }
    content["findings"] = [{"text": bad, "details": {bad: bad, "command": bad}, "withheld": bad, "more": False}]
    content["made"]["runs"] = [{"run": bad}]
    content["files"] = [{"name": bad, "data": base64.b64encode(gzip.compress(bad.encode())).decode()}]
    content["headlines"] = [{"question": bad, "answer": bad, "rest": bad}]
    (tmp_path / "hostile.html").write_text(page_of(content))
    assert "<img" not in markdown_of(content)
    visited = Visit(browser, tmp_path / "hostile.html", viewport={"width": 800, "height": 600})
    assert visited.page.locator("img").count() == 0
    assert "</script><img" in visited.page.locator(".findings").inner_text()
    assert visited.page.locator(".findings s").count() == 1
    assert "headway heads" in visited.page.locator("#heads .missing").inner_text()
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 800
    visited.close()


def test_folders_without_anything_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run and no study" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("npm") is None, reason="NO NPM: the page's script is not built again")
def test_the_script_of_the_page_is_what_its_source_builds(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "web", tmp_path / "web", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "src" / "headway" / "report" / "page").mkdir(parents=True)
    for command in ("npm ci --no-audit --no-fund", "npm run check", "npm run build"):
        done = subprocess.run(command.split(), cwd=tmp_path / "web", capture_output=True, text=True, env={**os.environ})
        assert done.returncode == 0, done.stderr
    for name in ("page.js", "page.css"):
        built = (tmp_path / "src" / "headway" / "report" / "page" / name).read_bytes()
        assert built == (ROOT / "src" / "headway" / "report" / "page" / name).read_bytes(), f"{name}: run make page"
