"""Patterns: a head that looks where it was made to look gets that name, a head that looks anywhere gets none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headway.causes.patterns import NONE, Pattern, find_patterns, site_patterns, targets_of
from headway.models import Head, Site, build_model
from headway.subjects.own import subject_of
from headway.subjects.subject import Subject
from headway.tasks import Addition

ENCODER, CROSS, OWN = Site("encoder", 0, "self"), Site("decoder", 0, "cross"), Site("decoder", 0, "self")
ROWS = 50


@pytest.fixture(scope="module")
def subject(adder) -> Subject:
    return subject_of(adder)


def maps_looking(queries: int, keys: int, at: Callable[[int], list[int]], sure: float = 0.9) -> Tensor:
    """Returns maps of one head with most of its weight on given keys, and the rest spread evenly."""
    weights = torch.full((queries, keys), (1 - sure) / keys)
    for query in range(queries):
        chosen = at(query) or list(range(keys))
        weights[query, chosen] += sure / len(chosen)
    return weights.expand(ROWS, 1, queries, keys)


# source: a2 a1 a0 + b2 b1 b0; answer: digits of columns 3 2 1 0
CASES = {
    "diagonal": (ENCODER, maps_looking(7, 7, lambda q: [q])),
    "previous": (ENCODER, maps_looking(7, 7, lambda q: [q - 1] if q else [])),
    "next": (ENCODER, maps_looking(7, 7, lambda q: [q + 1] if q < 6 else [])),
    "operator": (ENCODER, maps_looking(7, 7, lambda q: [3])),
    "vertical": (ENCODER, maps_looking(7, 7, lambda q: [5])),
    "aligned": (CROSS, maps_looking(4, 7, lambda q: [q - 1, q + 3] if q else [])),
    "carry source": (CROSS, maps_looking(4, 7, lambda q: [q, q + 4] if q < 3 else [])),
    NONE: (CROSS, maps_looking(4, 7, lambda q: [])),
}


@pytest.mark.parametrize("label", CASES)
def test_a_head_is_labelled_by_where_it_looks(subject: Subject, label: str) -> None:
    site, maps = CASES[label]
    (found,) = site_patterns(subject, site, maps)
    assert found.label == label
    assert found.stable == 1.0
    assert found.head == Head(site, 0)
    if label == "vertical":
        assert found.key == 5


def test_a_digit_of_the_encoder_is_aligned_with_its_partner_not_with_itself(subject: Subject) -> None:
    partner = maps_looking(7, 7, lambda q: [q + 4] if q < 3 else [q - 4] if q > 3 else [])
    assert site_patterns(subject, ENCODER, partner)[0].label == "aligned"


def test_the_baseline_is_what_shuffling_gives(subject: Subject) -> None:
    """Compares with the slow way: every query's weights shuffled many times among its visible keys."""
    torch.manual_seed(0)
    weights = torch.rand(ROWS, 1, 4, 4).tril()
    maps = weights / weights.sum(-1, keepdim=True)
    (found,) = site_patterns(subject, OWN, maps)
    totals = dict.fromkeys(("diagonal", "previous"), 0.0)
    targets = targets_of(subject, OWN, 4, 4, maps.device)
    for _ in range(40):
        shuffled = maps.clone()
        for row in range(ROWS):
            for query in range(4):
                order = torch.randperm(query + 1)
                shuffled[row, 0, query, : query + 1] = maps[row, 0, query, order]
        for name in totals:
            asked = (targets[name] & torch.ones(4, 4, dtype=torch.bool).tril()).any(-1)
            totals[name] += float((shuffled * targets[name]).sum(-1)[..., asked].mean()) / 40
    for name, expected in totals.items():
        assert found.scores[name][1] == pytest.approx(expected, abs=0.01)


def test_a_label_that_wins_in_half_of_the_problems_is_half_stable(subject: Subject) -> None:
    one, two = CASES["operator"][1], CASES["diagonal"][1]
    (found,) = site_patterns(subject, ENCODER, torch.cat((one[:30], two[:20])))
    assert found.label == "operator"
    assert found.stable == pytest.approx(0.6)


def test_every_head_of_the_adder_is_described(subject: Subject) -> None:
    found = {str(p.head): p for p in find_patterns(subject, subject.draw(200, 0, False))}
    assert list(found) == [str(head) for head in subject.heads]
    assert found["decoder.0.cross.2"].label == "aligned"
    assert all(isinstance(p, Pattern) and 0 <= p.entropy <= 1 and 0 <= p.stable <= 1 for p in found.values())


@pytest.mark.parametrize("first", ["most", "least"])
def test_a_head_aligned_with_answers_of_natural_length_is_labelled_so(subject: Subject, first: str) -> None:
    """Where a digit of an answer stands depends on the answer's length; a head that looks at the same places whatever
    the length is not aligned."""
    task = Addition(natural=True, first=first)
    problems, natural = task.testing(0, 200), replace(subject, layout=task.layout)
    columns = task.answer_columns(problems)  # row query
    weights = torch.full((200, 1, 5, 7), 0.1 / 7)
    for row, own in enumerate(columns.tolist()):
        for query, column in enumerate(own):
            weights[row, 0, query, [2 - column, 6 - column] if 0 <= column < 3 else list(range(7))] += 0.1
    weights = weights / weights.sum(-1, keepdim=True)
    assert site_patterns(natural, CROSS, weights, problems)[0].label == "aligned"
    other = site_patterns(natural, CROSS, weights.roll(67, 0), problems)[0]  # the maps of other problems
    score = site_patterns(natural, CROSS, weights, problems)[0].scores["aligned"]
    if first == "most":
        assert other.scores["aligned"][0] < score[0] - 0.2


def test_labels_about_columns_are_learned_and_the_label_vertical_is_not(adder) -> None:
    """Untrained adders get no label but vertical, which 4 of these 120 heads have: it is no sign of training."""
    labels = Counter[str]()
    for seed in range(5):
        model = build_model(adder.config.model, seed).eval()
        untrained = subject_of(replace(adder, model=model))
        labels.update(each.label for each in find_patterns(untrained, adder.task.testing(7, 1000)))
    assert set(labels) <= {NONE, "vertical"}
    assert labels["vertical"] == 4
