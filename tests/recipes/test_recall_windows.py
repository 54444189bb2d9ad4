"""The recipe that compares ways to choose which heads are narrowed, on the shipped model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "recipes")
    return importlib.import_module("recall_windows")


def test_prompts_end_in_a_question_about_a_fact_of_the_row(recipe: ModuleType) -> None:
    setting = recipe.recall.SMALL["rotary"]
    problems = recipe.draw_prompts(setting, 40, 0, "cpu")
    assert problems.source.shape == (40, setting.length - 1)
    for source, (answer,) in zip(problems.source.tolist(), problems.answer.tolist(), strict=True):
        places = [place for place, token in enumerate(source[:-1]) if token == source[-1]]
        assert answer in [source[place + 1] for place in places]  # the key stood there before, with its value
        assert min(source[-1], answer) >= setting.text_tokens


@pytest.mark.slow
def test_every_way_is_measured_on_one_model_and_kept(
    recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, asked = ROOT / "recipes" / "recall" / "rotary", ["--select", "20", "--report", "40"]
    recipe.main([str(folder), "--out", str(tmp_path), *asked])
    (file,) = tmp_path.glob("*.json")
    found = json.loads(file.read_text())
    curves = found["curves"]
    assert {len(points) for points in curves.values()} == {9}
    assert all(points[0]["cache_share"] == 1 for points in curves.values())
    assert len({points[-1]["accuracy"] for points in curves.values()}) == 1  # all heads, whatever the order
    assert curves["greedy"][-1]["accuracy"] < 0.5 < curves["greedy"][0]["accuracy"]
    assert found["within"]["greedy"] <= found["within"]["exact"] < found["cheap_alone"]["narrowed"]
    assert found["cheap_alone"]["accuracy"] < 0.5
    assert "all of these together" in capsys.readouterr().out
    before = file.stat().st_mtime_ns
    recipe.main([str(folder), "--out", str(tmp_path), *asked])
    assert file.stat().st_mtime_ns == before
    assert (tmp_path / "recall-windows.svg").stat().st_size > 1_000
