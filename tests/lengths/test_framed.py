"""Sums between columns of zeros: the certificate is granted to the small adders, and to none with a broken border."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from simulated import Machine
from torch import Tensor

from headway.certify import certificate
from headway.certify.averages import AverageBound
from headway.certify.certificate import certify
from headway.certify.columns import contexts
from headway.certify.framed import COLUMN, DIGITS, INNER, find_leads
from headway.cli import main
from headway.models import AveragingDecoder, build_model
from headway.positions import Shape
from headway.positions.index import Coupled
from headway.positions.one_each import OneEach
from headway.subjects.own import Run, open_one
from headway.tasks import Addition, Problems
from headway.tasks.problems import Columns

SHIPPED = {"smallest-adder": 6, "smallest-adder-table": 15}


@pytest.fixture(scope="module", params=SHIPPED)
def run(request: pytest.FixtureRequest) -> Run:
    return open_one(f"pretrained:{request.param}")


@pytest.fixture
def model(run: Run) -> AveragingDecoder:
    found = copy.deepcopy(run.model)
    assert isinstance(found, AveragingDecoder)
    return found


def refusal(model: AveragingDecoder, run: Run) -> str:
    found = certify(model, run.task)
    assert not found.certified
    json.dumps(found.to_json(), allow_nan=False)
    return str(found.reason)


def test_the_shipped_adders_are_certified(run: Run) -> None:
    found = certify(run.model, run.task)
    assert found.certified
    assert (found.contexts, found.wrong, found.undecided) == (20_000, 0, 0)
    assert found.rounding < found.rounding_bound < 0.01 * found.smallest_margin
    assert found.assumes is not None
    assert found.assumes["ulps"] == {"tanh": 32}


@pytest.mark.parametrize(("name", "numbers"), SHIPPED.items())
def test_the_command_says_how_many_numbers(name: str, numbers: int, capsys: pytest.CaptureFixture) -> None:
    assert main(["certify", f"pretrained:{name}", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["certified"], found["parameters"], found["contexts"]) == (True, numbers, 20_000)


def test_untrained_models_are_wrong_nearly_everywhere(run: Run) -> None:
    reason = refusal(build_model(run.config.model, 5).eval(), run)  # pyright: ignore[reportArgumentType]
    assert "contexts are wrong, such as" in reason


def test_the_contexts_are_all_that_occur_in_right_sums(run: Run) -> None:
    """Every column of every sum of up to three digits, borders included, has one of the contexts."""
    local = run.task.local
    assert isinstance(local, Columns)
    known = set[tuple[int, ...]]()
    for problems in contexts(local, INNER, DIGITS, COLUMN):
        (a, _, b), answer = local.operands(problems), problems.answer
        seen = [each[:, -1 - at] for at in (COLUMN, COLUMN - 1) for each in (a, b)]
        known |= set(zip(*(each.tolist() for each in (*seen, answer[:, COLUMN - 1], answer[:, COLUMN])), strict=True))
    assert len(known) == 20_000
    for digits in (1, 2, 3):
        task = Addition(digits=digits, first="least")
        problems = task.listing(0, task.count or 0) if digits < 3 else task.testing(0, 20_000, length=3)
        (a, _, b), zero = task.operands(problems), torch.zeros_like(problems.answer[:, :1])
        a, b = (torch.cat((zero, each.flip(1), zero), dim=1) for each in (a, b))
        answer = torch.cat((zero, problems.answer), dim=1)
        for column in range(digits + 1):
            parts = (a[:, column + 1], b[:, column + 1], a[:, column], b[:, column], answer[:, column])
            found = set(zip(*(each.tolist() for each in (*parts, answer[:, column + 1])), strict=True))
            assert found <= known


# The four conditions on the borders, each broken, in weights that are right in every context


class NoZeros(AveragingDecoder):
    """Puts other digits at the ends of the operands."""

    def framed(self, source: Tensor, written: Tensor) -> Tensor:
        tokens = super().framed(source, written)
        tokens[:, 0] = 1
        return tokens


class OtherBeginning(AveragingDecoder):
    """Lets the answer begin with a given 1."""

    def framed(self, source: Tensor, written: Tensor) -> Tensor:
        tokens = super().framed(source, written)
        tokens[:, source.shape[1] + 4 :][:, :1] = 1
        return tokens


class Moved(Coupled):
    """Numbers answer tokens by the column after their own."""

    def numbers(self, source: Tensor, answers: int = 0, joined: bool = False) -> tuple[Tensor, Tensor]:
        problem, answer = super().numbers(source, answers, joined)
        return problem, answer + 1


class Wide(OneEach):
    """Shows the second head the plus sign and everything else of index 0 as well."""

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        bias = super().bias(query_index, key_index).expand(max(len(query_index), len(key_index)), -1, -1, -1).clone()
        bias[:, 1] = bias[:, 1].where(key_index[:, None] != 0, 0.0)
        return bias


class Both(OneEach):
    """Lets the second head see what the first one sees as well."""

    def of_distance(self, distance: Tensor) -> Tensor:
        seen = super().of_distance(distance)
        return torch.stack((seen[0], torch.where(distance == 1, 0.0, seen[1])))


def as_class(model: AveragingDecoder, kind: type[AveragingDecoder]) -> AveragingDecoder:
    changed = kind(model.config)
    changed.load_state_dict(model.state_dict())
    return changed.eval()


def with_index(model: AveragingDecoder) -> AveragingDecoder:
    model.index = Moved(10, least_first=True)
    return model


def with_positions(kind: type[OneEach]) -> Callable[[AveragingDecoder], AveragingDecoder]:
    def change(model: AveragingDecoder) -> AveragingDecoder:
        model.positions = kind(Shape(1, 2, 32, causal=True))
        return model

    return change


BROKEN: dict[str, tuple[Callable[[AveragingDecoder], AveragingDecoder], str]] = {
    "zeros": (lambda model: as_class(model, NoZeros), "the operands are not between a column of zeros"),
    "beginning": (lambda model: as_class(model, OtherBeginning), "the answer does not begin with a given 0"),
    "own column": (with_index, "answer tokens do not carry their own column"),
    "digits only": (with_positions(Wide), "a window of an answer token shows a token that is not a digit"),
    "one column": (with_positions(Both), "head 1 shows answer digit 0 other tokens than those of one column"),
}


@pytest.mark.parametrize("condition", BROKEN)
def test_each_condition_on_the_borders_is_read_from_what_the_model_applies(
    condition: str, model: AveragingDecoder, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of types, which would refuse these models first, are switched off."""
    change, reason = BROKEN[condition]
    broken = change(model)
    assert "not" in refusal(broken, run)  # also with those checks
    monkeypatch.setattr("headway.certify.certificate.check_parts", lambda model: None)
    monkeypatch.setitem(certificate.WINDOWS, "averaging", lambda model: model)
    assert reason in refusal(broken, run)


