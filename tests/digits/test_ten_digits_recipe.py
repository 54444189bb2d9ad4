"""The recipe trains, tests and describes an adder; its hinge is 0 exactly where attention stays near."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from headway.certify.digits.adder import check_adder
from headway.models.sites import Site, Trace

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(RECIPES))
    import ten_digits  # pyright: ignore[reportMissingImports]

    return ten_digits


def test_it_trains_tests_and_describes_the_same_model_twice(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"digits": 2, "base": 3, "steps": 6, "batch": 8, "d_model": 16, "heads": 2, "d_ff": 16}
    for name in ("one", "two"):
        recipe.Train(out=tmp_path / name, **small).run()
    assert (tmp_path / "one/weights.safetensors").read_bytes() == (tmp_path / "two/weights.safetensors").read_bytes()
    recipe.Test(tmp_path / "one", examples=600, decoded=500).run()
    said = capsys.readouterr().out
    assert said.count("of 600 wrong") == 2
    assert said.count("500 also decoded, 0 differ") == 2
    monkeypatch.setenv("TEN_DIGITS", str(tmp_path / "one"))
    adder = recipe.build()
    assert adder.description.digits == 2
    assert check_adder(adder) < 1e-3


def test_the_hinge_is_zero_where_attention_stays_near(recipe: ModuleType) -> None:
    near = recipe.near_tokens(3)  # the source has 7 tokens, the start token is number 7
    assert near.sum(1).tolist() == [4, 7, 7, 5]
    assert near[2].nonzero()[:, 0].tolist() == [1, 2, 3, 5, 6, 7, 9]
    maps = near.double() / near.sum(1, keepdim=True)
    trace = Trace()
    trace.maps[Site("decoder", 0, "self")] = maps[None, None]
    assert float(recipe.attention_elsewhere(trace, near)) == 0
    trace.maps[Site("decoder", 0, "self")] = (0.9 * maps + 0.1 * torch.ones_like(maps) / maps.shape[1])[None, None]
    assert float(recipe.attention_elsewhere(trace, near)) > 4
