"""The figure of several problems is drawn in a process of its own, or here where that process fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from visiting import ROOT

from headway.report import maps


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Writes a maps.json with one problem, so that drawing is quick."""
    several = json.loads((ROOT / "results" / "heads" / "maps.json").read_text())["several"]
    path = tmp_path / "maps.json"
    path.write_text(json.dumps({"several": {**several, "problems": several["problems"][:1]}}))
    return path


def test_a_process_of_its_own_draws_it(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "draw_several", lambda *_: pytest.fail("drawn here"))
    with maps.drawing_several(few, few.parent / "drawn", at_once=True):
        pass
    assert {path.suffix for path in few.parent.glob("drawn*")} == {".svg", ".png"}


@pytest.mark.parametrize("at_once", [True, False])
def test_it_is_drawn_here_where_that_process_fails_or_is_not_wanted(
    few: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    monkeypatch.setattr(maps, "DRAW", "raise SystemExit(1)")
    with maps.drawing_several(few, few.parent / "drawn", at_once):
        pass
    assert {path.suffix for path in few.parent.glob("drawn*")} == {".svg", ".png"}
