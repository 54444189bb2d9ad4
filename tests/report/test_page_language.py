"""A length study of a language model on the page: what it says, what a reader can do, and what is refused."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from visiting import ROOT, Visit, needs_browser, save_file

from headway.cli import main, parse
from headway.commands import Lengths
from headway.report.page.language import why_not

LENGTHS, DEPTHS = (64, 128, 256), (0.0, 0.5, 1.0)
CURES = {"none": (0.95, 0.75, 0.1), "ntk": (0.95, 0.8, 0.3), "yarn": (0.95, 0.9, 0.6), "log-length": (0.95, None, None)}
CONFIG = "model = AutoModelForCausalLM.from_pretrained('rotary', rope_parameters={'factor': 4.0})"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def bounds(share: float, half: float = 0.04) -> list[float]:
    return [round(max(0.0, share - half), 4), round(min(1.0, share + half), 4)]


def row(task: str, length: int, cure: str, accuracy: float | None) -> dict[str, Any]:
    """Makes a cell, whose facts are found better at the beginning of the context than at its end."""
    shares = [] if accuracy is None else [min(1.0, accuracy + 0.05), accuracy, max(0.0, accuracy - 0.05)]
    by_depth = [
        {"depth": depth, "examples": 64, "accuracy": share, "interval": bounds(share, 0.1)}
        for depth, share in zip(DEPTHS, shares, strict=False)
    ]
    return {
        "task": task, "length": length, "cure": cure, "examples": 192, "chance": 0.1, "constant": False,
        "accuracy": accuracy, "interval": None if accuracy is None else bounds(accuracy), "by_depth": by_depth,
        "cannot_run": "RuntimeError: no such thing" if accuracy is None else None,
    }  # fmt: skip


def cause(name: str, cure: str | None, established: bool, **more: Any) -> dict[str, Any]:
    usual = {"task": "repeat", "length": 256, "before": 0.1, "after": 0.6, "gain": [0.4, 0.6],
             "sham": "interpolation-in-range", "sham_accuracy": 0.04, "exceeds_sham": [0.46, 0.65],
             "evidence": "5 of 8 pairs turn further"}  # fmt: skip
    return {"cause": name, "cure": cure, "established": established, **usual, **more}


def make_study(**changes: Any) -> dict[str, Any]:
    """Makes the file of a study: one task that recalls 64 tokens, and one that was not learned."""
    rows = [
        row("repeat", length, cure, share)
        for cure, shares in CURES.items()
        for length, share in zip(LENGTHS, shares, strict=True)
        if cure == "none" or length > 64
    ]
    rows += [row("key-value", length, "none", share) for length, share in zip(LENGTHS, (0.7, 0.4, 0.1), strict=True)]
    cures = [
        {"task": "repeat", "length": length, "cure": cure, "gain": None if cure == "none" else gain, "in_range": 0.8,
         "in_range_gain": [-0.3, -0.1] if cure == "yarn" else None, "config": ""}
        for length, gain in ((128, [-0.1, 0.2]), (256, [0.1, 0.3]))
        for cure in CURES
    ]  # fmt: skip
    failed = {"after": None, "gain": None, "sham": "temperature", "sham_accuracy": None, "exceeds_sham": None}
    unlearned = {**failed, "task": "key-value", "length": 64, "before": 0.7, "sham": None, "evidence": ""}
    edges = (1, 16, 32, 64, 128, 256)
    losses = (2.0, 1.7, 1.6, 1.6, 2.1)
    bands = [
        {"first": first, "last": last, "loss": loss, "interval": [loss - 0.1, loss + 0.1]}
        for first, last, loss in zip(edges[:-1], edges[1:], losses, strict=True)
    ]
    return {
        "schema": "headway.lengths-of-language/1", "subject": "rotary", "asked": "models/rotary", "text": "corpus.txt",
        "family": "LlamaForCausalLM", "trained": 64, "trained_from": "config", "lengths": list(LENGTHS),
        "depths": list(DEPTHS), "tasks": ["repeat", "key-value"], "seed": 0, "share": 0.9, "rows": rows,
        "effective": [
            *({"task": "repeat", "cure": cure, "learned": True, "length": 64} for cure in CURES),
            {"task": "key-value", "cure": "none", "learned": False, "length": None},
        ],
        "cures": cures,
        "choices": [
            {"length": 128, "cure": "none", "sentence": "At 128 tokens no cure is shown to help.", "config": ""},
            {"length": 256, "cure": "yarn", "sentence": "At 256 tokens use yarn: repeat 0.60.", "config": CONFIG},
        ],
        "causes": [
            cause("dispersion", "log-length", False, **failed),
            cause("untrained angles", "yarn", True),
            cause("not learned", None, True, **unlearned),
        ],
        "loss": {"length": 256, "windows": 16, "rises_at": 128, "bands": bands},
        "findings": ["rotary, repeat: effective length 64.", "What stops repeat: untrained angles."], "withheld": [],
        **changes,
    }  # fmt: skip


def write(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lengths.json").write_text(json.dumps(make_study(**changes)))
    return folder


def report_of(folder: Path, **changes: Any) -> Path:
    write(folder, **changes)
    assert main(["report", str(folder), "--json"]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_of(tmp_path_factory.mktemp("language") / "study")


def test_the_words_of_a_study_say_how_far_it_recalls_and_what_stops_it(shown: Path) -> None:
    words = shown.with_suffix(".md").read_text()
    assert "On repeat it recalls from up to 64 tokens, its training length; what stops it: untrained angles." in words
    assert "Effective length: repeat 64, key-value not learned. At 256 tokens use yarn: repeat 0.60." in words
    assert "- What stops repeat: untrained angles." in words
    assert "| yarn | 64 | – | 0.90 (0.86 to 0.94) | 0.60 (0.56 to 0.64) | 0.80 | 0.80 |" in words
    assert "| log-length | 64 | – | cannot run | cannot run | 0.80 | 0.80 |" in words
    assert "| repeat | untrained angles | 256 | yarn | 0.10 | 0.04 | 0.60 | yes |" in words
    assert "| no: the model cannot run under its cure, log-length |" in words
    assert f"\n    {CONFIG}\n" in words


def test_the_command_of_a_study_is_the_one_that_repeats_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(**changes: Any) -> list[str]:
        text = report_of(tmp_path, **changes).read_text()
        (found,) = {each.split('"')[0] for each in text.split('"command": "')[1:]}
        return shlex.split(found)

    ends = ["--text", "corpus.txt", "--out", str(tmp_path)]
    usual = ["headway", "lengths", "models/rotary", "--lengths", "64,128,256", "--probes", "repeat,key-value"]
    assert command() == [*usual, "--depths", "3", *ends]
    learned = make_study()["effective"][:4]
    rows = [each for each in make_study()["rows"] if each["task"] == "repeat"]
    alone = {
        "tasks": ["repeat"],
        "effective": learned,
        "rows": rows,
        "trained_from": "given",
        "seed": 3,
        "loss": None,
        "text": None,
    }
    found = command(**alone, cures=[])
    assert found == [
        "headway", "lengths", "models/rotary", "--train-lengths", "64", "--lengths", "64,128,256", "--probes", "repeat",
        "--cures", "ntk,yarn,log-length", "--depths", "3", "--seed", "3", "--out", str(tmp_path),
    ]  # fmt: skip
    asked = parse(found[1:])
    assert isinstance(asked, Lengths)
    assert (asked.cures, asked.depths, asked.seed, asked.train_lengths) == ("ntk,yarn,log-length", 3, 3, "64")
    capsys.readouterr()


def test_why_a_cause_that_was_tried_is_not_established() -> None:
    def why(**more: Any) -> str | None:
        return why_not(cause("dispersion", "log-length", False, **more))  # pyright: ignore[reportArgumentType]

    assert why(gain=[-0.05, 0.11]) == (
        "what log-length brings is not shown to be a gain (the difference is -0.05 to +0.11)"
    )
    assert why(exceeds_sham=[-0.02, 0.1]) == (
        "log-length is not shown to bring more than its sham (the difference is -0.02 to +0.10)"
    )
    assert why(in_range_gain=0.45) == (
        "log-length brings about as much in range, where there is nothing to cure (+0.45)"
    )
    assert why(sham=None) == "there is no sham that its cure could be compared with"
    assert why(evidence="the cure for lost first tokens brings more") == "the cure for lost first tokens brings more"
    assert why_not(cause("untrained angles", "yarn", True)) is None  # pyright: ignore[reportArgumentType]


FIRST = make_study()["rows"][0]
BROKEN = {
    "rows have no accuracy": ({"rows": [{key: FIRST[key] for key in FIRST if key != "accuracy"}]}, "rows[0] has no"),
    "no rows": ({"rows": []}, "rows lack repeat at 64 tokens, untouched"),
    "twice": ({"rows": [FIRST, FIRST]}, "rows[1] is of no task or length of the study, or occurs twice"),
    "another task": ({"rows": [{**FIRST, "task": "x"}]}, "rows[0] is of no task or length"),
    "above 1": ({"rows": [{**FIRST, "accuracy": 1e300}]}, "rows[0] has an accuracy that is not from 0 to 1"),
    "not a number": ({"rows": [{**FIRST, "accuracy": float("nan")}]}, "rows[0] has neither an accuracy nor a reason"),
    "depths": ({"rows": [{**FIRST, "by_depth": FIRST["by_depth"][:1]}]}, "rows[0].by_depth is not of the depths"),
    "no lengths": ({"lengths": []}, "lengths are not whole numbers in rising order"),
    "lengths fall": ({"lengths": [256, 64]}, "lengths are not whole numbers in rising order"),
    "no tasks": ({"tasks": []}, "it has no depths, or no tasks"),
    "trained on nothing": ({"trained": 0}, "trained is 0, not a length"),
    "no effective length": ({"effective": []}, "effective lacks repeat, untouched"),
    "a cause": ({"causes": [cause("x", "yarn", True, after=-3.0)]}, "causes[0] has an accuracy that is not from 0"),
    "a cure": ({"cures": [{**make_study()["cures"][0], "in_range": 7.0}]}, "cures[0].in_range is 7.0, not from 0"),
    "a band": (
        {"loss": {"length": 9, "windows": 1, "rises_at": None,
                  "bands": [{"first": 8, "last": 2, "loss": 1.0, "interval": [1, 1]}]}},
        "loss.bands[0] does not end after it begins",
    ),
    "nothing but a name": ({"rows": 3}, "rows is 3, not a list"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_study_is_refused_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, fault = BROKEN[name]
    write(tmp_path, **changes)
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"lengths.json is not what Headway writes: {fault}" in said
    assert not (tmp_path / "report.html").exists()


@pytest.fixture(scope="module")
def page(browser: Any, shown: Path) -> Any:
    visited = Visit(browser, shown, viewport={"width": 1280, "height": 900})
    yield visited.page
    visited.close()


def table(page: Any, name: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=name, exact=True).locator("tbody tr").all()
    return [each.locator("th, td").all_inner_texts() for each in rows]


@needs_browser
def test_the_page_has_the_answer_first_and_no_empty_section(page: Any) -> None:
    assert page.locator("main > section h2").all_inner_texts() == ["Answers", "Length", "How it was made"]
    assert page.locator(".headline strong").inner_text() == (
        "On repeat it recalls from up to 64 tokens, its training length; what stops it: untrained angles"
    )
    drawn = (
        page.get_by_role("img", name="how far it recalls, rotary, repeat").locator(".legend text").all_text_contents()
    )
    assert drawn == ["untouched", "yarn", "chance", "trained on 64 tokens"]
    assert page.locator(".language .summary dd").all_inner_texts() == [
        "effective length 64 tokens",
        "not learned (accuracy 0.70 at 64 tokens, chance 0.10), so it has no effective length",
    ]
    page.locator(".language .evidence > summary").click()
    assert page.locator(".language .findings summary").all_inner_texts() == make_study()["findings"]
    assert page.locator(".missing").count() == 0


@needs_browser
def test_cures_leave_the_curves_and_come_back(page: Any) -> None:
    curves = page.get_by_role("img", name="recall by length, rotary, repeat")
    names = ["untouched", "ntk", "yarn", "chance", "trained on 64 tokens"]
    assert curves.locator(".legend text").all_text_contents() == names  # what cannot run has no curve
    assert curves.locator("polyline.bold").count() == 1
    colours = "lines => lines.map((line) => getComputedStyle(line).stroke)"
    before = curves.locator("polyline").evaluate_all(colours)
    button = page.get_by_role("group", name="Cures in the curves").get_by_role("button", name="ntk")
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert curves.locator("polyline").evaluate_all(colours) == [before[0], *before[2:]]  # the others keep their colours
    page.keyboard.press("Enter")
    assert curves.locator("polyline").evaluate_all(colours) == before
    assert page.get_by_role("img", name="recall by length, rotary, key-value").locator("polyline").count() == 2


@needs_browser
def test_the_map_of_depths_shows_the_cure_that_the_reader_selects(page: Any) -> None:
    assert table(page, "accuracy by length and depth, repeat, untouched") == [
        ["0.00", "1.00", "0.80", "0.15"],
        ["0.50", "0.95", "0.75", "0.10"],
        ["1.00", "0.90", "0.70", "0.05"],
    ]
    name = "accuracy by length and depth, repeat, {}"
    assert table(page, name.format("yarn"))[0] == ["0.00", "0.95", "0.65"]  # the one chosen at the longest length
    choices = page.get_by_role("group", name="Beside the untouched model")
    choices.get_by_role("button", name="ntk").focus()
    page.keyboard.press("Enter")
    assert table(page, name.format("ntk"))[0] == ["0.00", "0.85", "0.35"]
    assert page.get_by_role("region", name=name.format("yarn")).count() == 0
    assert page.get_by_role("region", name="accuracy by length and depth, key-value, untouched").count() == 1


CONTRAST = """cells => cells.map((cell) => {
    const light = (text) => text.match(/[0-9.]+/g).slice(0, 3).map((each) => each / 255)
        .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
        .reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0.05);
    const look = getComputedStyle(cell), [one, other] = [light(look.color), light(look.backgroundColor)];
    return Math.max(one, other) / Math.min(one, other);
})"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_numbers_of_the_map_can_be_read_on_every_colour(browser: Any, tmp_path: Path, scheme: str) -> None:
    wide = list(range(64, 64 * 22, 64))
    rows = [row("repeat", length, "none", place / 20) for place, length in enumerate(wide)]
    path = report_of(tmp_path, tasks=["repeat"], lengths=wide, rows=rows, cures=[], choices=[], causes=[], loss=None)
    visited = Visit(browser, path, color_scheme=scheme)
    contrasts = visited.page.locator("td.number.shade").evaluate_all(CONTRAST)
    assert len(contrasts) == 63
    assert min(contrasts) >= 4.5
    visited.close()


