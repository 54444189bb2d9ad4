"""Patterns: a head that looks where it was made to look gets that name, a head that looks anywhere gets none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headway.causes.patterns import NONE, Pattern, _site_patterns, find_patterns, targets_of
from headway.models import Head, Site
from headway.subjects.own import subject_of
from headway.subjects.subject import Subject

ENCODER, CROSS, OWN = Site("encoder", 0, "self"), Site("decoder", 0, "cross"), Site("decoder", 0, "self")
ROWS = 50


@pytest.fixture(scope="module")
def subject(adder) -> Subject:
    return subject_of(adder)


def looking(queries: int, keys: int, at: Callable[[int], list[int]], sure: float = 0.9) -> Tensor:
    """Maps of one head that puts most of its weight on the keys it is told, the rest on all alike."""
    weights = torch.full((queries, keys), (1 - sure) / keys)
    for query in range(queries):
        chosen = at(query) or list(range(keys))
        weights[query, chosen] += sure / len(chosen)
    return weights.expand(ROWS, 1, queries, keys)


# source: a2 a1 a0 + b2 b1 b0; answer: digits of columns 3 2 1 0
CASES = {
    "diagonal": (ENCODER, looking(7, 7, lambda q: [q])),
    "previous": (ENCODER, looking(7, 7, lambda q: [q - 1] if q else [])),
    "next": (ENCODER, looking(7, 7, lambda q: [q + 1] if q < 6 else [])),
    "operator": (ENCODER, looking(7, 7, lambda q: [3])),
    "vertical": (ENCODER, looking(7, 7, lambda q: [5])),
    "aligned": (CROSS, looking(4, 7, lambda q: [q - 1, q + 3] if q else [])),
    "carry source": (CROSS, looking(4, 7, lambda q: [q, q + 4] if q < 3 else [])),
    NONE: (CROSS, looking(4, 7, lambda q: [])),
}


@pytest.mark.parametrize("label", CASES)
def test_a_head_gets_the_name_of_where_it_looks(subject: Subject, label: str) -> None:
    site, maps = CASES[label]
    (found,) = _site_patterns(subject, site, maps)
    assert found.label == label
    assert found.stable == 1.0
    assert found.head == Head(site, 0)
    if label == "vertical":
        assert found.key == 5


def test_a_digit_of_the_encoder_is_aligned_with_its_partner_not_with_itself(subject: Subject) -> None:
    partner = looking(7, 7, lambda q: [q + 4] if q < 3 else [q - 4] if q > 3 else [])
    assert _site_patterns(subject, ENCODER, partner)[0].label == "aligned"


def test_the_baseline_is_what_shuffling_gives(subject: Subject) -> None:
    """The slow way: every query's weights shuffled among the keys it may see, many times."""
    torch.manual_seed(0)
    weights = torch.rand(ROWS, 1, 4, 4).tril()
    maps = weights / weights.sum(-1, keepdim=True)
    (found,) = _site_patterns(subject, OWN, maps)
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
    (found,) = _site_patterns(subject, ENCODER, torch.cat((one[:30], two[:20])))
    assert found.label == "operator"
    assert found.stable == pytest.approx(0.6)


def test_every_head_of_the_adder_is_described(subject: Subject) -> None:
    found = {str(p.head): p for p in find_patterns(subject, subject.draw(200, 0, False))}
    assert list(found) == [str(head) for head in subject.heads]
    assert found["decoder.0.cross.2"].label == "aligned"
    assert all(isinstance(p, Pattern) and 0 <= p.entropy <= 1 and 0 <= p.stable <= 1 for p in found.values())
