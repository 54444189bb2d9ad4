"""Extremes over carry chains equal brute force over all problems of a box."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.certify.digits.chain import Chain, Ratio, whole

BASE = 3


def problems(chain: Chain) -> list[tuple[tuple[int, ...], tuple[int, ...], list[int]]]:
    """Lists the problems of a chain by brute force: operand digits, 0 in fixed columns, and answer digits."""
    found = []
    columns = len(chain.allowed)
    digits = [range(1) if at in chain.fixed else range(BASE) for at in range(columns)]
    for a in itertools.product(*digits):
        for b in itertools.product(*digits):
            carry, answer, inside = 0, [], True
            for at in range(columns):
                if at == chain.tied and carry != chain.carry:
                    inside = False
                known = at < chain.tied
                if at not in chain.fixed and not chain.allowed[at, a[at], b[at], carry if known else 0]:
                    inside = False
                total = a[at] + b[at] + carry
                answer.append(total % BASE)
                carry = total // BASE if known else 0
            if chain.tied == columns and carry != chain.carry:
                inside = False
            if inside:
                found.append((a, b, answer))
    return found


def random_chain(seed: int, columns: int, tied: int) -> Chain:
    dice = torch.Generator().manual_seed(seed)
    allowed = whole(columns, BASE)
    chain = Chain(allowed, tied, int(torch.randint(2, (), generator=dice)) if tied else 0, frozenset({tied}))
    for _ in range(2):  # a few tokens are restricted
        letter = "abc"[int(torch.randint(3, (), generator=dice))]
        column = int(torch.randint(columns, (), generator=dice))
        if column != tied and (letter != "c" or column < tied):
            chain = chain.restrict(letter, column, int(torch.randint(BASE, (), generator=dice)))
    return chain


def tokens_of(chain: Chain) -> list[tuple[str, int]]:
    columns = [at for at in range(len(chain.allowed)) if at not in chain.fixed]
    return [(letter, at) for letter in "abc" for at in columns if letter != "c" or at < chain.tied]


def sums(chain: Chain, values: dict[tuple[str, int], torch.Tensor]) -> list[torch.Tensor]:
    return [
        sum(values[letter, at][:, {"a": a, "b": b, "c": c}[letter][at]] for letter, at in values)  # pyright: ignore
        for a, b, c in problems(chain)
    ]


@given(seed=st.integers(0, 10**6), tied=st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_the_largest_sum_over_a_box_equals_brute_force(seed: int, tied: int) -> None:
    chain, dice = random_chain(seed, 3, tied), torch.Generator().manual_seed(seed)
    values = {token: torch.randn(4, BASE, generator=dice, dtype=torch.float64) for token in tokens_of(chain)}
    listed = sums(chain, values)
    assert chain.count() == len(listed)
    if listed:
        torch.testing.assert_close(chain.largest(values), torch.stack(listed).amax(0))


@given(seed=st.integers(0, 10**6), tied=st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_ratio_bounds_never_cut_off_a_problem_and_tend_to_the_extremes(seed: int, tied: int) -> None:
    chain, dice = random_chain(seed, 3, tied), torch.Generator().manual_seed(seed)
    if not chain.count():
        return
    tokens = tokens_of(chain)
    weights = {token: torch.randn(4, BASE, generator=dice, dtype=torch.float64).exp() for token in tokens}
    values = {token: torch.randn(4, BASE, generator=dice, dtype=torch.float64) for token in tokens}
    fixed, mass = torch.randn(4, generator=dice, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.1
    above = torch.stack(sums(chain, {token: weights[token] * values[token] for token in tokens}))
    below = torch.stack(sums(chain, weights))
    ratios = (fixed + above) / (mass + below)
    ratio = Ratio(chain, weights, values, fixed, mass)
    for steps in (1, 2, 4):
        assert (ratio.upper(torch.zeros(4, dtype=torch.float64), steps) >= ratios.amax(0) - 1e-12).all()
        assert (ratio.lower(torch.zeros(4, dtype=torch.float64), steps) <= ratios.amin(0) + 1e-12).all()
    start = torch.zeros(4, dtype=torch.float64)
    torch.testing.assert_close(ratio.upper(start, 60), ratios.amax(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(ratio.lower(start, 60), ratios.amin(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("tied", [0, 1, 2])
def test_drawn_problems_lie_in_the_box(tied: int) -> None:
    for seed in range(10):
        chain = random_chain(seed, 3, tied)
        if not chain.count():
            continue
        listed = {(a, b) for a, b, _ in problems(chain)}
        for a, b in chain.draw(50, torch.Generator().manual_seed(seed)).tolist():
            assert (tuple(a), tuple(b)) in listed
