"""Intervals of answers that share prompts, gains on the same questions, effective lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from headway.lengths.language.cells import RecallCell, gain
from headway.lengths.language.effective import NONE, find_effective, has_learned


def cell(right: Tensor, length: int = 64, cure: str = NONE, **more: float | str) -> RecallCell:
    depth = torch.arange(right.shape[1]).expand(right.shape) % 2
    return RecallCell("key-value", length, cure, 1.0, 0.1, right, depth, **more)  # pyright: ignore[reportArgumentType]


def simulate(rows: int, questions: int, share: float, spread: float, generator: Generator) -> Tensor:
    """Draws prompts whose accuracies differ by `spread`."""
    own = share + spread * (torch.randint(2, (rows, 1), generator=generator) * 2 - 1)
    return torch.rand(rows, questions, generator=generator) < own


@pytest.mark.parametrize("spread", [0.0, 0.25])
def test_intervals_cover_the_truth_also_where_prompts_differ(spread: float) -> None:
    generator = Generator().manual_seed(0)
    covered = naive = 0
    for _ in range(300):
        right = simulate(16, 20, 0.6, spread, generator)
        bounds = cell(right).interval()
        assert bounds is not None
        covered += bounds.low <= 0.6 <= bounds.high
        half = 1.96 * (0.24 / right.numel()) ** 0.5
        naive += abs(float(right.double().mean()) - 0.6) <= half
    assert covered >= 0.9 * 300
    assert naive >= 0.9 * 300 or spread > 0  # treating the answers as independent does not hold up
    assert naive < 0.7 * 300 or spread == 0


def test_a_gain_is_counted_on_the_same_questions() -> None:
    generator = Generator().manual_seed(1)
    before = torch.rand(8, 16, generator=generator) < 0.5
    after = before | (torch.rand(8, 16, generator=generator) < 0.3)
    won = gain(cell(before), cell(after))
    assert won is not None
    assert won.low > 0
    assert gain(cell(before), cell(before)).low <= 0 <= gain(cell(before), cell(before)).high  # pyright: ignore[reportOptionalMemberAccess]
    assert gain(cell(before), cell(after, cannot_run="no")) is None


def all_right(length: int, wrong: int = 0) -> RecallCell:
    right = torch.ones(16, 20, dtype=torch.bool)
    right[:, : round(wrong / 16)] = False
    return cell(right, length)


def effective(cells: list[RecallCell], tests: int = 4) -> tuple[bool, int | None]:
    found = find_effective({("key-value", each.length, NONE): each for each in cells}, "key-value", NONE,
                           [each.length for each in cells], tests)  # fmt: skip
    return found.learned, found.length


def test_the_effective_length_ends_where_the_lower_end_falls_below() -> None:
    assert effective([all_right(64), all_right(128), all_right(256)]) == (True, 256)
    assert effective([all_right(64), all_right(128, 80), all_right(256)]) == (True, 64)
    few = torch.ones(2, 10, dtype=torch.bool)  # all right, and yet too few to show 0.9
    assert effective([cell(few, 64), cell(few, 128)]) == (True, 0)
    stopped = cell(torch.zeros(4, 4, dtype=torch.bool), 128, cannot_run="IndexError")
    assert effective([all_right(64), stopped, all_right(256)]) == (True, 64)


def test_what_is_not_learned_has_no_effective_length() -> None:
    assert effective([all_right(64, 100), all_right(128)]) == (False, None)
    constant = cell(torch.ones(4, 4, dtype=torch.bool), commonest=7, given=0.97, wanted=0.5)
    assert constant.constant
    assert not has_learned(constant)


def test_depths_are_counted_apart() -> None:
    right = torch.tensor([[True, False], [True, False], [True, True]])
    assert cell(right).at_depth(0)[:2] == (3, 1.0)
    assert cell(right).at_depth(1)[:2] == (3, pytest.approx(1 / 3))
