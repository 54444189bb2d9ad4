"""A user's code is part of what a run is: edited code is another run, and old weights are not measured under it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from headway.errors import HeadwayError
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.subjects.own import open_run
from headway.training.defaults import plan
from headway.training.loop import train_run
from small import small_model

ENCODING = Path(__file__).parents[2] / "recipes" / "own_positions.py"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return Path(shutil.copy(ENCODING, tmp_path / "mine.py"))


def config_of(own: Path) -> RunConfig:
    asked = Overrides(**small_model(batch=4, steps=2), positions=f"{own}:Slanted")
    return plan("sortedness", asked, seed=0)


def test_edited_code_is_another_run(own: Path) -> None:
    before = config_of(own)
    own.write_text(own.read_text().replace(".sqrt()", ""))
    assert config_of(own).digest != before.digest


def test_comments_and_layout_do_not_count(own: Path) -> None:
    before = config_of(own)
    own.write_text(own.read_text().replace('    name = "slanted"\n', '    name = "slanted"   # mine\n\n'))
    assert config_of(own).digest == before.digest


def test_weights_are_not_opened_under_edited_code(own: Path, tmp_path: Path) -> None:
    train_run(config_of(own), tmp_path / "run", device=torch.device("cpu"))
    folder = RunFolder(tmp_path / "run")
    text = own.read_text()
    own.write_text(text.replace(".sqrt()", ""))
    with pytest.raises(HeadwayError, match=r"mine\.py:Slanted has changed since .* was trained"):
        open_run(folder)
    own.write_text(text)
    assert open_run(folder).config.source is not None


def test_runs_of_headways_own_parts_keep_their_identity() -> None:
    config = plan("addition", Overrides(), seed=0)
    assert config.source is None
    assert "source" not in config.to_json()
