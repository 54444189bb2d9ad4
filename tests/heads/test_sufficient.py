"""A sufficient set is held against all the sets that it could have been."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from headway.causes.sufficient import Controls, _interval_of_mean, _summarise, draw_sets
from headway.evaluation.intervals import Interval
from headway.models import Head, Site

SITES = [Site("encoder", 0), Site("decoder", 0), Site("decoder", 0, "cross")]
HEADS = tuple(Head(site, number) for site in SITES for number in range(4))
CHOSEN = (HEADS[0], HEADS[8], HEADS[9])


def test_random_sets_are_distinct_as_large_and_never_the_chosen_one() -> None:
    found = draw_sets([(HEADS, 3)], CHOSEN, 100, random.Random(0))
    assert len(set(found)) == len(found) == 100
    assert {len(each) for each in found} == {3}
    assert frozenset(CHOSEN) not in found
    assert any(each & set(CHOSEN) for each in found)  # chosen heads are not left out
    assert found == draw_sets([(HEADS, 3)], CHOSEN, 100, random.Random(0))


def test_where_there_are_few_sets_all_of_them_are_taken() -> None:
    assert len(draw_sets([(HEADS, 3)], CHOSEN, 1000, random.Random(0))) == 220 - 1
    same_sites = [(HEADS[:4], 1), (HEADS[8:], 2)]
    found = draw_sets(same_sites, CHOSEN, 100, random.Random(0))
    assert len(set(found)) == 4 * 6 - 1
    assert all(Counter(head.site for head in each) == {SITES[0]: 1, SITES[2]: 2} for each in found)
    assert draw_sets([(HEADS[:4], 4)], HEADS[:4], 100, random.Random(0)) == []


def test_the_interval_of_random_sets_covers_their_mean_and_narrows_with_more() -> None:
    chance = torch.Generator().manual_seed(0)
    rates = torch.rand(400, generator=chance).pow(6)  # most sets flip little, a few much
    covered, widths = 0, []
    for _ in range(200):
        some = rates[torch.randperm(400, generator=chance)[:80]]
        flips = (torch.rand(80, 40, generator=chance) < some[:, None]).double()
        interval = _interval_of_mean(flips, complete=False)
        covered += interval.low <= float(rates.mean()) <= interval.high
        widths.append(interval.high - interval.low)
    assert covered >= 180
    none = _interval_of_mean(torch.zeros(80, 40), complete=False)
    assert (none.low, round(none.high, 3)) == (0.0, 0.088)  # 40 pairs without a flip do not prove that none would


@pytest.mark.parametrize(
    ("others", "as_many", "stands_out"), [(5, 0, True), (5, 1, False), (15, 1, False), (100, 5, False), (100, 4, True)]
)
def test_a_set_stands_out_only_where_fewer_than_one_in_twenty_flip_as_much(
    others: int, as_many: int, stands_out: bool
) -> None:
    """One of 15 sets that flips every pair, as the chosen one does, is over 5% of them. (An interpolated percentile
    lies below it, and let the chosen set pass.)"""
    sets = draw_sets([(HEADS, 3)], CHOSEN, others, random.Random(0))[:others]
    shares = {each: float(number < as_many) for number, each in enumerate(sets)}
    found = _summarise(sets, shares, CHOSEN)
    assert found.sets == others
    assert Controls(40, 1.0, found, found, found, Interval(0.0, 0.1)).passed == stands_out
    assert ("at most" in str(found)) == (others < 20)
