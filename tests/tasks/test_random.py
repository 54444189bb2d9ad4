"""The generator is the published one, and a row's numbers depend on nothing but the row."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.tasks.random import TESTING, TRAINING, Dice, below, digest, one_in_ten, philox


def words(*values: int) -> Any:
    return tuple(torch.tensor([value]) for value in values)


def test_philox_gives_the_known_answers_of_random123() -> None:
    cases = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]
    for counter, key, expected in cases:
        assert tuple(int(word) for word in philox(words(*counter), words(*key))) == expected


@given(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(2, 300), st.integers(1, 40))
def test_a_row_does_not_depend_on_its_neighbours(seed: int, step: int, rows: int, count: int) -> None:
    dice = Dice.of(TRAINING, seed, step, rows, "cpu")
    whole = dice.words(count)
    assert torch.equal(whole[rows // 2 :], dice[torch.arange(rows // 2, rows)].words(count))
    assert torch.equal(whole, dice.words(count + 5)[:, :count])


def test_seed_step_row_stream_and_attempt_each_change_the_numbers() -> None:
    def drawn(stream: int = TRAINING, seed: int = 1, step: int = 2, row: int = 3, attempt: int = 0) -> tuple[int, ...]:
        dice = Dice(stream, torch.tensor([seed]), torch.tensor([step]), torch.tensor([row]), attempt)
        return tuple(dice.words(4)[0].tolist())

    changed = [drawn(), drawn(stream=TESTING), drawn(seed=2), drawn(step=3), drawn(row=4), drawn(attempt=1)]
    changed += [drawn(seed=1 + 2**32), drawn(step=2 + 2**32)]
    assert len(set(changed)) == len(changed)


def test_numbers_below_a_limit_are_uniform_and_reach_both_ends() -> None:
    drawn = below(Dice.of(TRAINING, 0, 0, 25_000, "cpu").words(4), 10)
    counts = drawn.flatten().bincount(minlength=10)
    assert len(counts) == 10
    assert (counts - 10_000).abs().max() < 4.5 * (100_000 * 0.09) ** 0.5  # 4.5 standard deviations


def test_a_tenth_is_held_out_and_every_token_matters() -> None:
    numbers = torch.arange(100_000)
    tokens = torch.stack((numbers // 1000, numbers % 1000), dim=1)
    share = float(one_in_ten(digest(tokens)).double().mean())
    assert abs(share - 0.1) < 4.5 * (0.09 / 100_000) ** 0.5
    assert len(digest(tokens).unique()) == 100_000
