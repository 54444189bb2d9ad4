"""Contrast pairs differ in exactly what they claim, and in nothing else that matters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.causes.flips import Flips
from headway.causes.roles import Roles
from headway.causes.sufficient import Controls, Lost, Necessity, RandomSets, SufficientSet
from headway.evaluation.intervals import Interval
from headway.models import Head, Site
from headway.tasks import Addition, Sortedness, create_task
from headway.tasks.contrasts import change, sum_contrasts

RECIPES = Path(__file__).parents[2] / "recipes"


def numbers(task: Addition, problems) -> list[tuple[list[int], list[int]]]:
    a, _, b = task.operands(problems)
    return [(x[::-1], y[::-1]) for x, y in zip(a.tolist(), b.tolist(), strict=True)]  # least significant first


def carry_into(a: list[int], b: list[int], column: int, base: int) -> int:
    carry = 0
    for place in range(column):
        carry = (a[place] + b[place] + carry) // base
    return carry


TASKS = [
    Addition(), Addition(digits=4, base=7, first="least"), Addition(operators="+-"), Addition(natural=True),
    Addition(digits=4, natural=True, first="least"), Addition(digits=2, base=7, natural=True),
]  # fmt: skip


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_each_kind_of_pair_is_what_it_says(task: Addition) -> None:
    found = sum_contrasts(task, 40, seed=3)
    written = task.digits - 1 - task.natural if task.first == "most" else 0
    assert len(found) == 2 * (3 * task.digits - 1) + 4 * written
    for contrast in found:
        k, n = contrast.column, task.digits
        assert len(contrast.clean) == len(contrast.other) == 40
        both = zip(numbers(task, contrast.clean), numbers(task, contrast.other), strict=True)
        digits = contrast.clean.answer[:, contrast.place], contrast.other.answer[:, contrast.place]
        assert bool(((digits[0] == digits[1]) == contrast.placebo).all())
        changed = []
        for (a, b), (a2, b2) in both:
            differing = [place for place in range(n) if (a[place], b[place]) != (a2[place], b2[place])]
            assert len(differing) == 1
            assert (a == a2) != (b == b2)  # one digit of one number
            changed.append(a != a2)
            into, into2 = ([carry_into(*pair, c, task.base) for c in range(n + 1)] for pair in ((a, b), (a2, b2)))
            if contrast.placebo:
                assert into == into2
                assert k not in differing
            elif contrast.kind == "operand":
                assert differing == [k]
                assert into == into2
            else:
                assert differing == [k - 2 if contrast.kind == "propagated" else k - 1]
                assert (into[k], into2[k]) == (0, 1)
                if contrast.kind != "written":
                    assert into[k + 1 :] == into2[k + 1 :]
            if contrast.kind == "propagated":
                assert a[k - 1] + b[k - 1] == task.base - 1
            if contrast.kind == "written":
                assert a[k] + b[k] == task.base - 1
        assert sum(changed) == 20


def test_written_digits_tell_the_carry_and_each_half_of_the_input_can_be_swapped() -> None:
    """The digit before the one in question differs, which it does in no other kind of pair."""
    found = [each for each in sum_contrasts(Addition(), 60, 0) if not each.placebo]
    assert len({each.name for each in found}) == len(found) == 14
    for each in found:
        before = slice(0, each.place)
        same = (each.clean.answer[:, before] == each.other.answer[:, before]).all(1)
        assert bool((~same).all()) if each.kind == "written" else bool(same.all())
        donors = each.donors(each.clean, each.other)
        assert torch.equal(donors.source, (each.clean if each.swap == "prefix" else each.other).source)
        assert torch.equal(donors.answer, (each.clean if each.swap == "source" else each.other).answer)
    swaps = [each.name for each in found if each.kind == "written"]
    assert swaps == [f"written {column}{swap}" for column in (1, 2) for swap in ("", " prefix", " source")]


def test_a_placebo_changes_its_digit_by_as_much() -> None:
    found = [each for each in sum_contrasts(Addition(), 200, 0) if each.swap == "both"]
    for real, placebo in zip(found[::2], found[1::2], strict=True):
        assert (real.name, real.placebo, placebo.placebo) == (placebo.name, False, True)
        sizes = [change(each.clean, each.other).double().mean() for each in (real, placebo)]
        assert abs(sizes[0] - sizes[1]) < 0.3
        if real.kind != "operand":
            changed = (placebo.clean.source != placebo.other.source).any(0).nonzero()[:, 0].tolist()
            column = real.column - (2 if real.kind == "propagated" else 1)
            assert changed == [2 - column, 6 - column]


def test_contrasts_impossible_in_a_base_are_left_out() -> None:
    assert {each.kind for each in sum_contrasts(Addition(base=2), 20, 0)} == {"operand"}
    assert [each.name for each in sum_contrasts(Addition(digits=1), 20, 0)] == ["operand 0", "carry 1", "carry 1"]
    assert len(sum_contrasts(Addition(base=100, digits=2), 30, 9 * 10**16)) == 14


def test_pairs_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    one, two, other = (sum_contrasts(Addition(), 20, seed)[0].clean.source for seed in (1, 1, 2))
    assert one.equal(two)
    assert not one.equal(other)


def test_sums_without_pairs_have_no_contrasts() -> None:
    assert Addition(operators="-").contrasts is None
    assert Sortedness().contrasts is None


def test_any_task_that_can_solve_has_pairs_that_differ_in_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RECIPES)
    task = create_task("reversal:Reversal", {"longest": 5})
    assert task.contrasts is not None
    found = task.contrasts(30, 3, torch.device("cpu"))
    assert [(each.name, each.placebo) for each in found] == [(f"token {n}", p) for n in range(5) for p in (False, True)]
    for each in found:
        changed = (each.clean.source != each.other.source).nonzero()
        assert changed[:, 0].tolist() == list(range(30))  # one token of each
        assert (set(changed[:, 1].tolist()) == {4 - each.place}) != each.placebo
        assert bool((each.clean.answer[:, each.place] == each.other.answer[:, each.place]).all()) == each.placebo
        for side in (each.clean, each.other):
            assert torch.equal(side.answer, side.source.flip(1))


def test_a_users_contrasts_have_a_sentence() -> None:
    head = Head(Site("decoder", 0, "cross"), 1)
    some, gone = RandomSets(7, 0.02, 0.1, 0.0), Lost(0.0, Interval(0.9, 1.0))
    controls = Controls(40, 1.0, some, RandomSets(0), some, Interval(0.0, 0.08))
    necessity = Necessity({str(head): gone}, 1.0, gone)
    real, placebo = Flips(400, 200, True, (200, 200)), Flips(0, 200)
    found = SufficientSet("token 2", (head,), real, placebo, (head,), real, controls, necessity)
    assert Roles((), (found,)).findings() == [
        "For token 2 to reach answer token 2, decoder.0.cross.1 suffices: patching flips the answer in 100.0% of 200 "
        "pairs, both ways (placebo pairs 0.0%; 7 random sets of as many heads 2.0%, at most 10.0%, no other "
        "set of as many heads from the same sites, sets without any of its heads 2.0%); without any one of them at "
        "most 0.0%, with all other heads patched 0.0% (all heads: 100.0%)."
    ]
    for broken in (
        replace(found, controls=replace(controls, all_heads=RandomSets(7, 0.9, 1.0, 0.0))),  # others flip as many
        replace(found, controls=replace(controls, same_sites=RandomSets(5, 0.9, 1.0, 0.0))),
        replace(found, controls=replace(controls, interval_without=Interval(0.0, 0.11))),
        replace(found, necessity=replace(necessity, one_left_out={str(head): Lost(1.0, Interval(-0.02, 0.02))})),
        replace(found, necessity=replace(necessity, all_others=Lost(1.0, Interval(-0.02, 0.02)))),
        replace(found, placebo=Flips(20, 200)),
        replace(found, real=Flips(240, 200, True, (200, 40))),  # one way only
        replace(found, controls=None),
    ):
        assert found.sound
        assert not broken.sound
        assert Roles((), (broken,)).findings() == []


@pytest.mark.parametrize("first", ["most", "least"])
def test_the_columns_of_a_natural_answer_are_those_of_its_digits(first: str) -> None:
    """Every token that stands for a digit of column k is that digit of the sum, and the end belongs to no column."""
    task = Addition(natural=True, first=first)
    assert task.layout is not None
    assert task.layout.columns_of is not None
    for a, b in ((1, 2), (0, 0), (457, 968), (999, 1), (90, 9)):
        problem = task.read(f"{a}+{b}")
        columns, tokens = task.layout.columns_of(problem)[0].tolist(), problem.answer[0].tolist()
        digits = {column: token for column, token in zip(columns, tokens, strict=True) if column >= 0}
        assert sum(digit * 10**column for column, digit in digits.items()) == a + b
        assert len(digits) == len(str(a + b))
        assert {token for column, token in zip(columns, tokens, strict=True) if column < 0} == {task.end}


@pytest.mark.parametrize("first", ["most", "least"])
def test_pairs_of_natural_answers_ask_about_one_place(first: str) -> None:
    """The digit in question is that of its column in both problems; at the top, a carry against none."""
    task = Addition(natural=True, first=first)
    for contrast in sum_contrasts(task, 30, 1):
        columns = [task.answer_columns(side)[:, contrast.place] for side in (contrast.clean, contrast.other)]
        if contrast.column < task.digits:
            assert all(bool((each == contrast.column).all()) for each in columns)
        else:
            assert bool((columns[1] == contrast.column).all())
