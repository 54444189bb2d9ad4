"""The examples of docs/extending.md, run as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from headway.cli import main
from headway.evaluation.metrics import find_metric

MOST_LINES = 40
ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "extending.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE))


def files_of(section: str) -> dict[str, str]:
    """Returns the files that a section prints, by their names."""
    return dict(re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", SECTIONS[section], re.DOTALL))


def commands_of(section: str) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", SECTIONS[section], re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    return tmp_path


def run(section: str, here: Path, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    """Runs each command of a section, with its files written as printed, and returns their output."""
    for name, text in files_of(section).items():
        (here / name).write_text(text)
    said = []
    for program, *words in commands_of(section):
        assert program == "headway"
        assert main([*words, "--json", "--quiet"]) == 0, capsys.readouterr().err
        said.append(json.loads(capsys.readouterr().out))
    return said


@pytest.mark.parametrize("section", SECTIONS)
def test_every_example_is_one_short_file(section: str) -> None:
    (text,) = files_of(section).values()
    assert len(text.splitlines()) <= MOST_LINES
    assert commands_of(section)


def test_a_position_encoding(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run("A position encoding", here, capsys)
    assert [entry["positions"] for entry in found["reach"]] == ["rings:Rings", "rings:Rings+rings=4"]


def test_a_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained, evaluated, written = run("A task", here, capsys)
    assert trained["runs"][0]["steps"] == 20
    assert evaluated["examples"] == 500
    assert all(
        item["target"] == sorted(item["input"])
        for file in written["files"]
        for item in json.loads(Path(file).read_text())
    )


def test_a_probe(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated, measured = run("A probe", here, capsys)
    assert evaluated["errors"] == 0
    assert [each for each in evaluated["strata"] if each["stratum"].startswith("propagated")] == [
        {"stratum": "propagated carries=0", "examples": 500, "errors": 0}
    ]
    assert {row["probe"] for row in measured["rows"]} == {"default", "doubles.py:doubles"}


def test_an_edited_probe_is_measured_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("A probe", here, capsys)
    (kept,) = here.rglob("measured.json")
    before = json.loads(kept.read_text())
    file = here / "doubles.py"
    file.write_text(file.read_text() + "\nEDITED = True\n")
    main([*commands_of("A probe")[1][1:], "--quiet"])
    after = json.loads(kept.read_text())
    assert before["rows"] == after["rows"]
    assert before["asked"] != after["asked"]


def test_a_doctors_check(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run("A doctor's check", here, capsys)
    assert found["checks"][-1]["check"] == "leads"
    assert found["checks"][-1]["status"] == "pass"
    assert main(["doctor", "pretrained:adder", "--check", "leads.py:NARROW"]) == 2
    assert "leads.py:NARROW" in capsys.readouterr().err


def test_a_metric(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run("A metric", here, capsys)
    assert found["metric"] == "rank"
    assert {"critical", "redundant"} <= {row["verdict"] for row in found["heads"]}
    assert find_metric("ranks.py:rank") is not None
    words = commands_of("A metric")[0][1:]
    assert main(["ranks.py:nothing" if word == "ranks.py:rank" else word for word in words]) == 2
    assert "unknown function in ranks.py 'nothing'" in capsys.readouterr().err


def test_a_kind_of_ablation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run("A kind of ablation", here, capsys)
    assert found["ablation"] == "frozen.py:Frozen"
    assert all(row["verdicts"] == {"frozen.py:Frozen": row["verdict"]} for row in found["heads"])
    assert [row["head"] for row in found["heads"] if row["drop"] > 0.1] == ["decoder.0.self.2", "decoder.1.self.3"]
    assert main(["heads", "pretrained:adder", "--ablation", "frozen.py:Problems"]) == 2
    assert "derive it from headway.heads.ablations.Ablation" in capsys.readouterr().err
