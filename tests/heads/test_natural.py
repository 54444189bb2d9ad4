"""Sums with answers of natural length get the same answer about heads as padded ones: layout, patterns and roles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.causes.patching import Pairs, Patch
from headway.heads.question import HeadsQuestion
from headway.heads.study import study_subject
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run, subject_of
from headway.tasks import Addition
from headway.tasks.contrasts import sum_contrasts
from headway.training.defaults import plan
from headway.training.loop import train_run
from small import small_model


@pytest.fixture(scope="module")
def natural(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trains a small adder of one digit with answers of natural length."""
    home: Path = tmp_path_factory.mktemp("natural") / "run"
    overrides = Overrides(**small_model(decoder_layers=1, batch=64, steps=300))
    train_run(plan("addition", overrides, 0, {"digits": 1, "natural": True}), home, device=torch.device("cpu"))
    return open_run(RunFolder(home))


def test_a_study_of_natural_answers_has_patterns_and_roles(natural: Run) -> None:
    study = study_subject(subject_of(natural), HeadsQuestion(examples=600, max_drop=0.05, budget=0))
    content = study.to_json()
    cross = [row for row in content["heads"] if ".cross" in row["head"]]
    assert cross
    assert all("aligned" in row["pattern_scores"]["scores"] for row in cross)
    assert {entry["contrast"] for entry in content["roles"]["table"]} == {"operand 0", "carry 1"}
    assert any(entry["pairs"] for entry in content["roles"]["table"])


def test_patching_everything_writes_the_other_answer(natural: Run) -> None:
    """With every site and block patched at all positions the answer token is mostly the other problem's; with none it
    stays."""
    subject = subject_of(natural)
    contrasts = [each for each in sum_contrasts(Addition(digits=1, natural=True), 20, 0) if not each.placebo]
    pairs = Pairs(subject, contrasts)
    assert bool(pairs.known.any())
    everything = Patch(frozenset(subject.runner.sites))
    assert bool(pairs([everything]).flipped[0][pairs.known].float().mean() > 0.5)
    assert not bool(pairs([Patch(frozenset())]).flipped.any())
