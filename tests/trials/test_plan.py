"""Axes expand to the same trials as plain loops."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.runs.config import Overrides
from headway.training.defaults import plan
from headway.trials.plan import Axis, Draws, Grid, Range, choose_best, config_of, pieces_of, trials_of
from headway.trials.trial import Study, Trial, Value

BASE: dict[str, Value] = {"task": "sortedness", "steps": 10}


def grid(*tables: dict[str, Any]) -> Grid:
    return Grid(tables)


def make_trials(*axes: Axis, base: dict[str, Value] = BASE) -> list[Trial]:
    return trials_of(axes, base)


def test_a_grid_is_every_combination_once() -> None:
    axes = grid({"positions": ["rope", "fire"], "seed": [0, 1, 2]}), grid({"layers": [1, 2]})
    expected = [
        plan("sortedness", Overrides(steps=10, positions=positions, layers=layers), seed)
        for positions, seed, layers in itertools.product(["rope", "fire"], [0, 1, 2], [1, 2])
    ]
    assert [trial.config for trial in make_trials(*axes)] == expected


def test_lists_of_settings_are_expanded_in_order() -> None:
    listed = make_trials(grid({"layers": [1]}, {"layers": [2], "seed": [0, 1]}))
    assert [(t.config.model.layers, t.config.seed) for t in listed] == [(1, 0), (2, 0), (2, 1)]


def test_random_draws_are_reproducible() -> None:
    values = {
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "layers": Range(1, 4),
        "batch": [8, 16],
    }
    one, same, other = ([trial.settings for trial in make_trials(Draws(values, 20, seed))] for seed in (7, 7, 8))
    assert one == same != other
    assert all(1e-4 <= float(each["learning_rate"] or 0) <= 1e-2 and each["layers"] in (1, 2, 3, 4) for each in one)
    assert len({each["layers"] for each in one}) > 1
    assert {type(each["layers"]) for each in one} == {int}


def test_identical_trials_occur_once_and_are_named_by_their_hash() -> None:
    trials = make_trials(grid({"layers": [2, 2, 4]}), base={**BASE, "positions": "rope"})
    assert len(trials) == 2
    assert trials[0].address.endswith(trials[0].config.digest[:20])
    assert len({trial.address for trial in trials}) == 2


def test_a_rate_multiplies_both_rates_as_the_length_study_does() -> None:
    plain, doubled = config_of({**BASE, "track": "tuned"}), config_of({**BASE, "track": "tuned", "rate": 2})
    assert doubled.training.learning_rate == 2 * plain.training.learning_rate
    assert doubled.training.muon_rate == 2 * plain.training.muon_rate
    assert plain.model.pooling == "max"


def test_two_axes_may_not_set_the_same_key() -> None:
    with pytest.raises(HeadwayError, match="two axes set layers"):
        make_trials(grid({"layers": [1]}), grid({"layers": [2]}))


def test_an_impossible_trial_is_named() -> None:
    with pytest.raises(HeadwayError, match=r"3 heads do not divide d_model 128.*heads = 3"):
        make_trials(grid({"heads": [2, 3]}))


def test_too_many_trials_are_refused_before_they_are_made() -> None:
    many = [grid({key: list(range(1, 1001))}) for key in ("steps", "batch", "seed")]
    with pytest.raises(HeadwayError, match="the axes make 1,000,000,000 trials"):
        make_trials(*many, base={"task": "sortedness"})


def test_trials_of_one_shape_share_a_piece() -> None:
    axes = grid({"layers": [1, 2], "seed": [0, 1, 2], "rate": [0.5, 1]})
    trials = make_trials(axes)
    pieces = pieces_of(trials, (Study("evaluate"),), most=4)
    assert [len(piece) for piece in pieces] == [4, 2, 4, 2]
    assert all(len({trial.config.model.layers for trial in piece.trials}) == 1 for piece in pieces)
    assert [len(piece) for piece in pieces_of(trials, (), most=1)] == [1] * 12


def test_for_each_combination_the_value_with_the_fewest_errors_over_all_seeds_is_chosen() -> None:
    trials = make_trials(grid({"layers": [1, 2], "rate": [0.5, 1, 2], "seed": [0, 1]}))
    counts = {0.5: (5, 5), 1: (1, 8), 2: (9, 0)}  # of the two seeds: 10, 9 and 9 together; the first of equals
    errors = {trial.address: counts[trial.settings["rate"]][trial.config.seed] for trial in trials}
    chosen = choose_best(trials, "rate", errors)
    assert [tuple(trial.settings.values()) for trial in chosen] == [(1, 1, 0), (1, 1, 1), (2, 1, 0), (2, 1, 1)]
    del errors[chosen[0].address]  # a trial of that value failed
    assert [trial.settings["rate"] for trial in choose_best(trials, "rate", errors)] == [2, 2, 1, 1]


def test_names_cannot_leave_the_folder() -> None:
    for name in ("../../x.py:Cls", "/etc/x.py:Cls", "a\0b", "..", "-rf", ".hidden"):
        config = plan("sortedness", Overrides(steps=1), 0)
        evil = type(config)(name, config.model, config.training, 0, config.options)
        assert Path(evil.address).name == evil.address
        assert not evil.address.startswith((".", "-"))
        assert "\0" not in evil.address
