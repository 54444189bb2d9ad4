"""A probe is a function: a task's by name, a user's by its file, checked against the task's answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.errors import HeadwayError
from headway.tasks import Addition, Sortedness
from headway.tasks.random import TESTING, Dice

PROBE = """
import torch
from headway import Problems

def nines(task, dice, length):
    source = torch.full((len(dice), 2 * length + 1), task.base - 1)
    source[:, length] = task.plus
    return task.solve(source)

def wrong(task, dice, length):
    right = nines(task, dice, length)
    return Problems(right.source, right.answer.flip(1))

def few(task, dice, length):
    return nines(task, dice, length)[:1]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(PROBE)
    return tmp_path / "own.py"


def test_a_named_probe_is_what_the_task_draws() -> None:
    for task in (Addition(), Sortedness()):
        for probe in task.probes:
            dice = Dice.of(TESTING, 3, 9, 40, "cpu")
            assert torch.equal(task.testing(3, 40, probe=probe, length=9).source, task.draw(dice, probe, 9).source)


def test_a_users_own_probe_draws_at_any_length(file: Path) -> None:
    for length in (1, 3, 40):
        problems = Addition().independent(0, 5, probe=f"{file}:nines", length=length)
        assert problems.source[:, :length].unique().tolist() == [9]
        assert problems.answer[0].tolist() == [1, *[9] * (length - 1), 8]


def test_a_probe_that_is_wrong_or_missing_gets_a_sentence(file: Path) -> None:
    for name, words in {
        f"{file}:wrong": "draws problems with wrong answers",
        f"{file}:few": "one for each row of the dice",
        f"{file}:nine": "did you mean 'nines'",
        "carry-hevy": "did you mean 'carry-heavy'",
    }.items():
        with pytest.raises(HeadwayError, match=words):
            Addition().testing(0, 4, probe=name)
