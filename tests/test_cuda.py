"""On a GPU: the same problems as on a CPU, the same bytes twice, the same answers to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.api import train
from headway.tasks import TASKS, create_task
from headway.tasks.random import TRAINING, Dice

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
SMALL = {"steps": 40, "batch": 32, "quiet": True, "device": "cuda"}


@pytest.mark.parametrize("name", TASKS)
def test_problems_are_the_same_on_both_devices(name: str) -> None:
    task = create_task(name)
    for step in range(5):
        length = task.training_length(step)
        here, there = (
            task.training(Dice.of(TRAINING, 7, step, 512, device), hard=256, length=length)
            for device in ("cpu", "cuda")
        )
        assert torch.equal(here.source, there.source.cpu())
        assert torch.equal(here.answer, there.answer.cpu())


@pytest.mark.parametrize("name", TASKS)
def test_training_twice_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    one, two = (train(name, seed=3, out=tmp_path / which, **SMALL) for which in ("one", "two"))
    assert one.folder.weights.read_bytes() == two.folder.weights.read_bytes()


def test_the_adder_answers_alike_on_both_devices(adder) -> None:
    problems = adder.task.testing(0, 2000)
    here = adder.model(problems.source, problems.answer).argmax(-1)
    there = adder.model.to("cuda")(problems.source.cuda(), problems.answer.cuda()).argmax(-1).cpu()
    adder.model.to("cpu")
    assert torch.equal(here, there)
