"""Problems that come in pairs are not independent, and the interval of an evaluation accounts for that."""

from __future__ import annotations

import numpy
import pytest
import torch

from headway.evaluation.exact import evaluate_chunks, evaluate_sample, find_twins
from headway.evaluation.intervals import wilson
from headway.evaluation.pairs import PairCounts
from headway.models import build_model
from headway.runs.config import Overrides
from headway.tasks import Addition, Sortedness
from headway.training.defaults import plan
from small import small_model

PAIRS, STUDIES = 1_000, 4_000


def simulate(rate: float, alike: float) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Draws evaluations whose problems are wrong at this rate; a share of the pairs, `alike`, has one verdict."""
    dice = numpy.random.default_rng(0)
    first, other = (dice.random((STUDIES, PAIRS)) < rate for _ in range(2))
    second = numpy.where(dice.random((STUDIES, PAIRS)) < alike, first, other)
    return first.sum(1) + second.sum(1), (first & second).sum(1)


def coverage(rate: float, alike: float) -> tuple[float, float]:
    """Returns how often the interval contains the true accuracy: of independent problems, and of pairs."""
    plain = paired = 0
    for errors, both in zip(*simulate(rate, alike), strict=True):
        naive = wilson(2 * PAIRS - int(errors), 2 * PAIRS)
        known = PairCounts(2 * PAIRS, int(errors), PAIRS, int(both)).interval()
        plain += naive.low <= 1 - rate <= naive.high
        paired += known.low <= 1 - rate <= known.high
    return plain / STUDIES, paired / STUDIES


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_pairs_with_one_verdict_need_the_interval_of_pairs(rate: float) -> None:
    plain, paired = coverage(rate, alike=1.0)
    assert plain < 0.87  # instead of 0.95
    assert paired > 0.93


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.6])
def test_the_interval_of_pairs_covers_whatever_the_dependence(alike: float) -> None:
    assert min(coverage(0.02, alike)[1], coverage(0.2, alike)[1]) > 0.93


def test_without_errors_pairs_count_once_and_independent_verdicts_count_twice() -> None:
    assert PairCounts(2_000, 0, 1_000, 0).effective_examples == 1_000
    assert PairCounts(2_000, 200, 1_000, 10).effective_examples == pytest.approx(2_000, rel=0.01)
    assert PairCounts(2_000, 200, 1_000, 100).effective_examples == pytest.approx(1_000)
    assert PairCounts(2_000, 1_000, 1_000, 0).effective_examples == 2_000  # always one of the two: never narrower


def test_an_untrained_classifier_is_evaluated_on_pairs() -> None:
    """Without positions it answers both of a pair alike, so exactly one is right; an odd last problem has no twin."""
    task = Sortedness()
    config = plan("sortedness", Overrides(**small_model(positions="none")), 0)  # pyright: ignore[reportArgumentType]
    model = build_model(config.model, 0).eval()
    found = evaluate_sample(model, task, 603, length=12)
    assert found.twins is not None
    assert found.twins.pairs == 302
    wrong = []
    for problems in (task.testing(0, 603, length=12),):
        assert len(find_twins(task, problems)) == 301
        with torch.no_grad():
            wrong = (model(problems.source).argmax(-1) != problems.answer)[:602, 0].view(-1, 2)
    assert found.twins.both_wrong == int(wrong.all(1).sum())
    assert found.interval == found.twins.interval()


def test_a_constant_answer_to_sorted_sequences_alone_counts_pairs() -> None:
    """A model that answers 'sorted' to everything is wrong on both of a pair only where a swap changed nothing."""
    task = Sortedness(values=2)
    config = plan("sortedness", Overrides(**small_model(positions="none")), 0, {"values": 2})  # pyright: ignore[reportArgumentType]
    model = build_model(config.model, 0).eval()
    with torch.no_grad():
        model.head.weight.zero_()  # pyright: ignore
        model.head.bias.copy_(torch.tensor([1.0, 0.0]))  # pyright: ignore
    problems = task.testing(0, 4_000, length=4)
    both = int((problems.answer.view(-1, 2).sum(1) == 2).sum())
    found = evaluate_chunks(model, task, [problems], 4_000, is_sample=True)
    assert found.twins is not None
    assert found.twins.both_wrong == both > 100
    assert found.twins.effective_examples <= 4_000


def test_sums_have_no_twins() -> None:
    task = Addition()
    assert len(find_twins(task, task.testing(0, 500))) == 0
