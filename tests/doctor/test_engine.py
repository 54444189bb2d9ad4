"""The engine of mistakes: its healthy labs are healthy, each planted mistake does what it says, and the doctor names
them, alone and in company."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
import torch
from recipes.mistakes.engine import MISTAKES, Plan, Recipe, Style, build, build_plan, every_style, find_conflict
from recipes.mistakes.engine.cases import (
    HEALTHY,
    TRIPLES,
    Case,
    every_case,
    excluded,
    healthy,
    pairs,
    singles,
    take_fraction,
    triples,
)
from recipes.mistakes.engine.effects import EFFECTS, has_effect
from recipes.mistakes.engine.measuring import find_hiding, is_named, measure, total
from recipes.mistakes.engine.running import measure_all
from recipes.mistakes.engine.training import make_model

from headway import Problems
from headway.doctor.check import Checked, failed, passed
from headway.doctor.examination import Examination

TWENTIETH = 20
ROUNDING = 1e-3
"""how far the logits of two ways to compute the same may differ"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of trained models, which all tests share."""
    return tmp_path_factory.mktemp("models")


def test_every_pair_is_a_case_or_excluded_with_a_reason() -> None:
    assert len(MISTAKES) >= 24
    assert set(EFFECTS) == set(MISTAKES)
    combined, left_out = {case.mistakes for case in pairs()}, excluded()
    assert combined.isdisjoint(left_out)
    assert combined | set(left_out) == set(combinations(MISTAKES, 2))
    assert all(left_out.values())
    assert find_conflict(["token_accuracy", "metric_ignores_zero"]) is None
    with pytest.raises(ValueError, match="both decide how decoding begins"):
        build(["starts_with_zero", "wrong_start"])


def test_cases_never_change_and_half_of_the_pairs_is_unseen() -> None:
    cases = every_case()
    assert cases == every_case()
    assert len({case.name for case in cases}) == len(cases)
    assert len(triples()) == len(set(triples())) == TRIPLES
    assert len(healthy()) == len({case.style for case in healthy()}) == HEALTHY
    share = sum(case.half == "unseen" for case in pairs()) / len(pairs())
    assert 0.45 < share < 0.55
    assert all(len(values) > 1 for values in zip(*(vars(case.style).values() for case in pairs()), strict=True))


def test_one_set_of_weights_says_the_same_in_every_style(models: Path) -> None:
    plain = build(folder=models)
    assert isinstance(plain.examples, Problems)
    problems = plain.examples[:20]
    assert plain.generate is not None
    assert plain.ablate is not None
    for style in every_style()[::67]:
        other = build(style=style, folder=models)
        assert other.generate is not None
        assert other.ablate is not None
        assert torch.equal(other.generate(problems), plain.generate(problems)), style
        for heads in ((), plain.heads[:1], plain.heads[5:7]):
            moved = other.ablate(problems, heads) - plain.ablate(problems, heads)
            assert moved.abs().max() < ROUNDING, style


def test_an_untrained_lab_is_not_healthy(tmp_path: Path) -> None:
    recipe = Recipe()
    torch.save(make_model(recipe).state_dict(), tmp_path / f"{recipe.key}.pt")
    outcome = measure(Case("healthy", (), Style(), Plan(recipe)), tmp_path)
    assert "converged" in outcome.failures
    assert not outcome.is_right
    assert not total([outcome]).meets_bars


def hide(check: str, **evidence: str) -> Checked:
    return Checked("skipped", f"{check} cannot be measured", evidence, "mend the other first")


def test_a_shared_check_names_only_the_mistakes_that_it_speaks_of() -> None:
    found = Examination("lab", {"greedy": failed("it begins with 0, which is kept", ""), "metric": passed("fine")})
    both = ["wrong_start", "keeps_the_start", "token_accuracy"]
    assert [is_named(name, both, found) for name in both] == [True, True, False]
    found = Examination("lab", {"greedy": failed("every token is one place late", "")})
    assert [is_named(name, both, found) for name in both] == [False, True, False]
    assert is_named("wrong_start", ["wrong_start"], found)  # alone, the check is enough


def test_mistakes_that_share_a_check_have_words_that_distinguish_them() -> None:
    for case in (*pairs(), *triples()):
        for one, two in combinations([MISTAKES[name] for name in case.mistakes], 2):
            if set(one.named_by) & set(two.named_by):
                assert one.words != two.words, case.name
                assert one.words, case.name
                assert two.words, case.name


def test_a_hidden_mistake_must_name_an_alarm_and_a_way_out() -> None:
    alarm = failed("the ablation has no effect", "multiply")
    found = Examination("lab", {"gates": alarm, "together": hide("together", hidden_by="gates")})
    assert find_hiding("one_at_a_time", found) == "gates"
    for other in (hide("together"), hide("together", hidden_by="greedy"), passed("fine")):
        assert find_hiding("one_at_a_time", Examination("lab", {"gates": alarm, "together": other})) is None


@pytest.mark.slow
def test_the_doctor_names_a_twentieth_of_the_mistakes_planted_together(models: Path) -> None:
    cases = take_fraction([case for case in every_case() if case.kind != "single"], TWENTIETH)
    figures = total(measure(case, models) for case in cases)
    assert figures.planted > 50
    assert figures.meets_bars, figures


@pytest.mark.slow
@pytest.mark.parametrize("case", singles(), ids=lambda case: case.name)
def test_each_mistake_is_named_alone(case: Case, models: Path) -> None:
    outcome = measure(case, models)
    assert outcome.named == outcome.planted
    assert outcome.false == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["single", "pair", "triple"])
def test_every_planted_mistake_does_what_it_says(kind: str, models: Path) -> None:
    cases = [case for case in every_case() if case.kind == kind]
    idle = [f"{name} in {case.name}" for case in cases for name in case.mistakes if not has_effect(case, name, models)]
    assert idle == []


@pytest.mark.slow
def test_healthy_sorters_and_adders_are_right_on_what_they_were_not_trained_on(models: Path) -> None:
    for recipe in {case.plan.recipe for case in healthy()}:
        subject = build_plan(Plan(recipe), Style(unseen="list"), models)
        assert subject.score is not None
        assert isinstance(subject.examples, Problems)
        assert subject.score(subject.examples) > 0.97, recipe


@pytest.mark.slow
def test_the_doctor_names_all_mistakes_planted_together(models: Path, tmp_path: Path) -> None:
    cases = [case for case in every_case() if case.kind != "single"]
    outcomes = measure_all(cases, models, tmp_path)
    for half in ("written", "unseen"):
        figures = total(outcome for outcome in outcomes if outcome.half == half)
        assert figures.meets_bars, (half, figures)
