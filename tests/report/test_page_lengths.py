"""The models that a reader tries at any length compute in the page what they compute in PyTorch, and can be tried."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from visiting import Visit, needs_browser

import headway
from headway.cli import main
from headway.report.page.models import pack_length_models
from headway.subjects.own import open_one
from headway.tasks import Problems
from headway.tasks.random import TESTING, Dice
from headway.training.defaults import QUICK_CLASSIFIER

LAB = ("learned", "sinusoidal", "none")
LENGTHS = (2, 5, 8, 12, 16, 20, 24, 32, 48, 64)
DIGITS = (1, 2, 3, 5, 8, 9, 12, 16, 24, 40)
CLOSE = 1e-3
"""Logits nearer to each other than this are a near-tie: float32 itself does not decide them."""

pytestmark = needs_browser


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder with a short-trained classifier of each encoding of the lab, and its page."""
    home = tmp_path_factory.mktemp("lengths") / "tried"
    for positions in LAB:
        headway.train("sortedness", positions=positions, steps=60, batch=16, d_model=32, heads=4, d_ff=128, layers=1,
                      out=home / positions)  # fmt: skip
    assert main(["report", str(home), "--json"]) == 0
    return home


@pytest.fixture(scope="module")
def page(browser: Any, tried: Path) -> Iterator[Any]:
    visited = Visit(browser, tried / "report.html", viewport={"width": 1280, "height": 900})
    yield visited.page
    visited.close()


def run_of(tried: Path, name: str) -> Any:
    return open_one("pretrained:certified-sorter" if name == "certified sorter" else tried / name)


def draw(run: Any, rows: int, probe: str, length: int) -> Problems:
    return run.task.draw(Dice.of(TESTING, 0, length, rows, "cpu"), probe, length)


def compare_classifier(page: Any, run: Any, name: str, problems: int) -> dict[str, float]:
    """Compares logits and verdicts on sequences of the probes `default` and `one-inversion` of every length."""
    largest, differ, close, each = 0.0, 0, 0, problems // (2 * len(LENGTHS))
    for length in LENGTHS:
        for probe in ("default", "one-inversion"):
            source = draw(run, each, probe, length).source
            asked = "([name, rows]) => rows.map((row) => headway.classify(name, row))"
            found = torch.tensor(page.evaluate(asked, [name, source.tolist()]))
            with torch.no_grad():
                logits = run.model.eval()(source)[:, 0]
            largest = max(largest, float((found - logits).abs().max()))
            sure = (logits[:, 1] - logits[:, 0]).abs() > CLOSE
            differ += int(((found[:, 1] > found[:, 0]) != (logits[:, 1] > logits[:, 0]))[sure].sum())
            close += int((~sure).sum())
    return {"checked": 2 * each * len(LENGTHS), "largest": largest, "differ": differ, "close": close}


def compare_adder(page: Any, problems: int) -> dict[str, float]:
    """Compares the logits of every digit, given the digits that the page wrote, and counts wrong sums."""
    run, largest, wrong, each = open_one("pretrained:certified-adder"), 0.0, 0, problems // (2 * len(DIGITS))
    for digits in DIGITS:
        for probe in ("default", "carry-chain"):
            drawn = draw(run, each, probe, digits)
            pairs = [[row[:digits], row[digits + 1 :]] for row in drawn.source.tolist()]
            found = page.evaluate("pairs => pairs.map(([a, b]) => headway.add(a, b))", pairs)
            written = torch.tensor([row["digits"] for row in found])
            with torch.no_grad():
                logits = run.model.eval()(drawn.source, written)
            largest = max(largest, float((logits - torch.tensor([row["logits"] for row in found])).abs().max()))
            wrong += int((written != drawn.answer).any(1).sum())
    return {"checked": 2 * each * len(DIGITS), "largest": largest, "wrong": wrong}


