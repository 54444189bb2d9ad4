"""`headway certify --digits` on runs and on a user's file: what it prints, its exit status and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headway
from headway.cli import main
from headway.errors import HeadwayError

HERE = Path(__file__).parent
USER = """
import sys
sys.path.insert(0, {here!r})
from handmade import handmade

def build():
    return handmade(3, base=3)

def planted():
    return handmade(3, base=3, planted=True)

def nothing():
    return 3
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "adder.py").write_text(USER.format(here=str(HERE)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_users_adder_is_proved_and_another_refuted(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "adder.py:build", "--digits", "3", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["certified"]
    assert found["reason"] is found["counterexample"] is None
    assert found["pairs"] == found["proved_pairs"] == 3**6
    assert found["contexts"] == found["boxes"] > 0
    assert found["proved_share"] == 1
    assert found["rounding_bound"] < found["smallest_margin"]
    assert main(["certify", "adder.py:planted", "--digits", "3", "--json", "--quiet"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["certified"]
    assert found["wrong"] == 1
    assert found["proved_pairs"] == 3**6 - 2  # 222 + 1 and 222 + 2
    assert found["counterexample"]["a"] == "222"
    assert found["counterexample"]["written"] == "0" + found["counterexample"]["right"][1:]
    assert "and it writes 0" in found["reason"]


def test_wrong_requests_are_refused_in_one_line(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for request, words in {
        "adder.py:build --digits 4": "adds numbers of 3 digits",
        "adder.py:build --digits 0": "digits is 0",
        "adder.py:build --digits 3 --budget 0": "budget is 0",
        "adder.py:nothing --digits 3": "returned a int",
        "nowhere.py:build --digits 3": "there is no file",
    }.items():
        assert main(["certify", *request.split(), "--quiet"]) == 2
        assert words in capsys.readouterr().err.replace("\n", " ")


def test_runs_that_boxes_are_not_for_are_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "pretrained:adder", "--digits", "3", "--json", "--quiet"]) == 1
    assert "decoder-only" in json.loads(capsys.readouterr().out)["reason"]


SLOW = ("sinusoidal", "learned", "alibi", "kerple")


@pytest.mark.parametrize("positions", ["rope", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_run_of_headways_own_is_refuted_while_untrained(tmp_path: Path, positions: str) -> None:
    asked = {"model": "decoder", "layers": 1, "d_model": 16, "heads": 2, "d_ff": 16, "steps": 5, "batch": 8}
    out, task = tmp_path / positions, "headway.tasks.aligned:AlignedAddition"
    headway.train(task, options={"digits": 2}, positions=positions, out=str(out), **asked)
    verdict = headway.api.certify_digits(out, digits=2, budget=5.0)
    assert verdict.counterexample is not None
    assert verdict.rounding is None  # no proof was tried


def test_digits_must_be_named() -> None:
    with pytest.raises(HeadwayError, match="name the length"):
        headway.api.certify_digits("pretrained:adder")