def test_models_and_windows_of_other_classes_are_refused(model: AveragingDecoder, run: Run) -> None:
    assert "NoZeros is not the model whose windows are known" in refusal(as_class(model, NoZeros), run)
    assert "its windows are those of Both" in refusal(with_positions(Both)(model), run)
    model.positions = OneEach(Shape(1, 2, 32), ahead=2)
    assert "head 0 does not see the distance 1 and no other" in refusal(model, run)


# Weights


@torch.no_grad()
def scaled(model: AveragingDecoder) -> None:
    model.nearest.scale.mul_(1.2)


@torch.no_grad()
def blunt(model: AveragingDecoder) -> None:
    """Makes the step of the carry a slope."""
    model.blocks[0].feed.into.weight *= 1e-3  # pyright: ignore


@torch.no_grad()
def infinite(model: AveragingDecoder) -> None:
    model.nearest.scale.add_(torch.inf)


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (scaled, "contexts are wrong"),
        (blunt, "contexts are wrong"),
        (infinite, "nearest.scale contains NaN, infinity"),
        (AveragingDecoder.double, "is float64; the bound on rounding is for float32"),
    ],
)
def test_spoiled_weights_are_refused(attack: Callable, reason: str, model: AveragingDecoder, run: Run) -> None:
    attack(model)
    assert reason in refusal(model, run)


