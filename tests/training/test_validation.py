"""Validation while training: held-out problems only, and training is none the wiser."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.cli import main
from headway.models import build_model
from headway.report.page import find_sources
from headway.report.page.content import build_content
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.tasks import Task, create_task
from headway.training import loop
from headway.training.defaults import plan
from headway.training.loop import train_run
from headway.training.validation import Validation
from small import flags, small_model

CPU = torch.device("cpu")
TASKS = {"addition": {}, "sortedness": {}}


@pytest.mark.parametrize("name", TASKS)
def test_only_held_out_problems_of_the_training_lengths_are_used(name: str) -> None:
    task = create_task(name, TASKS[name])
    batches = Validation.draw(task, CPU).batches
    assert sum(map(len, batches)) >= 250
    assert all(bool(task.held_out(batch).all()) for batch in batches)
    lengths = {batch.source.shape[1] for batch in batches}
    assert {task.source_tokens(length) for length in task.lengths} <= lengths


@pytest.mark.parametrize("name", TASKS)
def test_validation_measures_what_the_model_answers_and_leaves_no_trace(name: str) -> None:
    task = create_task(name, TASKS[name])
    config = plan(name, Overrides(**small_model()), 0)  # pyright: ignore[reportArgumentType]
    model, validation = build_model(config.model, 0).train(), Validation.draw(task, CPU)
    before, dice = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    found = validation.measure(model)
    assert found is not None
    right = total = 0
    with torch.no_grad():
        for batch in validation.batches:
            right += int((model(batch.source, batch.answer).argmax(-1) == batch.answer).all(1).sum())
            total += len(batch)
    assert found["validation_exact_match"] == pytest.approx(right / total)
    assert model.training
    assert torch.equal(torch.get_rng_state(), dice)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_gives_the_same_bytes_without_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = Overrides(**small_model(steps=130, batch=16))  # pyright: ignore[reportArgumentType]
    config = plan("sortedness", overrides, 3)
    train_run(config, tmp_path / "with", device=CPU)
    lines = RunFolder(tmp_path / "with").log_lines()
    assert [line["step"] for line in lines if "validation_loss" in line] == [100, 130]
    monkeypatch.setattr(loop.Validation, "draw", lambda task, device: Validation(()))
    train_run(config, tmp_path / "without", device=CPU)
    assert not any("validation_loss" in line for line in RunFolder(tmp_path / "without").log_lines())
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("with", "without")]
    assert weights[0] == weights[1]


def test_a_task_with_nothing_held_out_has_no_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "held_out", lambda self, problems: torch.zeros(len(problems), dtype=torch.bool))
    validation = Validation.draw(create_task("addition", {}), CPU)
    config = plan("addition", Overrides(**small_model()), 0)  # pyright: ignore[reportArgumentType]
    assert validation.measure(build_model(config.model, 0)) is None


@pytest.mark.usefixtures("pictures")
def test_curves_are_drawn_and_the_page_shows_them(tmp_path: Path) -> None:
    asked = ["train", "sortedness", *flags(**small_model(steps=120, batch=16)), "--seeds", "2", "--quiet"]
    assert main([*asked, "--out", str(tmp_path / "runs")]) == 0
    assert "held-out problems" in (tmp_path / "runs" / "training-curves.svg").read_text()
    found = build_content(find_sources([tmp_path / "runs"]))["made"]["curves"]
    for seed, curve in enumerate(found):
        lines = RunFolder(tmp_path / "runs" / f"seed-{seed}").log_lines()
        expected = [(line["step"], line.get("validation_exact_match")) for line in lines if "validation_loss" in line]
        assert curve["held_out"] == expected
        assert [step for step, _ in expected] == [100, 120]
    assert len(found) == 2
