"""Aligned addition is addition with both operands written the other way round, and its tokens line up."""

from __future__ import annotations

import pytest
import torch

from headway.errors import HeadwayError
from headway.tasks import Addition, create_task
from headway.tasks.aligned import AlignedAddition

TASK, PLAIN = AlignedAddition(digits=4), Addition(digits=4, first="least")


@pytest.mark.parametrize("probe", ["default", "carry-heavy", "carry-chain"])
def test_problems_are_those_of_addition_with_reversed_operands(probe: str) -> None:
    mine, plain = (task.independent(3, 500, probe=probe) for task in (TASK, PLAIN))
    a, plus, b = mine.source.split((4, 1, 4), dim=1)
    assert torch.equal(torch.cat((a.flip(1), plus, b.flip(1)), dim=1), plain.source)
    assert torch.equal(mine.answer, plain.answer)
    place = 10 ** torch.arange(5)
    assert torch.equal((a * place[:4]).sum(1) + (b * place[:4]).sum(1), (mine.answer * place).sum(1))
    assert torch.equal(TASK.solve(mine.source).answer, mine.answer)
    assert torch.equal(TASK.identity(mine), PLAIN.identity(plain))


def test_an_answer_digit_is_equally_far_from_the_digits_of_its_column() -> None:
    layout = TASK.layout
    assert layout is not None
    for letter_starts in (0, 5):
        gaps = {9 + at - (letter_starts + layout.source[letter_starts:].index(at)) for at in range(4)}
        assert len(gaps) == 1


def test_text_reads_and_shows_most_significant_digit_first() -> None:
    problem = TASK.read("907+95")
    assert problem.source[0].tolist() == [7, 0, 9, 0, TASK.plus, 5, 9, 0, 0]
    assert TASK.show(problem.source[0].tolist(), problem.answer[0].tolist()) == "0907 + 0095 = 01002"


def test_only_sums_with_the_ones_first_are_aligned() -> None:
    for options in ({"operators": "+-"}, {"first": "most"}):
        with pytest.raises(HeadwayError, match="aligned-addition has only"):
            create_task("headway.tasks.aligned:AlignedAddition", options)
