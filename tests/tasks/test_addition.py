"""Addition against Python's integers, its strata against a plain count, its held-out tenth against training."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.tasks import Addition, Problems
from headway.tasks.random import TRAINING, Dice

tasks = st.builds(
    Addition,
    digits=st.integers(1, 6),
    base=st.sampled_from([2, 3, 10, 16]),
    operators=st.sampled_from(["+", "-", "+-"]),
    first=st.sampled_from(["most", "least"]),
    natural=st.booleans(),
)


def number(tokens: list[int], base: int) -> int:
    value = 0
    for token in tokens:
        value = value * base + token
    return value


def spoken(task: Addition, problems: Problems, row: int) -> tuple[int, int, int, list[int]]:
    """Returns a, b, Python's result, and the answer's digits with the most significant first."""
    source, answer = problems.source[row].tolist(), problems.answer[row].tolist()
    half = (len(source) - 1) // 2
    a, b = number(source[:half], task.base), number(source[half + 1 :], task.base)
    digits = [token for token in answer if token < task.base]
    return a, b, a + b if source[half] == task.plus else a - b, digits if task.first == "most" else digits[::-1]


@given(tasks, st.integers(0, 10**6), st.sampled_from(["default", "carry-heavy"]))
def test_answers_equal_pythons(task: Addition, seed: int, probe: str) -> None:
    problems = task.testing(seed, 8, probe=probe)
    for row in range(8):
        _, _, result, digits = spoken(task, problems, row)
        assert result >= 0
        assert number(digits, task.base) == result, task.show(
            *[t[row].tolist() for t in (problems.source, problems.answer)]
        )
        if task.natural:
            assert len(digits) == 1 or digits[0] != 0
            assert problems.scored is not None
            assert int(problems.scored[row].sum()) == len(digits) + 1
        else:
            assert len(digits) == task.digits + 1


@pytest.mark.parametrize("digits", [1000, 5000])
def test_sums_of_thousands_of_digits_equal_pythons(digits: int) -> None:
    sys.set_int_max_str_digits(0)
    task = Addition(digits=digits)
    for probe in task.probes:
        problems = task.testing(0, 3, probe=probe)
        for row in range(3):
            _, _, result, answer = spoken(task, problems, row)
            assert "".join(map(str, answer)) == str(result).zfill(digits + 1)


def test_every_three_digit_sum_is_listed_once_and_right() -> None:
    task = Addition()
    problems = task.listing(0, task.count or 0)
    assert len(problems) == task.count == 1_000_000
    weights = torch.tensor([1000, 100, 10, 1])
    a, b = problems.source[:, :3] @ weights[1:], problems.source[:, 4:] @ weights[1:]
    assert torch.equal(a * 1000 + b, torch.arange(1_000_000))
    assert torch.equal(problems.answer @ weights, a + b)


def test_every_difference_is_listed_once() -> None:
    task = Addition(digits=2, operators="+-")
    problems = task.listing(0, task.count or 0)
    assert len(problems) == 100 * 100 + 100 * 101 // 2
    assert len(problems.source.unique(dim=0)) == len(problems)


def test_a_listing_too_long_to_number_is_refused() -> None:
    with pytest.raises(HeadwayError, match="too many"):
        Addition(digits=40).listing(0, 1)


def test_strata_equal_a_plain_count() -> None:
    task = Addition()
    problems = task.testing(0, 2000, probe="carry-heavy")
    strata = task.strata(problems)
    for row in range(2000):
        a, b = problems.source[row, :3].tolist()[::-1], problems.source[row, 4:].tolist()[::-1]
        carry = carries = propagated = chain = longest = 0
        for x, y in zip(a, b, strict=True):
            passes_on = x + y == 9 and carry == 1
            chain = chain + 1 if passes_on else 1
            propagated += passes_on
            carry = int(x + y + carry >= 10)
            chain *= carry
            carries += carry
            longest = max(longest, chain)
        total = number(a[::-1], 10) + number(b[::-1], 10)
        expected = (carries, longest, propagated, len(str(total)))
        names = ("carries", "longest carry chain", "propagated carries", "answer length")
        assert tuple(int(strata[name][row]) for name in names) == expected


def test_held_out_problems_are_a_tenth_and_never_trained_on() -> None:
    task = Addition()
    every = task.listing(0, task.count or 0)
    held_out = task.held_out(every)
    assert abs(float(held_out.double().mean()) - 0.1) < 0.002
    for step in range(20):
        batch = task.training(Dice.of(TRAINING, seed=step % 3, step=step, rows=512, device="cpu"), hard=256, length=3)
        assert not task.held_out(batch).any()


def test_a_sum_and_its_mirror_are_held_out_together() -> None:
    task = Addition()
    problems = task.testing(0, 5000)
    a, operator, b = task.operands(problems)
    assert torch.equal(task.held_out(problems), task.held_out(task.problems(b, operator, a)))


def test_training_problems_are_uniform_over_those_not_held_out() -> None:
    """Redrawing held-out rows must not favour any problem: all one-digit sums are about equally frequent."""
    task = Addition(digits=1)
    rows = torch.arange(200_000)
    batch = task.training(Dice(TRAINING, rows * 0, rows // 1000, rows % 1000), hard=0, length=1)
    counts = (batch.source[:, 0] * 10 + batch.source[:, 2]).bincount(minlength=100)
    allowed = ~task.held_out(task.listing(0, 100))
    assert (counts[~allowed] == 0).all()
    expected = 200_000 / int(allowed.sum())
    assert (counts[allowed] - expected).abs().max() < 4.5 * expected**0.5


def test_the_same_problem_whatever_is_drawn_around_it() -> None:
    task = Addition()
    many = task.training(Dice.of(TRAINING, 5, 7, 256, "cpu"), hard=128, length=3)
    rows = torch.arange(512)
    ahead = task.training(Dice(TRAINING, rows * 0 + 5, 6 + rows // 256, rows % 256), hard=128, length=3)
    assert torch.equal(many.source, ahead.source[256:])


def test_half_of_the_carry_heavy_columns_propagate_a_carry() -> None:
    problems = Addition().testing(0, 20_000, probe="carry-heavy")
    nines = (problems.source[:, :3] + problems.source[:, 4:] == 9).double().mean()
    assert abs(float(nines) - 0.55) < 0.01


@pytest.mark.parametrize("wrong", [{"digits": 0}, {"base": 1}, {"base": 5000}, {"operators": "*"}])
def test_impossible_options_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(HeadwayError, match=next(iter(wrong))):
        Addition(**wrong)  # pyright: ignore[reportArgumentType]


def test_a_sum_is_read_as_a_person_writes_it() -> None:
    task = Addition(operators="+-")
    problem = task.read(" 12 − 7 ")
    assert task.show(problem.source[0].tolist(), problem.answer[0].tolist()) == "012 - 007 = 0005"
    assert Addition(base=2).read("11+1").answer.tolist() == [[0, 1, 0, 0]]
    for wrong in ("1234+1", "1*2", "", "1+2+3"):
        with pytest.raises(HeadwayError, match="is not a problem of this task"):
            task.read(wrong)
    with pytest.raises(HeadwayError, match="is not a problem of this task"):
        Addition(base=2).read("12+1")
