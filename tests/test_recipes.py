"""Every shipped recipe runs as its first lines say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from headway.cli import main

RECIPES = Path(__file__).parents[1] / "recipes"


def test_a_task_of_ones_own_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(RECIPES)
    out = str(tmp_path / "run")
    size = ["--steps", "250", "--batch", "64", "--d-model", "64", "--d-ff", "128"]
    assert main(["train", "reversal:Reversal", "--option", "longest=4", *size, "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", out, "--examples", "900", "--check-greedy", "200", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact_match"] > 0.9
    assert found["greedy"] == {"checked": 200, "mismatches": 0}
    assert found["held_out"]["examples"] > 50


def test_a_wrong_name_of_ones_own_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(RECIPES)
    for name, words in {
        "reversal:Reversl": "did you mean 'Reversal'?",
        "reversals:Reversal": "cannot import 'reversals'",
        "reversal:Problems": "is no Task",
    }.items():
        assert main(["train", name]) == 2
        assert words in capsys.readouterr().err
    assert main(["train", "reversal:Reversal", "--option", "shortest=4"]) == 2
    assert "has no option 'shortest'; it has: symbols, longest" in capsys.readouterr().err


def test_roles_are_looked_at_while_an_adder_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RECIPES)
    recipe = importlib.import_module("when_roles_appear")
    found = recipe.main(0, "2,4")
    assert [entry["step"] for entry in found] == [2, 4]
    assert [entry["flips"] for entry in found] == [None, None]  # it knows nothing yet


def test_an_encoding_of_ones_own_gets_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(RECIPES)
    tiny = ["--steps", "2", "--batch", "16", "--layers", "1", "--lengths", "20", "--probes", "default"]
    asked = ["--positions", "own_positions:Slanted,own_positions:Slanted+steep=2.0+log-length"]
    assert main(["lengths", "sortedness", *asked, *tiny, "--out", str(tmp_path / "study"), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["positions"] for entry in found["reach"]] == asked[1].split(",")
    assert len([line for line in (RECIPES / "own_positions.py").read_text().splitlines() if line.strip()]) <= 30
