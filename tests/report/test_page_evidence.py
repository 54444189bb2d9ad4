"""The figures of the page show the numbers of the files: in a browser, saved and printed."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from visiting import Visit, needs_browser, save_file, type_sum

from headway.attach.opening import open_subject
from headway.causes.maps import worked_examples
from headway.report.page import build_content, find_sources, render_page

"""The margins and the size of a chart, in SVG units."""
PIXEL = """([label, x, y]) => {
  const canvas = [...document.querySelectorAll("canvas")].find((each) => each.getAttribute("aria-label") === label);
  return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
}"""
HAS_COLOUR = """([label, colour]) => {
  const canvas = [...document.querySelectorAll("canvas")].find((each) => each.getAttribute("aria-label") === label);
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < data.length; i += 4) if (colour.every((each, c) => Math.abs(data[i + c] - each) < 4)) return true;
  return false;
}"""
FOLLOWED = [0, 122, 90]


@pytest.fixture(scope="module")
def heads(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "adder" / "heads.json").read_text())


@needs_browser
def test_the_evidence_about_heads_is_drawn(visit: Any, folder: Path) -> None:
    heads = visit.locator("#heads")
    for label in (
        "errors by kind of problem without each head",
        "pairs of heads",
        "what each head carries to the output",
    ):
        assert heads.get_by_role("group", name=label, exact=True).locator(".row").count() == 24
    drawing = heads.get_by_role(
        "group", name="from each difference, through the heads that carry it, to the answer digit"
    )
    assert drawing.locator(".flow").count() >= 8
    assert "answer digit 2" in drawing.text_content()
    every_head = visit.locator("#heads .averages")
    assert every_head.locator("canvas").count() == 24
    assert heads.locator(".several canvas").count() == 4 * 12  # the costliest heads on twelve problems
    assert "aligned 100%" in every_head.inner_text()
    members = json.loads((folder / "heads.json").read_text())["members"]
    counts = sorted(member["together"] for member in members)
    assert f"can go together: median {counts[9]}, from {counts[0]} to {counts[-1]}." in heads.inner_text()
    left = sorted(member["alone_removed_together"] for member in members)
    assert f"all of those removed: median {left[9]:.3f}, from {left[0]:.3f} to {left[-1]:.3f}." in heads.inner_text()
    assert "Over 20 seeds" in heads.inner_text()
    assert "on a smaller sample of problems" in heads.inner_text()
    assert heads.get_by_role("img", name="how many heads, over the seeds").locator("rect").count() >= 4
    heads.get_by_role("group", name="pairs of heads", exact=True).locator(".row").nth(3).locator("text").click()
    assert "encoder self L0H3" in visit.locator(".enlarged h3").inner_text()


@needs_browser
def test_the_evidence_about_length_is_drawn(visit: Any) -> None:
    length = visit.locator("#length")
    assert length.locator(".study svg polyline.line").count() == 4 * 3  # four probes, three encodings
    assert length.locator(".study > details:not(.evidence) > summary").inner_text() == "2 more probes: descending, ties"
    assert length.locator(".study details svg polyline.line").count() == 2 * 3
    board = length.get_by_role("region", name="reach, sortedness").locator("tbody tr").all_inner_texts()
    assert "default\tsinusoidal\t16\t16\t16, 16, 16, 16, 16\tfailing\tone-inversion, ties" in board
    assert board[2].startswith("default\tnone\t–")  # what did not learn comes last
    made = visit.locator("#try").get_by_role("img", name="accuracy while training, adder")
    assert made.locator("polyline.line").count() == 1  # a log of an older version: training batches only
    failures = length.get_by_role("region", name="why each fails, sortedness").inner_text()
    assert "unseen positions (5 of 5)" in failures
    assert "blind to order (5 of 5)" in failures
    assert length.locator(".plane canvas").count() == 4  # two tables, before and after


@needs_browser
def test_cells_of_the_grids_are_the_numbers(visit: Any, heads: dict[str, Any]) -> None:
    def cell(label: str, row: int, said: str) -> float:
        grid = visit.get_by_role("group", name=label, exact=True)
        shape = grid.locator(".row").nth(row).locator("rect:has(title)").filter(has_text=said)
        assert shape.locator("title").text_content() == said
        return float(shape.get_attribute("fill-opacity"))

    names = [row["head"] for row in heads["heads"]]
    needed = names.index("encoder.0.self.2")
    kind = heads["heads"][needed]["by_stratum"][3]
    said = f"without encoder self L0H2, {kind['stratum']}: {kind['errors']} of {kind['examples']} wrong"
    shown = cell("errors by kind of problem without each head", needed, said)
    assert shown == pytest.approx(kind["errors"] / kind["examples"])
    assert shown > 0.3
    pair, most = heads["pairs"][0], max(abs(pair["backup"]) for pair in heads["pairs"])
    other = next(pair for pair in heads["pairs"] if 0.1 * most < pair["backup"] < 0.9 * most)
    for found in (pair, other):
        titles = [_named(name) for name in found["heads"]]
        said = f"{' and '.join(titles)}: {found['drop']:.4f} together, {found['sum_of_drops']:.4f} one by one"
        row = names.index(found["heads"][0])
        assert cell("pairs of heads", row, said) == pytest.approx(abs(found["backup"]) / most)
    table = [cell for cell in heads["roles"]["table"] if cell["part"] in names and not cell["at_answer"]]
    role = next(each for each in table if each["flips"] != "cannot" and 0.2 < (each["flips"] or 0) < 0.8)
    share = f"flips {100 * role['flips']:.1f}% of {role['pairs']} pairs"
    said = f"{_named(role['part'])}, {_difference(role['contrast'])}: {share}"
    shown = cell("what each head carries to the output", names.index(role["part"]), said)
    assert shown == pytest.approx(role["flips"])
    for none in [each for each in table if each["flips"] == "cannot"][:2]:
        said = f"{_named(none['part'])}, {_difference(none['contrast'])}: cannot flip any pair"
        assert cell("what each head carries to the output", names.index(none["part"]), said) == 0


def _named(head: str) -> str:
    stack, layer, kind, number = head.split(".")
    return f"{stack} {kind} L{layer}H{number}"


def _difference(contrast: str) -> str:
    kind, column, *swap = contrast.split()
    names = {"operand": "digits of column", "carry": "carry into column", "propagated": "carry passed on to"}
    swaps = {"source": " (source)", "prefix": " (written)"}
    return f"{names.get(kind, 'carry passed on by')} {column}{''.join(swaps[each] for each in swap)}"


def axes(chart: Any) -> tuple[float, float, float, float]:
    """Returns where the axes of a chart are drawn: its left and right end, its top, and how tall it is."""
    lowest, highest = chart.locator("line.grid").first, chart.locator("line.grid").last
    left, right, bottom = (float(lowest.get_attribute(name)) for name in ("x1", "x2", "y1"))
    top = float(highest.get_attribute("y1"))
    return left, right, top, bottom - top


def points(chart: Any, line: int) -> list[list[float]]:
    text = chart.locator("polyline.line").nth(line).get_attribute("points")
    return [[float(part) for part in point.split(",")] for point in text.split()]


@needs_browser
def test_lines_of_the_charts_are_the_numbers(visit: Any, folder: Path, heads: dict[str, Any]) -> None:
    chart = visit.get_by_role("img", name="accuracy against the number of heads removed")
    drawn = points(chart, 0)
    assert len(drawn) == 25
    right = heads["curves"][0]["accuracy"][19]
    assert 0.1 < right < 0.9
    left, ends, top, tall = axes(chart)
    assert drawn[19] == pytest.approx([left + 19 / 24 * (ends - left), top + (1 - right) * tall])
    assert float(chart.locator(".rule").get_attribute("y1")) == pytest.approx(top + 0.01 * tall)
    study = json.loads((folder / "lengths" / "lengths.json").read_text())
    rows = [row for row in study["rows"] if row["positions"] == "sinusoidal" and row["probe"] == "one-inversion"]
    lengths = sorted({row["length"] for row in rows})
    chart = visit.get_by_role("img", name="accuracy by length, sortedness, one-inversion")
    _, _, top, tall = axes(chart)
    for place, length in enumerate(lengths):
        middle = statistics.median_low(row["accuracy"] for row in rows if row["length"] == length)
        assert points(chart, 0)[place][1] == pytest.approx(top + (1 - middle) * tall)
    assert chart.locator(".legend text").all_text_contents() == ["sinusoidal", "learned", "none"]
    dashes = [line.get_attribute("stroke-dasharray") for line in chart.locator(".legend line").all()]
    assert len(set(dashes)) == 3


@needs_browser
def test_maps_are_dark_where_the_weight_is_large(visit: Any, folder: Path) -> None:
    maps = json.loads((folder / "adder" / "maps.json").read_text())["average"]["all"]["maps"]
    for site in maps[0], maps[3]:  # one is as wide as high, one is not
        cell = 112 // max(len(site["keys"]), len(site["queries"]))
        head = _named(f"{site['site']}.2")
        assert max(weight for row in site["heads"][2] for weight in row) > 0.5
        for q, k in [(q, k) for q in range(len(site["queries"])) for k in range(len(site["keys"]))]:
            place = [10 + k * cell + cell // 2, 11 + q * cell + cell // 2]
            wanted = [round(255 + (full - 255) * site["heads"][2][q][k]) for full in (0, 60, 130)]
            drawn = visit.evaluate(PIXEL, [f"average attention of {head}", *place])
            assert drawn == pytest.approx(wanted, abs=2)


@needs_browser
def test_planes_of_encodings_are_the_numbers(visit: Any, folder: Path) -> None:
    study = json.loads((folder / "lengths" / "lengths.json").read_text())
    signal = next(each for each in study["signals"] if each["positions"] == "sinusoidal")
    table = signal["after"]["table"]
    most = max(abs(value) for moment in ("before", "after") for row in signal[moment]["table"] for value in row)
    for position, feature in ((0, 1), (2, 0), (4, 0)):
        value = table[position][feature]
        full = (213, 94, 0) if value < 0 else (0, 114, 178)
        wanted = [255 + (each - 255) * abs(value) / most for each in full]
        label = "sinusoidal after training: feature by position"
        assert visit.evaluate(PIXEL, [label, position, feature]) == pytest.approx(wanted, abs=2)


@needs_browser
def test_a_weight_is_shown_on_hover_and_with_arrow_keys(visit: Any) -> None:
    subject = open_subject("pretrained:adder")
    maps = worked_examples(subject, subject.problem("457+968"), {})[0]["maps"]  # pyright: ignore
    weights = maps[0]["heads"][2]
    type_sum(visit, 457, 968)
    visit.get_by_role("button", name="all open").click()
    visit.get_by_label("enlarge encoder self L0H2", exact=True).click()
    large = visit.get_by_role("img", name="attention of encoder self L0H2, large", exact=True)
    cell = 260 // 7
    large.hover(position={"x": 17 + 4 * cell + 10, "y": 18 + 2 * cell + 10})
    shown = visit.locator(".enlarged .under").inner_text()
    assert shown.startswith("7 → 9: ")
    assert float(shown.split(": ")[1]) == pytest.approx(weights[2][4], abs=0.002)
    other = "attention of encoder self L0H0"
    assert visit.evaluate(HAS_COLOUR, [other, FOLLOWED])
    visit.locator("h1").hover()
    assert not visit.evaluate(HAS_COLOUR, [other, FOLLOWED])
    large.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        visit.keyboard.press(key)
    shown = visit.locator(".enlarged .under").inner_text()
    assert shown.startswith("7 → 4: ")  # from the first cell two down, one right, one left, and no further
    assert float(shown.split(": ")[1]) == pytest.approx(weights[2][0], abs=0.002)


@needs_browser
def test_every_figure_is_saved_as_svg_and_every_table_and_grid_as_csv(visit: Any, heads: dict[str, Any]) -> None:
    figures = visit.locator("button[aria-label^='save as SVG']")
    tables = visit.locator("button[aria-label^='save as CSV']")
    grids = visit.locator("main .grid-figure").count()
    visit.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert figures.count() == visit.locator("main svg").count() > 6
    assert tables.count() == visit.locator("main table").count() + grids > 7
    for button in figures.all():
        drawn = ElementTree.parse(save_file(visit, button)).getroot()
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert (drawn[0].get("fill"), drawn[0].get("width")) == ("#ffffff", drawn.get("width"))
        assert any("fill:rgb" in shape.get("style", "") for shape in drawn.iter())
    saved = {}
    for button in tables.all():
        rows = list(csv.reader(save_file(visit, button).read_text().splitlines()))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1
        saved[button.get_attribute("aria-label").removeprefix("save as CSV: ")] = rows
    first = saved["ranking of heads"]
    assert first[0] == ["head", "accuracy without it", "cost", "low", "high", "verdict", "pattern"]
    row = next(row for row in heads["heads"] if row["head"] == "encoder.0.self.2")
    numbers = [row["accuracy"], row["drop"], *row["interval"]]
    assert [float(cell) for cell in next(cells for cells in first if cells[0] == row["head"])[1:5]] == numbers
    assert all("," not in cell for cells in saved["runs"] for cell in cells)
    kinds = saved["errors by kind of problem without each head"]
    assert len(kinds) == 25
    share = row["by_stratum"][3]["errors"] / row["by_stratum"][3]["examples"]
    assert float(kinds[3][4]) == pytest.approx(share)


@needs_browser
def test_a_figure_saved_in_dark_mode_is_light_and_has_a_legend(browser: Any, report: Path) -> None:
    visited = Visit(browser, report, color_scheme="dark")
    label = "save as SVG: accuracy against the number of heads removed"
    drawn = ElementTree.parse(save_file(visited.page, visited.page.get_by_label(label))).getroot()
    texts = {"".join(shape.itertext()): shape.get("style", "") for shape in drawn.iter() if shape.tag.endswith("text")}
    assert {"greedy", "by cost alone", "by gradient", "random 0"} <= texts.keys()
    assert "fill:rgb(28, 31, 38)" in texts["greedy"]
    mark = next(style for text, style in texts.items() if text.startswith("13 that can go together"))
    assert "fill:rgb(28, 31, 38)" in mark
    lines = [shape.get("style", "") for shape in drawn.iter() if shape.tag.endswith("polyline")]
    assert "stroke:rgb(0, 114, 178)" in lines[0]
    assert "stroke-dasharray:6px, 3px" in lines[1]
    assert visited.page.evaluate("document.documentElement.dataset.theme") == "dark"
    visited.close()


@needs_browser
def test_in_print_the_page_is_light_and_unfolded(browser: Any, report: Path, tmp_path: Path) -> None:
    visited = Visit(browser, report, color_scheme="dark", viewport={"width": 1200, "height": 900})
    page = visited.page
    page.locator(".headline summary").first.click()
    place = ["average attention of encoder self L0H0", 10 + 84 // 7 * 6 + 2, 11 + 2]
    dark = page.evaluate(PIXEL, place)
    page.emulate_media(media="print")
    printed = f"(place) => {{ window.dispatchEvent(new Event('beforeprint')); return ({PIXEL})(place); }}"
    light = page.evaluate(printed, place)  # in the same breath: paper does not wait
    assert page.locator("nav").is_hidden()
    assert page.locator(".takes").first.is_hidden()
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert min(light) > 128 > max(dark)
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 1
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.pdf(path=str(tmp_path / "page.pdf"))
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    visited.close()


@needs_browser
def test_on_a_phone_nothing_is_cut_off_or_covered(browser: Any, report: Path) -> None:
    visited = Visit(browser, report, viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = visited.page
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(24, 27, 33)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    chart = page.get_by_role("img", name="accuracy against the number of heads removed")
    column = page.locator("main").bounding_box()["width"]
    assert 0.85 * column < chart.bounding_box()["width"] <= column  # its text keeps its size: nothing to scroll
    for figure in page.locator(".chart, .table").all():
        buttons, drawn = figure.locator(".takes").bounding_box(), figure.locator(".scroll").bounding_box()
        if buttons is not None:  # not folded away
            assert buttons["y"] + buttons["height"] <= drawn["y"] + 0.5
    page.get_by_label("enlarge decoder cross L1H3").click()
    at = "[document.querySelector('.enlarged').getBoundingClientRect().y]"
    page.wait_for_function(f"{at}.every((y) => -1 <= y && y < 740)")
    assert page.locator(".enlarged").bounding_box()["y"] < page.locator(".sites").bounding_box()["y"]
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    visited.close()


@needs_browser
def test_a_study_by_loss_is_shown_in_loss(browser: Any, folder: Path, heads: dict[str, Any], tmp_path: Path) -> None:
    """Uses the files that `headway heads` writes for a study by KL."""
    content, study = build_content(find_sources([folder])), json.loads(json.dumps(heads))
    study |= {"metric": "kl", "interval_of": "loss_increase", "max_loss_increase": 0.05, "counted": "KL divergence",
              "withheld": [], "ablation": "mean"}  # fmt: skip
    for place, row in enumerate(study["heads"]):
        row |= {"loss_increase": 0.1 * place, "interval": [0.1 * place - 0.02, 0.1 * place + 0.02]}
    study["heads"][3] |= {"loss_increase": None, "interval": [None, None]}
    study["alone_removed_together"]["loss_increase"], study["together"]["loss_increase"] = 1.25, 0.031
    for curve in study["curves"]:
        curve["loss"] = [0.5 + 0.1 * place for place in range(25)]
    (tmp_path / "page.html").write_text(render_page({**content, "heads": study}))
    visited = Visit(browser, tmp_path / "page.html", "#head=encoder.0.self.2")
    page = visited.page
    first = page.locator("#ranking tbody tr").first.inner_text()
    assert "decoder cross L1H3" in first
    assert "2.3000 (2.2800 to 2.3200)" in first
    assert "right" not in page.locator("#ranking thead").inner_text()
    assert "raises the KL divergence by less than 0.05" in page.locator("#heads").inner_text()
    assert "Alone it raises the KL divergence by 0.2000" in page.locator(".enlarged").inner_text()
    chart = page.get_by_role("img", name="KL divergence against the number of heads removed")
    assert chart.locator("text").all_text_contents()[:4] == ["0", "1", "2", "3"]
    _, _, top, tall = axes(chart)
    assert points(chart, 0)[10][1] == pytest.approx(top + (1 - 1.5 / 3) * tall)
    assert float(chart.locator(".rule").get_attribute("y1")) == pytest.approx(top + (1 - 0.55 / 3) * tall)
    assert "13 that can go together: 0.5310" in chart.text_content()
    assert "the study replaced its output by its mean" in page.locator("#try .note").inner_text()
    visited.close()
