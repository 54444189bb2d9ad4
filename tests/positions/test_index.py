"""Every index gives each token its number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.models import build_model
from headway.positions import build_index
from headway.runs.config import Overrides
from headway.tasks import Addition, Sortedness
from headway.training.defaults import plan


def test_the_sequential_index_continues_after_the_problem() -> None:
    index, source = build_index("sequential", None, False), torch.zeros(3, 5, dtype=torch.long)
    assert [part.tolist() for part in index.numbers(source, 2)] == [[[0, 1, 2, 3, 4]], [[0, 1]]]
    assert [part.tolist() for part in index.numbers(source, 2, joined=True)] == [[[0, 1, 2, 3, 4]], [[5, 6]]]


@settings(max_examples=30)
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


def test_a_randomized_index_depends_only_on_the_problem() -> None:
    """It is the same for a problem in any batch, and differs between problems."""
    index, source = build_index("randomized", None, False), Sortedness().testing(0, 50, length=12).source
    every, _ = index.numbers(source)
    alone, _ = index.numbers(source[7:8])
    assert torch.equal(every[7:8], alone)
    assert len(every.unique(dim=0)) == 50
    assert 900 < float(every.double().mean()) < 1150  # of 0 to 2,047


def test_a_randomized_index_has_no_more_numbers_than_its_range() -> None:
    index, source = build_index("randomized+range=16", None, False), torch.zeros(1, 17, dtype=torch.long)
    with pytest.raises(HeadwayError, match=r"range=16 has fewer than 17 numbers.*at least 17"):
        index.numbers(source)


@pytest.mark.parametrize("first", ["most", "least"])
def test_coupled_columns_share_a_number(first: str) -> None:
    task = Addition(first=first)
    problems = task.testing(0, 4, length=5)
    source, answer = build_index("coupled", task.base, first == "least").numbers(problems.source, 6)
    assert source[0].tolist() == [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1]
    assert answer[0].tolist() == ([1, 2, 3, 4, 5, 6] if first == "least" else [6, 5, 4, 3, 2, 1])


@pytest.mark.parametrize("first", ["most", "least"])
def test_with_own_columns_answers_lag_by_one(first: str) -> None:
    """As published, an answer token is numbered by its own column, not by the one predicted after it."""
    task, least = Addition(first=first), first == "least"
    problems = task.testing(0, 4, length=5)
    _, ahead = build_index("coupled", task.base, least).numbers(problems.source, 6)
    source, own = build_index("coupled+own=true", task.base, least).numbers(problems.source, 6)
    assert own[:, 0].tolist() == [0]
    assert torch.equal(own[:, 1:], ahead[:, :-1])
    assert source[0].tolist() == [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("name", ["coupled+range=20", "coupled+range=20+own=true", "abacus+range=20"])
def test_with_a_range_counting_begins_at_any_offset_that_fits(name: str) -> None:
    task, index = Addition(first="least"), build_index(name, 10, True)
    plain = build_index(name.replace("+range=20", ""), 10, True)
    problems = task.testing(0, 400, length=5)
    for got, base in zip(index.numbers(problems.source, 6), plain.numbers(problems.source, 6), strict=True):
        moved = got - base
        begin = moved[:, -1:]  # of a digit
        kept = (base == 0) & (index.name == "abacus")  # what is no digit stays 0
        assert torch.equal(moved, torch.where(kept, 0, begin))
        assert sorted(begin.unique().tolist()) == list(range(13))
        assert int(got.max()) < 20
    alone, _ = index.numbers(problems.source[7:8], 6)
    assert torch.equal(alone, index.numbers(problems.source, 6)[0][7:8])
    with_answers, without = index.numbers(problems.source, 6)[0], index.numbers(problems.source)[0]
    assert torch.equal(with_answers, without)  # an encoder, which knows no answer, counts from the same place


def test_a_range_limits_the_number_of_columns() -> None:
    index = build_index("coupled+range=8", 10, True)
    for digits in range(1, 10):
        source = Addition().testing(0, 3, length=digits).source
        if digits <= 5:
            index.check_length(0, digits + 1)
            assert int(index.numbers(source, digits + 1)[1].max()) < 8
            continue
        refused = rf"no numbers for {digits + 1} columns; .* more than {digits + 2}"
        with pytest.raises(HeadwayError, match=refused):
            index.numbers(source, digits + 1)
        with pytest.raises(HeadwayError, match=refused):
            index.check_length(0, digits + 1)
    with pytest.raises(HeadwayError, match="it must be above 0"):
        build_index("abacus+range=-1", 10, True)
    for name in ("abacus+range=7", "coupled+range=7"):
        with pytest.raises(HeadwayError, match="range=7 has no numbers for 6 columns"):  # before anything is trained
            plan("addition", Overrides(index=name), 0, {"digits": 5})


@pytest.mark.parametrize("first", ["least", "most"])
@pytest.mark.parametrize("name", ["coupled", "coupled+own=true", "abacus", "sequential"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_the_rows_reported_as_trained_are_those_with_gradients(kind: str, name: str, first: str) -> None:
    options = {"digits": 5, "shortest": 1, "first": first}
    overrides = Overrides(model=kind, positions="learned+rows=40", index=name, d_model=32, heads=4, d_ff=64)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("addition", overrides, 0, options).model, seed=0)
    problems = Addition(**options).testing(0, 8)  # pyright: ignore[reportArgumentType]
    model(problems.source, problems.answer).sum().backward()
    for part, parameter in model.named_parameters():
        if part.endswith("positions.table"):
            assert parameter.grad is not None
            touched = parameter.grad.abs().sum(1).nonzero()[:, 0].tolist()
            shape = model.get_submodule(part.removesuffix(".table")).shape
            assert max(touched) + 1 == shape.trained, part  # pyright: ignore[reportAttributeAccessIssue]


def test_an_impossible_index_is_refused() -> None:
    with pytest.raises(HeadwayError, match="this task has no columns"):
        plan("sortedness", Overrides(index="coupled"), 0)
    with pytest.raises(HeadwayError, match="coupled has range=0, own=false"):
        plan("addition", Overrides(index="coupled+offset=3"), 0)
    with pytest.raises(HeadwayError, match="none uses no index; leave out `index=randomized`"):
        plan("sortedness", Overrides(positions="none", index="randomized"), 0)
    with pytest.raises(HeadwayError, match=r"randomized has range=2048"):
        plan("sortedness", Overrides(index="randomized+size=3"), 0)


@pytest.mark.parametrize("index", ["sequential", "randomized+range=64", "coupled", "abacus+range=64"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "t5", "kerple+log-length", "fire", "transformer-xl"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_decoding_token_by_token_gives_the_same_verdict(kind: str, positions: str, index: str) -> None:
    """With any index and encoding, the position of a token does not depend on later tokens."""
    task = Addition(digits=4)
    overrides = Overrides(model=kind, positions=positions, index=index, d_model=32, heads=4, d_ff=64)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("addition", overrides, 0, {"digits": 4}).model, seed=3).double().eval()
    problems = task.testing(0, 30)
    with torch.no_grad():
        written = model.generate(problems.source, 5)  # pyright: ignore[reportCallIssue]
        again = model(problems.source, written).argmax(-1)
    assert torch.equal(written, again)
