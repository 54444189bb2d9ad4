"""The lab: its stages in order, the page from the first of them on, and what it says of an encoding blind to order."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from headway import lab
from headway.api import train_seeds
from headway.report.page import write_page
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder

SMALL = Overrides(steps=20, batch=16, d_model=16, heads=2, d_ff=16, layers=1)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Makes the lab small; lists the folders of the runs that each page shows."""
    pages = list[list[str]]()

    def write(folders: list[Path], out: Path) -> object:
        pages.append(sorted(path.parent.name for path in tmp_path.rglob("training.json")))
        return write_page(folders, out)

    shape = {**SMALL.to_dict(), "decoder_layers": 1}
    monkeypatch.setattr(lab, "write_page", write)
    monkeypatch.setattr(lab, "train_seeds", partial(train_seeds, **shape, options={"digits": 1}))
    monkeypatch.setattr(lab, "study_heads", lambda run, quiet: None)  # refuses a model as weak as this one
    monkeypatch.setitem(lab.PRESETS, "quick", lab.Preset(1, SMALL, 2))
    return pages


def test_the_page_is_there_from_the_first_stage_on(tmp_path: Path, written: list[list[str]], capsys) -> None:
    found = lab.run_lab("quick", tmp_path, 0, "cpu", quiet=False).content
    assert [len(runs) for runs in written] == [1, 1, 1, 4, 4, 4]  # after each of the five stages, and complete
    assert [each["stage"] for each in found["stages"]] == list(lab.STAGES)
    assert json.loads((tmp_path / "lab.json").read_text())["stages"] == found["stages"]
    lines = [line for line in capsys.readouterr().err.splitlines() if ", done in " in line]
    assert [line.split(",")[0] for line in lines] == [f"Lab {number}/5" for number in range(1, 6)]


def test_what_is_blind_to_order_trains_briefly_and_is_tested_by_pairs(
    tmp_path: Path, written: list[list[str]], capsys
) -> None:
    found = lab.run_lab("quick", tmp_path, 0, "cpu", quiet=True).content
    steps = {row["positions"]: row["steps"] for row in found["runs"][1:]}
    assert steps == {"sinusoidal": 20, "learned": 20, "none": 2}
    blind = next(row for row in found["runs"] if row["positions"] == "none")
    assert blind["pairs_told_apart"] == 0
    assert "of 1,000 pairs 1,000 got the same answer twice" in blind["finding"]
    assert capsys.readouterr().err == ""


def test_a_second_lab_reuses_the_runs(tmp_path: Path, written: list[list[str]]) -> None:
    def hashes() -> list[str]:
        return [RunFolder(path.parent).training().weights_sha256 for path in sorted(tmp_path.rglob("training.json"))]

    first = lab.run_lab("quick", tmp_path, 0, "cpu", quiet=True).content
    before = hashes()
    again = lab.run_lab("quick", tmp_path, 0, "cpu", quiet=True).content
    assert hashes() == before
    assert again["findings"] == first["findings"]