@needs_browser
def test_causes_and_cures_are_shown_with_what_they_cost(page: Any) -> None:
    cards = page.locator(".cause")
    assert cards.locator("h4").all_inner_texts() == [
        "Untrained angles established",
        "Dispersion tried, not established",
    ]
    assert cards.first.locator("dt").all_inner_texts() == [
        "untouched", "with a sham: interpolation-in-range", "with its cure: yarn",
    ]  # fmt: skip
    assert cards.first.locator("dd").all_inner_texts() == ["0.10", "0.04", "0.60"]
    assert "changes the accuracy by +0.40 to +0.60" in cards.first.inner_text()
    assert "Why not: the model cannot run under its cure, log-length." in cards.last.inner_text()
    cures = table(page, "cures by length, rotary, repeat")
    assert [line[0] for line in cures] == ["untouched", "ntk", "yarn", "log-length"]
    assert [" ".join(cell.split()) for cell in cures[2][1:]] == [
        "0.90 0.86 to 0.94 in range 0.80 ▼",
        "0.60 ▲ 0.56 to 0.64 in range 0.80 ▼",
        "64",
    ]
    assert cures[3][1:3] == ["cannot run", "cannot run"]
    assert (
        "Cannot run at 128, 256 tokens: log-length. RuntimeError: no such thing" in page.locator("#length").inner_text()
    )
    assert page.locator(".choice p").all_inner_texts() == [each["sentence"] for each in make_study()["choices"]]
    assert page.locator(".choice pre").all_inner_texts() == [CONFIG]
    saved = save_file(page, page.get_by_label("save as CSV: cures by length, rotary, repeat")).read_text().splitlines()
    assert len(saved) == 1 + 9
    assert saved[1].startswith('"untouched","64","192","0.95","0.91"')