@pytest.mark.parametrize("positions", LAB)
def test_the_classifiers_of_the_lab_are_small_enough_to_run_in_its_page(positions: str, tmp_path: Path) -> None:
    size = replace(QUICK_CLASSIFIER, positions=positions, pooling="mean", steps=1).to_dict()
    run = headway.train("sortedness", **size, batch=2, out=tmp_path / "run")
    packed = pack_length_models([run.folder], str, about_lengths=True)
    assert packed is not None
    assert [each["name"] for each in packed["classifiers"]] == [positions]


@pytest.mark.parametrize("name", [*LAB, "certified sorter"])
def test_a_classifier_in_the_page_computes_what_pytorch_computes(page: Any, tried: Path, name: str) -> None:
    found = compare_classifier(page, run_of(tried, name), name, 200)
    assert found["largest"] < 2e-4
    assert found["differ"] == 0


def test_the_certified_adder_in_the_page_computes_what_pytorch_computes(page: Any) -> None:
    found = compare_adder(page, 200)
    assert found["largest"] < 2e-4
    assert found["wrong"] == 0


def test_the_smallest_adder_in_the_page_computes_what_pytorch_computes(page: Any) -> None:
    run = open_one("pretrained:smallest-adder")
    for digits in DIGITS:
        drawn = draw(run, 10, "carry-heavy", digits)
        pairs = [[row[:digits], row[digits + 1 :]] for row in drawn.source.tolist()]
        found = page.evaluate("pairs => pairs.map(([a, b]) => headway.addSmallest(a, b))", pairs)
        assert [[step["digit"] for step in row] for row in found] == drawn.answer.tolist()
        with torch.no_grad():
            logits = run.model.eval()(drawn.source, drawn.answer)
        shown = torch.tensor([[step["logits"] for step in row] for row in found])
        assert float((logits - shown).abs().max()) < 2e-4


def test_the_smallest_adder_is_shown_whole(page: Any) -> None:
    model = open_one("pretrained:smallest-adder").model
    shown = [float(text.replace("−", "-")) for text in page.locator("[data-number]").all_inner_texts()]
    trained = torch.cat([weight.detach().flatten() for weight in model.parameters()]).tolist()
    assert sorted(shown) == pytest.approx(sorted(trained), abs=6e-4)
    page.get_by_label("first long number").fill("58")
    page.get_by_label("second long number").fill("67")
    assert "".join(page.locator(".smallest-sum button").all_inner_texts()) == "125"
    assert page.locator("#smallest-verdict").inner_text() == "✓ all 3 digits right"
    page.locator(".smallest-sum button").nth(1).click()
    steps = page.locator(".smallest-steps").inner_text()
    assert "average of the points of 5 and 6" in steps
    assert "average of the points of 8, 7 and the written 5" in steps
    assert "the nearest digit is 2" in str(page.locator(".digit-line").get_attribute("aria-label"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LAB, "certified sorter"])
def test_twenty_thousand_sequences_have_the_same_verdict(page: Any, tried: Path, name: str) -> None:
    found = compare_classifier(page, run_of(tried, name), name, 20_000)
    print(name, found)
    assert found["checked"] == 20_000
    assert found["largest"] < 2e-4
    assert found["differ"] == 0


@pytest.mark.slow
def test_twenty_thousand_sums_are_right_and_have_the_same_logits(page: Any) -> None:
    found = compare_adder(page, 20_000)
    print("certified adder", found)
    assert found["checked"] == 20_000
    assert found["largest"] < 2e-4
    assert found["wrong"] == 0


@pytest.mark.parametrize(
    ("positions", "pooling"), [("rope", "max"), ("alibi", "mean"), ("window+behind=2+ahead=1", "violation")]
)
def test_other_encodings_and_poolings_run_in_the_page(
    browser: Any, tmp_path: Path, positions: str, pooling: Literal["mean", "max", "violation"]
) -> None:
    run = headway.train("sortedness", positions=positions, pooling=pooling, steps=2, batch=8, d_model=32, heads=4,
                        d_ff=32, layers=2, out=tmp_path / "run")  # fmt: skip
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    visited = Visit(browser, tmp_path / "page.html")
    found = compare_classifier(visited.page, open_one(run.path), positions, 40)
    visited.close()
    assert found["largest"] < 2e-4


