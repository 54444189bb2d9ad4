"""The signal of each encoding, and which of its parameters were never trained."""

from __future__ import annotations

import math

import pytest
import torch

from headway.errors import HeadwayError
from headway.models import build_model
from headway.positions import POSITIONS, Shape, find_index, find_positions
from headway.positions.sinusoidal import sinusoids
from headway.runs.config import Overrides
from headway.tasks import create_task
from headway.training.defaults import plan

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


def test_learned_reports_its_untrained_rows() -> None:
    learned = find_positions("learned")(SHAPE)
    assert list(learned.untrained(13)) == [10, 11, 12]
    assert list(learned.untrained(10)) == []
    assert list(find_positions("learned-clamped")(SHAPE).untrained(13)) == []


def test_learned_refuses_sequences_longer_than_its_table() -> None:
    with pytest.raises(HeadwayError, match=r"512 rows.*512 to 599"):
        find_positions("learned")(SHAPE).check_length(600)
    for task, options, kind in (("sortedness", {}, None), ("addition", {}, "decoder"), ("addition", {}, None)):
        overrides = Overrides(model=kind, positions="learned+rows=20")  # pyright: ignore[reportArgumentType]
        model = build_model(plan(task, overrides, 0, options).model)
        problems = create_task(task, options).testing(0, 2, length=40)
        with pytest.raises(HeadwayError, match=r"20 rows"):
            model(problems.source, problems.answer)


def test_learned_clamped_repeats_the_last_trained_row() -> None:
    clamped = find_positions("learned-clamped")(SHAPE)
    index = torch.arange(700)[None]
    signal = clamped.embed(torch.zeros(1, 700, 16), index)[0]
    assert torch.equal(signal[9:], signal[9].expand(691, 16))
    assert not torch.equal(signal[8], signal[9])


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(HeadwayError, match="did you mean 'sinusoidal'"):
        find_positions("sinusodal")
    with pytest.raises(HeadwayError, match="did you mean 'sequential'"):
        find_index("sequentiel")


def test_a_window_on_a_share_of_the_heads_leaves_the_others_free() -> None:
    window = find_positions("window+behind=1+ahead=0+share=0.5")(SHAPE)
    assert window.offsets is None  # some head sees every key
    bias = window.bias(torch.arange(6)[None], torch.arange(6)[None])
    assert bias is not None
    distance = torch.arange(6)[None] - torch.arange(6)[:, None]
    outside = (distance < -1) | (distance > 0)
    assert bool((bias[0, :2, outside] == -torch.inf).all())
    assert bool((bias[0, 2:, outside] == 0).all())
    assert bool(bias[0, :, ~outside].isfinite().all())
    with pytest.raises(HeadwayError, match=r"window\+share=2: it must be above 0"):
        find_positions("window+share=2.0")(SHAPE)