def test_what_the_weights_do_not_say_is_refused(model: AveragingDecoder, run: Run) -> None:
    model.nearest.register_forward_hook(lambda module, given, output: output * 1.0001)  # pyright: ignore
    assert "nearest has a hook" in refusal(model, run)


def test_a_right_lead_within_its_bound_is_undecided(model: AveragingDecoder, run: Run) -> None:
    """The scale of the stream is moved until the closest context is right by half of what rounding may change."""
    local, scale, low, high = run.task.local, model.nearest.scale.item(), 1.0, 1.2
    assert isinstance(local, Columns)
    every = Problems.join([*contexts(local, INNER, DIGITS, COLUMN)])
    for _ in range(24):
        middle = (low + high) / 2
        with torch.no_grad():
            model.nearest.scale.fill_(scale * middle)
        leads = find_leads(AverageBound(model), every, local, COLUMN)
        close = (leads.value / leads.bound).amin() < 0.5
        low, high = (low, middle) if close else (middle, high)
    found = certify(model, run.task)
    assert not found.certified
    assert found.wrong == 0
    assert found.undecided > 0
    assert "rounding in float32 may change the answer" in str(found.reason)


# The bound on rounding


def simulate(machine: Machine, model: AveragingDecoder, columns: list[np.ndarray]) -> np.ndarray:
    """Returns the logits that a machine gives which rounds as badly as the theorem allows."""
    weights = {name: each.detach().double().numpy() for name, each in model.state_dict().items()}
    if "tokens.table" in weights:
        points = weights["tokens.table"]
    else:
        points = machine.fl(np.arange(10) + weights["tokens.shift"])
    a, b, c, d, w = (points[each] for each in columns)

    def mean(keys: list[np.ndarray]) -> np.ndarray:
        if machine.online:
            return machine.fl(machine.sum(keys) / len(keys))
        return machine.sum([machine.fl(machine.fl(np.float64(1 / len(keys))) * key) for key in keys])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return machine.linear(x, weights[name])

    z = np.stack((mean([a, b]), mean([c, d, w])), -1)
    x = machine.fl(w[:, None] + linear(z, "blocks.0.attentions.self.out.weight"))
    hidden = linear(x, "blocks.0.feed.into.weight")
    bent = machine.fl(np.tanh(hidden), ulps=32)
    x = machine.fl(x + linear(bent, "blocks.0.feed.out.weight"))
    away = machine.fl(machine.fl(x * weights["nearest.scale"]) - points)
    return -machine.fl(away * away)


@pytest.mark.parametrize("signs", ["plus", "minus", "alternating", "random"])
@pytest.mark.parametrize("online", [False, True])
def test_no_machine_within_the_assumptions_leaves_the_bound(
    signs: str, online: bool, model: AveragingDecoder, run: Run
) -> None:
    local, bound = run.task.local, AverageBound(model)
    assert isinstance(local, Columns)
    most = 0.0
    for problems in contexts(local, INNER, DIGITS, COLUMN):
        leads = find_leads(bound, problems, local, COLUMN)
        (a, _, b), answer = local.operands(problems), problems.answer
        columns = [each[:, -1 - at].numpy() for at in (COLUMN, COLUMN - 1) for each in (a, b)]
        machine = Machine(7, signs, online=online)
        logits = torch.from_numpy(simulate(machine, model, [*columns, answer[:, COLUMN - 1].numpy()]))
        right = answer[:, COLUMN, None]
        found = (logits.gather(1, right) - logits).scatter(1, right, torch.inf)
        share = ((found - leads.value).abs() / leads.bound).nan_to_num(0)
        most = max(most, float(share.max()))
    assert 0.001 < most <= 1
