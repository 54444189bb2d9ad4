"""Pairs are permutations, labels follow from the sequences, and each probe matches its name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.tasks import Sortedness
from headway.tasks.random import TRAINING, Dice

PROBES = Sortedness.probes


@given(st.integers(0, 10**6), st.integers(2, 60), st.sampled_from(PROBES))
def test_labels_are_true_and_pairs_are_permutations(seed: int, length: int, probe: str) -> None:
    problems = Sortedness().testing(seed, 20, probe=probe, length=length)
    for row, (sequence, label) in enumerate(zip(problems.source.tolist(), problems.answer[:, 0].tolist(), strict=True)):
        assert label == int(sequence == sorted(sequence))
        assert sorted(sequence) == problems.source[row - row % 2].tolist()


@pytest.mark.parametrize("length", [8, 16, 64])
@pytest.mark.parametrize("probe", PROBES)
def test_probes_are_nearly_balanced(probe: str, length: int) -> None:
    positive = Sortedness().testing(0, 4000, probe=probe, length=length).answer.double().mean()
    assert 0.5 <= float(positive) <= 0.56


def test_one_inversion_has_exactly_one_descent_between_neighbours() -> None:
    problems = Sortedness().testing(0, 4000, probe="one-inversion", length=12)
    before, after = problems.source[0::2], problems.source[1::2]
    assert ((after[:, 1:] < after[:, :-1]).sum(1) == 1).all()
    moved = before != after
    assert (moved.sum(1) == 2).all()
    places = moved.int().argmax(1)
    assert moved.gather(1, places[:, None] + 1).all()
    assert (places.bincount(minlength=11) > 100).all()  # anywhere in the sequence


def test_descending_is_the_reverse() -> None:
    problems = Sortedness().testing(0, 100, probe="descending", length=9)
    assert torch.equal(problems.source[0::2], problems.source[1::2].flip(1))


def test_ties_has_at_most_four_values() -> None:
    problems = Sortedness().testing(0, 400, probe="ties", length=40)
    assert max(len(set(row)) for row in problems.source.tolist()) <= 4


def test_default_negatives_have_a_third_of_their_length_in_swaps() -> None:
    problems = Sortedness().testing(0, 2000, length=15)
    moved = (problems.source[0::2] != problems.source[1::2]).sum(1)
    assert int(moved.max()) == 10  # five swaps of two places


def test_training_never_shows_a_held_out_pair() -> None:
    task = Sortedness()
    lengths = set()
    for step in range(30):
        length = task.training_length(step)
        lengths.add(length)
        batch = task.training(Dice.of(TRAINING, 3, step, 128, "cpu"), hard=0, length=length)
        assert batch.source.shape == (128, length)
        assert not task.held_out(batch).any()
        assert torch.equal(batch.source[0::2], batch.source[1::2].sort(1).values)
    assert lengths <= set(range(8, 17))
    assert len(lengths) > 6


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(HeadwayError, match="shortest"):
        Sortedness(shortest=20)
    with pytest.raises(HeadwayError, match="at least 2"):
        Sortedness().testing(0, 4, length=1)


def test_training_may_use_fewer_values_while_tests_are_unchanged() -> None:
    plain, varied = Sortedness(), Sortedness(ranges=0.5, pools=0.25)
    assert torch.equal(plain.testing(0, 100).source, varied.testing(0, 100).source)
    dice = Dice.of(TRAINING, 0, 0, 4000, "cpu")
    few = torch.tensor([len(row.unique()) for row in varied.training(dice, 0, 16).source])
    usual = torch.tensor([len(row.unique()) for row in plain.training(dice, 0, 16).source])
    assert 0.2 < float((few <= 4).double().mean()) < 0.35  # a quarter from pools of four, and some narrow ranges
    assert float((usual <= 8).double().mean()) < 0.01
    assert int(varied.training(dice, 0, 16).source.max()) <= 99


@pytest.mark.parametrize("negatives", ["swaps", "shuffle", "descending"])
def test_disorder_is_made_as_asked_and_pairs_hold_the_same_values(negatives: str) -> None:
    problems = Sortedness(negatives=negatives).testing(0, 400)
    ordered, disordered = problems.source[0::2], problems.source[1::2]
    assert torch.equal(ordered, disordered.sort(1).values)
    assert bool((ordered.flip(1) == disordered).all()) == (negatives == "descending")
    broken = (disordered[:, 1:] < disordered[:, :-1]).double().mean()
    low, high = {"swaps": (0.3, 0.42), "shuffle": (0.45, 0.52), "descending": (0.85, 1.0)}[negatives]
    assert low < float(broken) < high
    with pytest.raises(HeadwayError, match="did you mean 'shuffle'"):
        Sortedness(negatives="shufle")
    with pytest.raises(HeadwayError, match="together at most 1"):
        Sortedness(ranges=0.8, pools=0.4)


def test_a_sequence_is_read_as_a_person_writes_it() -> None:
    task = Sortedness()
    assert task.read("3, 7, 7, 40").answer.tolist() == [[1]]
    assert task.read("3 7 5").answer.tolist() == [[0]]
    with pytest.raises(HeadwayError, match="is not a sequence of this task"):
        task.read("3 70000")
