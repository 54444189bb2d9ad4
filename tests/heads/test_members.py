"""Runs studied as one stack have the same results as alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headway.api import heads as heads_module
from headway.api import study_members
from headway.heads import members as module
from headway.heads import study as study_module
from headway.heads import together as together_module
from headway.heads.ablation import measure
from headway.heads.members import StackedVariants, measure_members, study_stack
from headway.heads.population import RefusedMember, distribution
from headway.heads.question import HeadsQuestion
from headway.heads.result import HeadStudy
from headway.heads.study import study_subject
from headway.heads.together import remove_greedily
from headway.heads.variants import Variants
from headway.report import maps as maps_module
from headway.runs.folder import RunFolder
from headway.subjects.own import open_run, open_stack, subject_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SELECTED": 150, "CONFIRMED": 400}.items():
        monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(study_module, name, value)
    monkeypatch.setattr(study_module, "PAIRED", 20)
    monkeypatch.setattr(module, "CHUNK", 100)
    monkeypatch.setattr(module, "PASS_TOKENS", 4_000)


def stacked(folders: list[RunFolder]) -> tuple[list, dict[str, torch.Tensor]]:
    runs, weights = open_stack(folders, CPU)
    return [subject_of(run) for run in runs], weights


def test_each_member_has_the_same_outcomes_as_alone(folders: list[RunFolder]) -> None:
    subjects, weights = stacked(folders)
    many = StackedVariants(subjects[0], weights)
    chance = torch.Generator().manual_seed(0)
    closed = torch.rand(4, 5, len(many.heads), generator=chance) < 0.4
    problems = subjects[0].draw(250, 3, False)
    found = measure_members(many, problems, closed)
    for member, folder in enumerate(folders):
        alone = Variants(subject_of(open_run(folder)))
        sets = [many.heads_of_mask(row) for row in closed[member].tolist()]
        for ours, theirs in zip(found[member], measure(alone, [problems], sets), strict=True):
            assert (ours.closed, ours.right, ours.lost, ours.gained) == (
                theirs.closed, theirs.right, theirs.lost, theirs.gained,
            )  # fmt: skip
            assert ours.by_stratum == theirs.by_stratum
            assert ours.loss_increase == pytest.approx(theirs.loss_increase, abs=1e-5)
            assert ours.loss_spread == pytest.approx(theirs.loss_spread, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("margin", [{"max_drop": 0.05}, {"max_loss_increase": 0.2}, {"max_loss_increase": "40%"}])
def test_a_member_has_the_same_study_as_alone(folders: list[RunFolder], margin: dict[str, Any]) -> None:
    subjects, weights = stacked(folders)
    asked = HeadsQuestion(examples=600, budget=0, **margin)
    together = study_stack(subjects, weights, asked)
    for folder, found in zip(folders[:3], together, strict=False):
        alone = study_subject(subject_of(open_run(folder)), asked)
        assert isinstance(found, HeadStudy)
        assert found.alone.heads == alone.alone.heads
        assert found.together.heads == alone.together.heads
        assert found.curves[0].sets == alone.curves[0].sets
        assert found.curves[0].accuracy == alone.curves[0].accuracy
        assert found.curves[0].searched == alone.curves[0].searched
        own = [alone.judge.verdict(row.effect) for row in found.heads]  # at one level: more is judged of one run
        assert own == [row.verdict for row in alone.heads]
        assert found.alone.effect.right == alone.alone.effect.right
        assert found.together.effect.right == alone.together.effect.right
    assert isinstance(together[3], RefusedMember)
    assert "train it first" in together[3].reason


@pytest.mark.usefixtures("pictures")
def test_a_folder_of_runs_has_distributions_over_all_runs(
    folders: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = [(heads_module, "heads_figures"), (heads_module, "problem_figure"), (maps_module, "several_figure")]
    for home, name in drawing:  # only the population is looked at
        monkeypatch.setattr(home, name, lambda *_: [])
    home = folders[0].path.parent
    study = study_members(home, examples=600, max_drop=0.05, kinds=True, device="cpu")
    found = distribution(study.members)
    assert study.kinds is not None
    assert study.kinds.runs + study.kinds.left_out == 4
    assert study.kinds.left_out >= 1  # the one that was hardly trained
    assert "Found by greedy removal" in study.findings()[1]
    assert found["members"] == 4
    assert found["refused"] == 1
    assert sum(found["together"]["members"].values()) == 3
    assert found["together"]["least"] <= found["together"]["median"] <= found["together"]["most"]
    assert (home / "heads-population.json").exists()
    assert (home / "heads-population.png").stat().st_size > 10_000
    assert not (Path(folders[3].path) / "heads.json").exists()


def test_greedy_takes_the_head_that_costs_least(folders: list[RunFolder]) -> None:
    subject = subject_of(open_run(folders[0]))
    problems = subject.draw(200, 0, False)
    curve = remove_greedily(Variants(subject), problems)
    first = Variants(subject)(problems, [frozenset({head}) for head in subject.heads])
    best = max(zip(first.accuracy, (-loss for loss in first.losses), subject.heads, strict=True))
    assert curve.sets[1] == frozenset({best[2]})


def test_leaving_out_heads_that_cannot_be_cheapest_changes_no_curve(
    folders: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, ablation, width in ((folders[0], "zero", 1), (folders[1], "mean", 1), (folders[2], "zero", 2)):
        variants = Variants(subject_of(open_run(folder)), ablation)
        problems, found = variants.subject.draw(400, 0, False), []
        for first in (20, 400):
            monkeypatch.setattr(together_module, "FIRST", first)
            found.append(remove_greedily(variants, problems, width))
        assert found[0].sets == found[1].sets
        assert found[0].accuracy == found[1].accuracy
        assert found[0].loss == pytest.approx(found[1].loss, rel=1e-5)
        assert found[0].searched == found[1].searched
