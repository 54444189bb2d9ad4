"""Windows through two layers: a place depends on triples, and everything that can occur is still enumerated."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor

from headway.certify.certificate import certify
from headway.certify.leads import Leads
from headway.certify.neighbours import collect_reports, judge, places_of
from headway.certify.verdict import Verdict
from headway.models import Classifier, build_model
from headway.runs.config import Overrides
from headway.tasks import Sortedness
from headway.tasks.problems import Neighbours
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner
from small import small_model

VALUES = 4
OPTIONS = {"values": VALUES, "shortest": 3, "longest": 8, "pools": 0.3}
TASK = Sortedness(**OPTIONS)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def deep() -> Classifier:
    """Trains a small sorter with two layers, each of which sees one token behind, until it is right."""
    settings = {**small_model(32, layers=2), "pooling": "violation", "hard": 0.5}
    overrides = Overrides(positions="window+behind=1+ahead=0", **settings)  # pyright: ignore[reportArgumentType]
    config = plan("sortedness", overrides, 0, OPTIONS)
    learner = Learner(build_model(config.model, 0), config.training)
    batches = draw_batches(TASK, config.training, [0], None, 0, torch.device("cpu"))
    for _ in range(150):
        learner.step(next(batches))
    model = learner.model.eval()
    assert isinstance(model, Classifier)
    return model


def test_two_layers_are_certified_and_right_on_every_sequence(deep: Classifier) -> None:
    found = certify(deep, TASK)
    assert found.certified, found.reason
    ordered = [sum(all(a <= b for a, b in itertools.pairwise(each)) for each in product(width)) for width in (1, 2, 3)]
    # first, second, inside and last; and the pairs in descent
    assert found.contexts == ordered[0] + ordered[1] + 2 * ordered[2] + 6
    for length in range(2, 7):
        every = torch.tensor([*product(length)])
        with torch.no_grad():
            assert torch.equal(deep(every).argmax(-1), TASK.solve(every).answer)


def product(width: int) -> itertools.product[tuple[int, ...]]:
    return itertools.product(range(VALUES), repeat=width)


def test_an_untrained_model_of_two_layers_is_refused() -> None:
    settings = {**small_model(32, layers=2), "pooling": "violation"}
    overrides = Overrides(positions="window+behind=1+ahead=0", **settings)  # pyright: ignore[reportArgumentType]
    found = certify(build_model(plan("sortedness", overrides, 0, OPTIONS).model, 0), TASK)
    assert "contexts are wrong" in str(found.reason)


def verdict_of(report: object, behind: int, ahead: int) -> Verdict:
    """Judges a made-up sorter, whose place reports a number for each neighbourhood."""
    tables = {}
    for name, (before, after) in places_of(behind, ahead).items():
        width = before + 1 + after
        numbers = [float(report(each, before)) for each in product(width)]  # pyright: ignore
        tables[name] = torch.tensor(numbers).view([VALUES] * width)
    leads = {name: Leads(table.double(), torch.zeros_like(table, dtype=torch.double)) for name, table in tables.items()}
    verdict = Verdict()
    judge(verdict, tables, leads, Neighbours(VALUES, torch.le), behind, ahead)
    return verdict.settle()


def slow_answers(report: object, behind: int, ahead: int, longest: int = 6) -> bool:
    """Whether a made-up sorter is right on every sequence up to a length."""
    for length in range(1, longest + 1):
        for each in product(length):
            said = any(
                report(each[max(0, at - behind) : at + ahead + 1], min(at, behind)) > 0  # pyright: ignore
                for at in range(length)
            )
            if said == all(a <= b for a, b in itertools.pairwise(each)):
                return False
    return True


def by_left(each: tuple[int, ...], place: int) -> int:
    return 1 if place and each[place - 1] > each[place] else -1


def by_right(each: tuple[int, ...], place: int) -> int:
    return 1 if place + 1 < len(each) and each[place] > each[place + 1] else -1


def late(each: tuple[int, ...], place: int) -> int:
    """Says nothing about a violation where the two tokens before it are equal."""
    return 1 if place and each[place - 1] > each[place] and not (place > 1 and each[0] == each[1] == 2) else -1


def hasty(each: tuple[int, ...], place: int) -> int:
    """Takes three equal tokens for a violation."""
    return 1 if by_left(each, place) > 0 or (len(each) > 2 and set(each[:3]) == {3}) else -1


@pytest.mark.parametrize(("behind", "ahead"), [(1, 0), (0, 1), (1, 1), (2, 0), (2, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("report", [by_left, by_right, late, hasty])
def test_the_verdict_equals_all_sequences_one_by_one(report: object, behind: int, ahead: int) -> None:
    assert verdict_of(report, behind, ahead).certified == slow_answers(report, behind, ahead, 5)


def test_every_kind_of_place_is_listed_once_with_its_neighbours(deep: Classifier) -> None:
    seen = []

    def find(kind: str, tokens: Tensor, place: int) -> tuple[Leads, Leads]:
        seen.append((kind, tokens.shape[1], place))
        none = Leads(deep.violations(tokens)[:, place, None].double(), torch.ones(len(tokens), 1).double())
        return none, none

    with torch.no_grad():
        reports, _ = collect_reports(Verdict(), copy.deepcopy(deep), VALUES, 2, 0, find, None)
    assert seen == [("inside", 3, 2), ("first", 1, 0), ("last", 3, 2), ("1 before, 0 after", 2, 1)]
    assert reports["1 before, 0 after"].shape == (VALUES, VALUES)