@pytest.mark.slow
def test_the_strip_counts_what_python_counts(browser: Any, tried: Path) -> None:
    visited = Visit(browser, tried / "report.html")
    visited.page.locator("#strip").scroll_into_view_if_needed()
    visited.page.wait_for_selector("#strip[data-done=yes]")
    said = visited.page.locator("#strip canvas").all()[-1].get_attribute("aria-label")
    pairs = visited.page.evaluate("[2, 3, 17, 64, 128].flatMap((length) => headway.stripPair(length, 100, 3))")
    visited.close()
    assert said == "answers of certified sorter at every length: every answer right up to 128"
    for ordered, swapped in zip(pairs[::2], pairs[1::2], strict=True):
        assert ordered == sorted(ordered)
        assert swapped != ordered
        assert sorted(swapped) == ordered


def test_a_swap_by_keyboard_changes_the_answer(browser: Any, tried: Path) -> None:
    visited = Visit(browser, tried / "report.html")
    page, card = visited.page, visited.page.locator("[data-model='certified sorter']")
    assert "says sorted" in card.inner_text()
    page.get_by_role("slider", name="Length").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".element").count() == 17
    page.locator(".element[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    assert "is picked" in page.locator("#truth").inner_text()
    page.keyboard.press("End")
    page.keyboard.press("Space")
    assert "says not sorted" in card.inner_text()
    assert "✓" in card.inner_text()
    assert "is smaller than" in page.locator("#truth").inner_text()
    assert page.evaluate("document.activeElement.className").startswith("element")
    page.locator("#sort-again").press("Enter")
    assert "says sorted" in card.inner_text()
    visited.close()


def test_the_certified_adder_writes_a_sum_of_forty_digits(page: Any) -> None:
    page.get_by_label("first long number").fill("9" * 40)
    page.get_by_label("second long number").fill("1")
    assert "".join(page.locator(".written button").all_inner_texts()) == "1" + "0" * 40
    assert page.locator("#sum-verdict").inner_text() == "✓ all 41 digits right"
    page.get_by_label("first long number").fill("12x")
    assert page.locator(".try-sum [role=alert]").is_visible()
    page.get_by_label("first long number").fill("7")
    assert "".join(page.locator(".written button").all_inner_texts()) == "08"
    page.locator(".written button[tabindex='0']").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".written button[aria-pressed=true]").inner_text() == "0"


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(browser: Any, tried: Path, width: int, scheme: str) -> None:
    visited = Visit(browser, tried / "report.html", viewport={"width": width, "height": 800}, color_scheme=scheme)
    for length in (2, 16, 128):
        visited.page.get_by_label("length as a number").fill(str(length))
        visited.page.get_by_label("length as a number").press("Enter")
        assert visited.page.locator(".element").count() == length
        for card in visited.page.locator(".opinion").all():
            card.click()
            assert visited.page.locator(".heads canvas").count() in (4, 8)
            assert visited.page.evaluate("document.documentElement.scrollWidth") <= width
    visited.close()


def test_a_classifier_that_ships_is_not_packed_twice(browser: Any, tmp_path: Path) -> None:
    shutil.copytree(open_one("pretrained:certified-sorter").path, tmp_path / "sorter")
    assert main(["report", str(tmp_path), "--json"]) == 0
    visited = Visit(browser, tmp_path / "report.html")
    names = visited.page.locator(".opinion").evaluate_all("cards => cards.map((card) => card.dataset.model)")
    visited.close()
    assert names == ["certified sorter"]


def test_a_page_without_lengths_has_no_such_section(browser: Any, tmp_path: Path) -> None:
    shutil.copytree(open_one("pretrained:adder").path, tmp_path / "adder")
    assert main(["report", str(tmp_path), "--json"]) == 0
    visited = Visit(browser, tmp_path / "report.html")
    assert visited.page.locator("#try-length").count() == 0
    visited.close()


def test_the_page_of_a_lab_is_under_six_megabytes(report: Path) -> None:
    assert report.stat().st_size < 6_000_000
