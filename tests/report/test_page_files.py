"""What a page reads from folders: which study, which model, which commands, and what it refuses."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shlex
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from visiting import ROOT, Visit, needs_browser

import headway
from headway.cli import main, parse
from headway.report.page import Inline, build_content, find_sources, render_page
from headway.report.page.markdown import render_markdown
from headway.report.studies import HeadsFile, LabFile, LengthsFile, MapsFile, fill_defaults
from headway.runs import disk
from headway.runs.shapes import find_fault
from headway.subjects.own import open_one
from small import small_model

SHIPPED = open_one("pretrained:adder").path.parent
SMALL = small_model(decoder_layers=1, batch=8)


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    heads = json.loads((ROOT / "results" / "heads" / "heads.json").read_text())
    return {**heads, "findings": ["One at a time, 19.", "Together, 13."], "withheld": []}


@pytest.fixture
def home(tmp_path: Path, study: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes an adder with its study, in a folder named by a relative path."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SHIPPED / "adder", tmp_path / "mine" / "adder")
    disk.write_json(tmp_path / "mine" / "adder" / "heads.json", study)
    return Path("mine")


def small(path: Path, **wanted: Any) -> None:
    headway.train("addition", out=path, steps=2, **{**SMALL, **wanted})


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_files_written_by_headway_match_their_schema(study: dict[str, Any]) -> None:
    files = {
        HeadsFile: study,
        MapsFile: json.loads((ROOT / "results" / "heads" / "maps.json").read_text()),
        LengthsFile: json.loads((ROOT / "results" / "lengths-open" / "lengths.json").read_text()),
        LabFile: {"runs": []},
    }
    for kind, content in files.items():
        assert find_fault(fill_defaults(content, kind), kind) is None
    altered = {"heads": [{"head": 3}], "baseline": None, "pairs": [{"heads": ["a"]}]}
    faults = [find_fault({**fill_defaults(study, HeadsFile), key: value}, HeadsFile) for key, value in altered.items()]
    assert faults == [
        "heads[0].head is 3, not text",
        "baseline is nothing, not a number",
        "pairs[0].heads is ['a'], not a list of 2",
    ]


@pytest.mark.parametrize("name", ["heads.json", "maps.json", "certificate.json", "environment.json", "lengths.json"])
def test_malformed_files_give_a_one_line_error(home: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    for text in (b"[]", b"null", b"3", b"{}", b"{", b"\x80"):
        (home / "adder" / name).write_bytes(text)
        if text == b"{}" and name in ("maps.json", "environment.json", "lengths.json"):
            assert find_sources([home]).runs  # what they hold may be missing
        else:
            assert name in refused(capsys, "mine")


def test_a_malformed_lab_gives_a_one_line_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("lab.json", "lengths.json"):
        for text in ("[]", "null", "3", "{}", '{"runs": [3], "rows": 3}'):
            (home / name).write_text(text)
            assert name in refused(capsys, "mine")
        (home / name).unlink()
    (home / "heads.json").write_text('{"members": [{"subject": "x"}]}')
    assert "members[0]" in refused(capsys, "mine")


def test_truncated_weights_are_not_put_into_a_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = home / "adder" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    assert "model.safetensors is truncated or altered" in refused(capsys, "mine")


@needs_browser
def test_nan_does_not_prevent_a_page(browser: Any, home: Path, study: dict[str, Any], tmp_path: Path) -> None:
    broken = json.loads(json.dumps(study))
    broken["heads"][0]["loss_increase"] = float("nan")
    broken["roles"]["mean_explained"] = float("inf")
    (home / "adder" / "heads.json").write_text(json.dumps(broken))
    assert main(["report", "mine", "--json"]) == 0
    visited = Visit(browser, tmp_path / "mine" / "report.html")
    visited.page.locator("#ranking .fold button").click()
    assert visited.page.locator("#ranking tbody tr").count() == 24 + 1
    visited.close()
    assert "NaN" not in render_page(Inline({"heads": broken}).content).split('id="content"')[1].split("</script>")[0]


def test_names_that_are_not_valid_unicode_are_shown_as_far_as_possible(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = os.fsdecode(b"caf\xe9")
    os.rename("mine", odd)
    assert main(["report", odd, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] > 0
    assert main(["report", odd]) == 0
    assert (Path(odd) / "report.md").read_text().startswith("# Headway: caf?")


def test_the_model_in_the_page_is_that_of_the_study(home: Path, study: dict[str, Any]) -> None:
    small(home / "aaa")  # would come first
    content = build_content(find_sources([home]))
    assert content["model"]["run"] == "adder"
    assert content["studies"] == ["adder"]
    disk.write_json(home / "aaa" / "heads.json", {**study, "subject": "another"})
    assert build_content(find_sources([home]))["heads"]["subject"] == "another"
    assert build_content(find_sources([home]))["model"]["run"] == "aaa"
    (home / "aaa" / "heads.json").unlink()
    (home / "adder" / "heads.json").unlink()
    content = build_content(find_sources([home]))  # no study: any model, and nothing about its heads
    assert (content["model"]["run"], content["heads"]) == ("aaa", None)


def test_a_study_of_a_model_that_cannot_run_in_a_page_has_no_model(home: Path, study: dict[str, Any]) -> None:
    (home / "adder" / "heads.json").unlink()
    disk.write_json(home / "elsewhere" / "heads.json", study)
    content = build_content(find_sources([home]))
    assert content["model"] is None
    command = f"headway heads SUBJECT --out {home / 'elsewhere'}"
    assert content["findings"][0]["details"]["command"] == command
    disk.write_json(home / "adder" / "heads.json", {**study, "subject": "of the page"})
    content = build_content(find_sources([home]))  # of two, the one whose model can run
    assert content["model"]["run"] == "adder"
    assert content["studies"] == ["adder", "elsewhere"]


@needs_browser
def test_of_several_studies_the_page_says_which_it_shows(
    browser: Any, home: Path, study: dict[str, Any], tmp_path: Path
) -> None:
    disk.write_json(home / "elsewhere" / "heads.json", study)
    assert main(["report", "mine", "--json"]) == 0
    visited = Visit(browser, tmp_path / "mine" / "report.html")
    assert "The trained adder adder, inside" in visited.page.locator("#try .studied").inner_text()
    shown = visited.page.locator("#heads .studied").inner_text()
    assert shown.startswith("Studied: adder (addition-learned-seed0-429f3ca7). 1 more study in the folders is not")
    assert "elsewhere" in shown
    visited.close()


@needs_browser
@pytest.mark.parametrize("digits", [1, 2, 5])
def test_adders_of_any_width_open_on_a_sum(browser: Any, tmp_path: Path, digits: int) -> None:
    small(tmp_path / "run", options={"digits": digits})
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    visited = Visit(browser, tmp_path / "run" / "report.html")
    page = visited.page
    assert page.get_by_role("alert").count() == 0
    assert page.locator(".digit").count() == digits + 1
    assert page.get_by_label("first number").input_value() == "457"[-digits:]
    page.get_by_label("first number").fill("9" * digits)
    wide = "(input) => [input.scrollWidth, input.clientWidth]"
    needed, there = page.get_by_label("first number").evaluate(wide)
    assert needed <= there
    assert page.locator("#try .presets button").all_inner_texts() == ["all open"]
    assert page.locator("#answers .missing").inner_text() == "Missing: heads, lengths."
    assert page.locator("#heads .missing code").inner_text() == f"headway heads {tmp_path / 'run'}"
    visited.close()


def test_sums_too_large_for_a_browser_are_not_offered(tmp_path: Path) -> None:
    small(tmp_path / "run", options={"digits": 16})
    assert build_content(find_sources([tmp_path]))["model"] is None


@needs_browser
def test_a_withheld_study_strikes_out_the_question(
    browser: Any, home: Path, study: dict[str, Any], tmp_path: Path
) -> None:
    gone = dict.fromkeys(("alone", "alone_removed_together", "together", "optimum", "roles"))
    reason = "right on 0.2 of its problems."
    withheld = {
        "findings": [f"No finding is told: learned: {reason}"],
        "withheld": [{"check": "learned", "reason": reason}],
    }
    disk.write_json(home / "adder" / "heads.json", {**study, **gone, **withheld})
    assert main(["report", "mine", "--json"]) == 0
    visited = Visit(browser, tmp_path / "mine" / "report.html")
    assert "Withheld: learned" in visited.page.locator(".headline").first.inner_text()
    first = visited.page.locator("#heads .findings li").first
    assert first.locator("s").inner_text() == "Which heads it needs"
    assert first.locator("p").inner_text() == "Withheld: learned: right on 0.2 of its problems."
    assert "No finding is told" not in visited.page.locator("#heads .findings").first.inner_text()
    visited.close()
    assert "- ~~Which heads it needs~~ Withheld: learned" in (home / "report.md").read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("heads.json", {}),
        ("heads-population.json", {"schema": "headway.heads-population/1", "findings": ["Thirteen."]}),
    ],
)
def test_a_population_is_recognised_by_its_schema_or_its_contents(
    tmp_path: Path, name: str, said: dict[str, Any]
) -> None:
    """Older files have another name, no schema and no findings; their numbers are still shown."""
    many = json.loads((ROOT / "results" / "heads-thousand" / "heads.json").read_text())
    disk.write_json(tmp_path / name, {**many, "members": many["members"][:3], **said})
    content = build_content(find_sources([tmp_path]))
    assert content["headlines"][0]["answer"] == "In the median run 11 of 24 heads are enough"
    assert [finding["text"] for finding in content["findings"]] == said.get("findings", [])
    assert (len(content["seeds"]), content["heads"]) == (3, None)


def test_the_measured_lengths_of_a_run_are_not_a_study(home: Path) -> None:
    run, study = home / "adder", json.loads((ROOT / "results" / "lengths-plain" / "lengths.json").read_text())
    measured = {"asked": {}, "reach": {"default": 16}, "converged": True, "rows": []}
    disk.write_json(run / "lengths.json", measured)  # as older versions called it
    assert find_sources([home]).studies["lengths"] == []
    disk.write_json(run / "measured.json", {"schema": "headway.measured/1", **measured})
    disk.write_json(run / "lengths.json", {"schema": "headway.lengths/1", **study})
    assert find_sources([home]).studies["lengths"] == [run / "lengths.json"]
    assert run / "measured.json" in find_sources([home]).files


@needs_browser
def test_a_population_alone_is_enough(browser: Any, tmp_path: Path) -> None:
    many = json.loads((ROOT / "results" / "heads-thousand" / "heads.json").read_text())
    found = ["Together 13 can go in the median run (9 to 17)."]
    disk.write_json(tmp_path / "many" / "heads.json", {**many, "members": many["members"][:20], "findings": found})
    assert main(["report", str(tmp_path / "many"), "--json"]) == 0
    visited = Visit(browser, tmp_path / "many" / "report.html")
    page = visited.page
    assert page.locator(".headline strong").inner_text() == "In the median run 11 of 24 heads are enough"
    assert "Together 13 can go in the median run (9 to 17)." in page.locator("#heads .findings").text_content()
    assert "Over 20 seeds" in page.locator("#heads").inner_text()
    visited.close()


@needs_browser
def test_a_certificate_of_another_run_is_struck_out(browser: Any, tmp_path: Path) -> None:
    for name in ("altered", "foreign", "lost", "right"):
        shutil.copytree(SHIPPED / "certified-sorter", tmp_path / "all" / name)
    altered = tmp_path / "all" / "altered" / "certificate.json"
    disk.write_json(altered, {**json.loads(altered.read_text()), "contexts": 9})
    shutil.copy(SHIPPED / "certified-adder" / "certificate.json", tmp_path / "all" / "foreign")
    (tmp_path / "all" / "lost" / "training.json").unlink()
    content = build_content(find_sources([tmp_path / "all"]))
    refusals = {each["run"]: each["refused"] for each in content["certificates"]}
    assert refusals == {
        "altered": "it was altered after it was granted",
        "foreign": "it belongs to other weights",
        "lost": "there is no finished run next to it",
        "right": None,
    }
    assert "- right is proved right at every length (15,150 contexts)." in render_markdown(content)
    (tmp_path / "page.html").write_text(render_page(content))
    visited = Visit(browser, tmp_path / "page.html")
    assert visited.page.locator(".certificate s").count() == 3
    assert visited.page.locator(".certificate:not(.withheld)").inner_text().startswith("Proved right at every length")
    visited.close()


def test_a_users_notes_are_not_overwritten(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.md").write_text("my notes")
    assert "notes.md" in refused(capsys, "mine", "--out", "notes.html")
    assert Path("notes.md").read_text() == "my notes"
    assert not Path("notes.html").exists()
    assert "does not end in .html" in refused(capsys, "mine", "--out", "notes.md")
    assert main(["report", "mine", "--out", "other.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["markdown"] == "other.md"
    assert main(["report", "mine", "--out", "other.html"]) == 0  # its own may be


def can_be_parsed(command: str) -> list[Any]:
    return [parse(shlex.split(part)[1:]) for part in command.split(" && ")]


def test_commands_can_be_run_as_printed(home: Path, study: dict[str, Any]) -> None:
    os.rename(home / "adder", home / "an adder's")
    settings = {"ablation": "mean", "examples": 20_000, "max_drop": 0.02, "max_loss_increase": None}
    disk.write_json(home / "an adder's" / "heads.json", {**study, **settings})
    content = build_content(find_sources([home]))
    command = content["findings"][0]["details"]["command"]
    assert shlex.split(command) == [
        "headway", "heads", "mine/an adder's", "--ablation", "mean", "--examples", "20000", "--max-drop", "0.02",
    ]  # fmt: skip
    asked = can_be_parsed(command)[0]
    assert (asked.subject, asked.max_drop) == ("mine/an adder's", 0.02)
    assert "`headway lengths sortedness --out mine/lengths`" in render_markdown(content)
    (home / "an adder's" / "heads.json").unlink()
    content = build_content(find_sources([home]))
    assert content["missing"][0] == {"what": "heads", "command": shlex.join(["headway", "heads", "mine/an adder's"])}
    assert "\\" not in render_markdown(content).split("Not in this report: heads; ")[1].split("\n")[0]


def test_what_is_missing_is_read_from_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SHIPPED / "certified-sorter", "only/sorter")
    heads, lengths = build_content(find_sources([Path("only")]))["missing"]
    assert heads["command"] == "headway train addition --out only/adder && headway heads only/adder"
    assert lengths["command"] == "headway lengths sortedness --out only/lengths"
    train, study = can_be_parsed(heads["command"])
    assert (train.out, study.subject) == ("only/adder", "only/adder")
    shutil.copytree(SHIPPED / "adder", "only/half")
    environment = json.loads(Path("only/half/environment.json").read_text())
    disk.write_json(
        Path("only/half/environment.json"), {**environment, "command": "headway train addition --out only/half"}
    )
    Path("only/half/training.json").unlink()
    end, heads, _ = build_content(find_sources([Path("only")]))["missing"]
    going_on = "headway train addition --out only/half --resume"
    assert end == {"what": "the end of an unfinished run", "command": going_on}
    assert heads["command"] == f"{going_on} && headway heads only/half"


@pytest.mark.parametrize("track", ["plain", "open"])
def test_the_command_of_a_study_of_length_has_its_settings(tmp_path: Path, track: str) -> None:
    shutil.copytree(ROOT / "results" / f"lengths-{track}", tmp_path / track)
    content = build_content(find_sources([tmp_path]))
    asked = can_be_parsed(content["findings"][0]["details"]["command"])[0]
    rows = content["lengths"][0]["rows"]
    assert set(asked.positions.split(",")) == {row["positions"] for row in rows}
    assert asked.seeds == str(len({row["seed"] for row in rows}))
    assert (asked.track, asked.out) == (track, str(tmp_path / track))


def test_a_lab_that_was_renamed_still_finds_its_runs(home: Path) -> None:
    row = {"finding": "x", "examples": 1, "errors": 0, "seed": 0, "interval": None}
    withheld = {"run": "/gone/lab/mine/adder", "about": "how far", "check": "blindness", "reason": "it sees no order."}
    disk.write_json(home / "lab.json", {"runs": [row], "withheld": [withheld]})
    content = build_content(find_sources([home]))
    struck = next(each for each in content["findings"] if each["withheld"])
    assert struck["text"] == "adder: how far"
    assert struck["details"]["command"] == "headway doctor mine/adder"
    finding = next(each for each in content["findings"] if each["text"] == "x")
    assert finding["details"]["command"] == "headway lab --out mine"


def test_every_file_is_in_the_page_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = build_content(find_sources([home, home, home / "adder"]))
    names = [file["name"] for file in content["files"]]
    assert names == sorted(set(names))
    assert len(content["made"]["runs"]) == 1
    wanted = {"config", "environment", "heads", "training"}
    assert {f"adder-{name}.json" for name in wanted} <= set(names)
    config = next(file for file in content["files"] if file["name"] == "adder-config.json")
    assert gzip.decompress(b64decode(config["data"])) == (home / "adder" / "config.json").read_bytes()
    monkeypatch.setattr("headway.report.page.sources.MOST_FILES", 3_000)
    content = build_content(find_sources([home]))
    assert content["left_out"] == ["adder-heads.json"]
    assert "adder-heads.json" not in [file["name"] for file in content["files"]]


def test_a_study_by_loss_is_reported_in_loss(home: Path, study: dict[str, Any]) -> None:
    judged = {"interval_of": "loss_increase", "max_loss_increase": 0.05, "metric": "kl"}
    rows = [{**row, "loss_increase": 0.25, "interval": [0.2, 0.3]} for row in study["heads"]]
    sets = {
        "together": {**study["together"], "loss_increase": 0.031, "optimal": True},
        "alone_removed_together": {**study["alone_removed_together"], "loss_increase": 1.25},
    }
    disk.write_json(home / "adder" / "heads.json", {**study, **judged, "heads": rows, **sets})
    content = build_content(find_sources([home]))
    assert content["headlines"][0]["answer"] == "It needs 11 of its 24 heads"  # proved, so it may say so
    assert content["headlines"][0]["rest"] == (
        "Under zero ablation the other 13 can go together (proved to be the largest set that can): the KL divergence "
        "rises by 0.0310, within 0.05. 19 heads look removable one at a time; remove them together and it rises by "
        "1.2500. Another kind of ablation gives another set: 16 under mean ablation."
    )
    assert content["findings"][0]["details"]["command"].endswith("--max-loss-increase 0.05")
    plain = render_markdown(content)
    assert "| head | more KL divergence | interval | verdict | pattern |" in plain
    assert "| encoder self L0H2 | 0.2500 | 0.2000 to 0.3000 | critical | aligned |" in plain


def test_the_encodings_that_reach_are_those_of_the_results() -> None:
    """The file that ships is what its recipe makes of the results and certificates in this repository."""
    spec = importlib.util.spec_from_file_location("ship_lengths", ROOT / "recipes" / "ship_lengths.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    shipped = json.loads(recipe.OUT.read_text())
    assert shipped == recipe.collect()
    assert [each["fails_in_range"] for each in shipped["measured"]] == [["one-inversion", "ties"]] * 2 + [[]]
    assert {each["wrong"] for each in shipped["proved"]} == {0}