@needs_browser
def test_the_loss_has_its_interval_and_the_place_where_it_rises(page: Any) -> None:
    drawn = page.get_by_role("img", name="loss by position, rotary")
    assert drawn.locator(".legend text").all_text_contents() == [
        "loss on the text", "trained on 64 tokens", "rises from 128 on",
    ]  # fmt: skip
    assert drawn.locator(".upright").count() == 2
    band, frame = drawn.locator(".band").bounding_box(), drawn.bounding_box()
    assert frame["y"] <= band["y"]
    assert band["y"] + band["height"] <= frame["y"] + frame["height"]


@needs_browser
@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_study_fits_the_screen(browser: Any, shown: Path, width: int, scheme: str) -> None:
    visited = Visit(browser, shown, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= width
    for figure in visited.page.locator("#length .chart, #length .table").all():
        buttons, drawn = figure.locator(".takes").bounding_box(), figure.locator(".scroll").bounding_box()
        assert buttons["y"] + buttons["height"] <= drawn["y"] + 0.5
    visited.close()


@needs_browser
def test_a_study_of_which_little_was_measured_is_shown_as_far_as_it_goes(browser: Any, tmp_path: Path) -> None:
    """Untouched it cannot run past training, no cure applies, nothing was learned, there is no text."""
    rows = [row("repeat", length, "none", None if length > 64 else 0.3) for length in LENGTHS]
    rows[0]["constant"] = True
    effective = [{"task": "repeat", "cure": "none", "learned": False, "length": None}]
    little = {"tasks": ["repeat"], "rows": rows, "effective": effective, "cures": [], "choices": [], "causes": []}
    path = report_of(tmp_path / "little", **little, loss=None)
    visited = Visit(browser, path)
    page = visited.page
    assert page.get_by_role("alert").count() == 0
    assert page.locator(".headline strong").inner_text().startswith("It has not learned to recall")
    names = page.get_by_role("img", name="recall by length, rotary, repeat").locator(".legend text").all_text_contents()
    assert names[-2:] == ["one answer to nearly all", "untouched: cannot run"]
    heads = ["Where in the context", "Accuracy by length"]
    assert [text for text in page.locator(".language h4").all_inner_texts() if text != "repeat"] == heads
    visited.close()


@needs_browser
def test_a_hostile_study_is_shown_as_text(browser: Any, tmp_path: Path) -> None:
    causes = [cause(HOSTILE, HOSTILE, False, evidence=HOSTILE)]
    choices = [{"length": 256, "cure": HOSTILE, "sentence": HOSTILE, "config": f"{HOSTILE}\r```\n# not a heading"}]
    path = report_of(
        tmp_path, subject=HOSTILE, findings=[HOSTILE], causes=causes, choices=choices, trained_from=HOSTILE
    )
    visited = Visit(browser, path)  # nothing is logged, nothing is asked for
    assert visited.page.locator("#length img[src]").count() == 0
    assert HOSTILE in visited.page.locator(".choice pre").inner_text()
    visited.close()
    words = path.with_suffix(".md").read_text()
    assert "\n# not" not in words
    assert not any("<img" in line for line in words.splitlines() if not line.startswith("    "))


@needs_browser
def test_what_is_withheld_is_struck_out(browser: Any, tmp_path: Path) -> None:
    withheld = [{"check": "learned", "reason": "its answers are not numbers."}]
    path = report_of(tmp_path, withheld=withheld)
    visited = Visit(browser, path)
    assert "Withheld: learned: its answers are not numbers." in visited.page.locator(".headline").inner_text()
    assert visited.page.locator("#length .findings s").inner_text() == "How far it recalls"
    assert visited.page.locator("#length .chart").count() == 0
    visited.close()
    assert "~~How far it recalls~~ Withheld" in path.with_suffix(".md").read_text()


@needs_browser
def test_beside_other_studies_it_is_one_more(browser: Any, tmp_path: Path) -> None:
    write(tmp_path / "language")
    (tmp_path / "plain").mkdir()
    shutil.copy(ROOT / "results" / "lengths-plain" / "lengths.json", tmp_path / "plain")
    assert main(["report", str(tmp_path), "--json"]) == 0
    visited = Visit(browser, tmp_path / "report.html")
    assert visited.page.locator(".headline strong").count() == 1
    assert "On the probe default" in visited.page.locator(".headline strong").inner_text()
    assert visited.page.locator("#length h3").first.inner_text() == "rotary, a language model"
    assert visited.page.locator(".language .findings li").count() == 2
    visited.close()
