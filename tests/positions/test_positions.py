"""What each encoding adds, and which of its signals training never touched."""

from __future__ import annotations

import math

import pytest
import torch

from headway.errors import HeadwayError
from headway.positions import POSITIONS, Shape, find_index, find_positions
from headway.positions.sinusoidal import sinusoids

SHAPE = Shape(d_model=16, heads=4, trained=10)


def test_sinusoids_are_the_published_formula() -> None:
    signal = sinusoids(torch.arange(300), 16)
    for position in (0, 1, 7, 299):
        for pair in range(8):
            angle = position / 10_000 ** (2 * pair / 16)
            assert math.isclose(float(signal[position, 2 * pair]), math.sin(angle), abs_tol=1e-12)
            assert math.isclose(float(signal[position, 2 * pair + 1]), math.cos(angle), abs_tol=1e-12)


def test_none_adds_nothing_anywhere() -> None:
    for name in ("none", "none-causal"):
        positions = find_positions(name)(SHAPE)
        x = torch.randn(2, 5, 16)
        index = torch.arange(5)[None]
        assert positions.embed(x, index) is x
        assert positions.bias(index, index) is None
        assert positions.temper(index[0]) is None
        assert list(positions.parameters()) == []


def test_only_none_causal_hides_what_lies_ahead() -> None:
    assert [name for name, kind in POSITIONS.items() if kind.causal] == ["none-causal"]


def test_learned_knows_the_rows_that_were_never_trained() -> None:
    learned = find_positions("learned")(SHAPE)
    assert list(learned.untrained(13)) == [10, 11, 12]
    assert list(learned.untrained(10)) == []
    assert list(find_positions("learned-clamped")(SHAPE).untrained(13)) == []


def test_learned_refuses_what_its_table_has_no_row_for() -> None:
    learned = find_positions("learned")(SHAPE)
    index = torch.arange(600)[None]
    with pytest.raises(HeadwayError, match=r"512 rows.*512 to 599"):
        learned.embed(torch.zeros(1, 600, 16), index)


def test_learned_clamped_repeats_the_last_trained_row() -> None:
    clamped = find_positions("learned-clamped")(SHAPE)
    index = torch.arange(700)[None]
    signal = clamped.embed(torch.zeros(1, 700, 16), index)[0]
    assert torch.equal(signal[9:], signal[9].expand(691, 16))
    assert not torch.equal(signal[8], signal[9])


def test_unknown_names_come_with_the_nearest() -> None:
    with pytest.raises(HeadwayError, match="did you mean 'sinusoidal'"):
        find_positions("sinusodal")
    with pytest.raises(HeadwayError, match="did you mean 'sequential'"):
        find_index("sequentiel")
