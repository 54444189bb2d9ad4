"""Curves go to the chosen tracker; a missing tracker is refused before training."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.api import train_seeds
from headway.errors import HeadwayError
from small import small_model

SMALL = small_model(decoder_layers=1, batch=4, steps=45, seeds=[0])


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("trackio", "trackio")])
def test_a_missing_tracker_is_refused_at_once(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HeadwayError, match=r"pip install 'headway\[tracking\]'"):
        train_seeds("addition", **SMALL, out=tmp_path / "run", tracker=name, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_trackio_receives_every_logged_step_and_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    fake = SimpleNamespace(
        init=lambda project, name: calls.append((project, name)),
        log=lambda numbers, step: calls.append((step, sorted(numbers))),
        finish=lambda: calls.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "trackio", fake)
    train_seeds("addition", **SMALL, out=tmp_path / "run", tracker="trackio", quiet=True)
    assert calls[0][0] == "headway"
    last = (45, ["exact_match", "loss", "validation_exact_match", "validation_loss"])  # held-out problems at the end
    assert calls[1:] == [*((step, ["exact_match", "loss"]) for step in (20, 40)), last, "finished"]


def test_tensorboard_writes_into_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    @contextmanager
    def writer(folder: str):
        yield SimpleNamespace(add_scalar=lambda key, value, step: calls.append((Path(folder).name, key, step)))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer))
    train_seeds("addition", **SMALL, out=tmp_path / "run", tracker="tensorboard", quiet=True)
    assert calls[:2] == [("tensorboard", "loss", 20), ("tensorboard", "exact_match", 20)]
