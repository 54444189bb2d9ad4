"""Which number each token gets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.models import build_model
from headway.positions import build_index
from headway.runs.config import Wishes
from headway.tasks import Addition, Sortedness
from headway.training.defaults import plan


def test_sequential_goes_on_where_the_problem_ends() -> None:
    index, source = build_index("sequential", None, False), torch.zeros(3, 5, dtype=torch.long)
    assert [part.tolist() for part in index.numbers(source, 2)] == [[[0, 1, 2, 3, 4]], [[0, 1]]]
    assert [part.tolist() for part in index.numbers(source, 2, joined=True)] == [[[0, 1, 2, 3, 4]], [[5, 6]]]


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 40), st.integers(0, 5), st.booleans(), st.integers(0, 10**6))
def test_a_randomized_index_is_sorted_and_unique(tokens: int, answers: int, joined: bool, seed: int) -> None:
    index = build_index("randomized+range=64", None, False)
    source = Sortedness().testing(seed, 6, length=tokens).source
    first, second = index.numbers(source, answers, joined)
    parts = [torch.cat((first, second), dim=1)] if joined else [first, second]
    for part in parts:
        assert bool((part[:, 1:] > part[:, :-1]).all())
        assert int(part.min() if part.numel() else 0) >= 0
        assert int(part.max() if part.numel() else 0) < 64


def test_a_randomized_index_is_the_problems_own() -> None:
    """The same for a problem whoever stands beside it, and another for another problem."""
    index, source = build_index("randomized", None, False), Sortedness().testing(0, 50, length=12).source
    every, _ = index.numbers(source)
    alone, _ = index.numbers(source[7:8])
    assert torch.equal(every[7:8], alone)
    assert len(every.unique(dim=0)) == 50
    assert 900 < float(every.double().mean()) < 1150  # of 0 to 2,047


def test_a_randomized_index_has_no_more_numbers_than_its_range() -> None:
    index, source = build_index("randomized+range=16", None, False), torch.zeros(1, 17, dtype=torch.long)
    with pytest.raises(HeadwayError, match=r"range=16 has no 17 different numbers.*at least 17"):
        index.numbers(source)


@pytest.mark.parametrize("first", ["most", "least"])
def test_coupled_columns_share_a_number(first: str) -> None:
    task = Addition(first=first)
    problems = task.testing(0, 4, length=5)
    source, answer = build_index("coupled", task.base, first == "least").numbers(problems.source, 6)
    assert source[0].tolist() == [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1]
    assert answer[0].tolist() == ([1, 2, 3, 4, 5, 6] if first == "least" else [6, 5, 4, 3, 2, 1])


def test_an_index_that_cannot_be_is_refused() -> None:
    with pytest.raises(HeadwayError, match="this task has no columns"):
        plan("sortedness", Wishes(index="coupled"), 0)
    with pytest.raises(HeadwayError, match="none uses no index; leave out --index randomized"):
        plan("sortedness", Wishes(positions="none", index="randomized"), 0)
    with pytest.raises(HeadwayError, match=r"randomized has range=2048"):
        plan("sortedness", Wishes(index="randomized+size=3"), 0)


@pytest.mark.parametrize("index", ["sequential", "randomized+range=64", "coupled"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "t5", "kerple+log-length", "fire", "transformer-xl"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_decoding_token_by_token_gives_the_same_verdict(kind: str, positions: str, index: str) -> None:
    """With any index and encoding: what a token is told does not depend on what comes after it."""
    task = Addition(digits=4)
    wishes = Wishes(model=kind, positions=positions, index=index, d_model=32, heads=4, d_ff=64)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("addition", wishes, 0, {"digits": 4}).model, seed=3).double().eval()
    problems = task.testing(0, 30)
    with torch.no_grad():
        written = model.generate(problems.source, 5)  # pyright: ignore[reportCallIssue]
        again = model(problems.source, written).argmax(-1)
    assert torch.equal(written, again)
