"""A certificate is granted to models that are right everywhere, and to no others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.api import add, certify_run
from headway.cli import main
from headway.lengths.certificate import certify
from headway.models import Classifier, Decoder, build_model
from headway.models.blocks import Tokens
from headway.runs.config import Wishes
from headway.subjects.own import Run, open_one, pretrained_folder
from headway.tasks import Addition, Sortedness
from headway.training.defaults import plan

SMALL = {"d_model": 16, "heads": 2, "d_ff": 32, "layers": 1}


@pytest.fixture(scope="module")
def adder() -> Run:
    return open_one("pretrained:certified-adder")


def tiny(**asked: object) -> tuple[torch.nn.Module, Addition]:
    options = {"first": "least", "digits": 4, "shortest": 1}
    wishes = {"model": "decoder", "positions": "window+behind=1+ahead=0", "index": "coupled", **SMALL, **asked}
    config = plan("addition", Wishes(**wishes), 0, options)  # pyright: ignore[reportArgumentType]
    return build_model(config.model, 0).eval(), Addition(**options)  # pyright: ignore[reportArgumentType]


def test_the_shipped_adder_is_certified_borders_included(adder: Run) -> None:
    found = certify(adder.model, adder.task)
    assert found.certified
    assert (found.contexts, found.wrong) == (212_200, 0)
    assert {p["pattern"]: p["contexts"] for p in found.patterns} == {
        "a+0 b+0 operator start": 100,  # the first column
        "a-1 a+0 answer-1 b-1 b+0 start": 10_000,  # the second
        "a-1 a+0 answer-2 answer-1 b-1 b+0": 200_000,  # all others
        "a-1 answer-2 answer-1 b-1": 2_000,  # the last, which has only a carry
        "a-1 answer-1 b-1 start": 100,  # the last of numbers of one digit
    }
    assert found.smallest_margin > 10 * found.rounding


@pytest.mark.parametrize("probe", ["default", "carry-chain"])
@pytest.mark.parametrize("length", [1, 2, 3, 21, 500])
def test_what_is_certified_is_right(adder: Run, probe: str, length: int) -> None:
    problems = adder.task.testing(0, 40, probe=probe, length=length)
    with torch.no_grad():
        assert torch.equal(adder.model(problems.source, problems.answer).argmax(-1), problems.answer)


@pytest.mark.parametrize(("a", "b"), [("0", "0"), ("7", "5"), ("9" * 26, "1"), ("123", "98765432109876543210")])
def test_sums_of_any_length_are_decoded(a: str, b: str, capsys) -> None:
    assert add(a, b)["answer"] == str(int(a) + int(b))
    assert main(["add", a, b, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["right"] is True
    assert main(["add", a, "-5"]) == 2
    assert main(["add", a, "12x"]) == 2
    assert "'12x' is no whole number" in capsys.readouterr().err


def test_an_untrained_model_is_refused_with_a_context_that_is_wrong() -> None:
    model, task = tiny()
    found = certify(model, task)  # pyright: ignore[reportArgumentType]
    assert not found.certified
    assert found.wrong > 0
    assert "contexts are wrong, such as a" in str(found.reason)
    assert " = " in str(found.offending)


def test_one_that_is_wrong_at_the_last_column_only_is_found(adder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a carry is all that can be written: 0 and 1 are exchanged."""
    inner = Decoder.forward

    def spoiled(self, source, answer, gates=None, trace=None):
        logits = inner(self, source, answer, gates, trace).clone()
        logits[:, -1, :2] = logits[:, -1, :2].flip(-1)
        return logits

    monkeypatch.setattr(Decoder, "forward", spoiled)
    found = certify(adder.model, adder.task)
    assert not found.certified
    assert found.wrong == 2_000 + 100
    assert str(found.offending).startswith("a-1 answer")


class Leaking(Tokens):
    """The sum of all tokens before, added past the masks."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plain = super().forward(input)
        return plain + 1e-3 * plain.cumsum(1)


def test_a_hidden_global_term_is_found(adder: Run) -> None:
    leaking = build_model(adder.config.model)
    leaking.tokens = Leaking(adder.config.model.vocabulary, adder.config.model.d_model)
    leaking.load_state_dict(adder.model.state_dict())
    found = certify(leaking.eval(), adder.task)
    assert not found.certified
    assert "sees past the masks" in str(found.reason)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"positions": "sinusoidal"}, "absolute place"),
        ({"positions": "learned"}, "absolute place"),
        ({"positions": "rope"}, "turns queries and keys"),
        ({"positions": "fire"}, "no bias of the distance alone"),
        ({"positions": "window+behind=1+ahead=0+log-length"}, "log-length"),
        ({"positions": "kerple"}, "grow with the length"),
        ({"positions": "clipped"}, "grow with the length"),
        ({"index": "sequential"}, "only coupled does"),
        ({"layers": 4}, "contexts; at most 50,000,000"),
        ({"model": "encoder-decoder", "layers": 1}, "not one of the models"),
    ],
)
def test_models_without_bounded_neighbourhoods_are_refused_by_name(asked: dict[str, object], reason: str) -> None:
    model, task = tiny(**asked)
    found = certify(model, task)  # pyright: ignore[reportArgumentType]
    assert not found.certified
    assert reason in str(found.reason)


def test_an_answer_most_significant_digit_first_is_refused() -> None:
    model, task = tiny()
    assert "least significant digit first" in str(certify(model, replace(task, first="most")).reason)  # pyright: ignore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(pretrained_folder("certified-adder").path, tmp_path / "run")
    return tmp_path / "run"


def test_a_certificate_is_kept_checked_again_and_refused_when_altered(folder: Path, capsys) -> None:
    path = folder / "certificate.json"
    kept = path.read_text()
    path.unlink()
    assert certify_run(folder)["certified"]
    assert json.loads(path.read_text())["contexts"] == json.loads(kept)["contexts"]
    path.write_text(kept.replace('"wrong": 0', '"wrong": 0, "also": "this"'))
    assert main(["certify", str(folder), "--quiet"]) == 1
    assert "was altered after it was granted" in capsys.readouterr().out
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    assert main(["certify", str(folder), "--quiet"]) == 2
    assert "truncated or altered" in capsys.readouterr().err


def sorter(positions: str = "window+behind=1+ahead=0", pooling: str = "violation") -> Classifier:
    wishes = Wishes(positions=positions, pooling=pooling, **SMALL)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("sortedness", wishes, 0, {"values": 12}).model, 0).eval()
    assert isinstance(model, Classifier)
    return model


class Told(torch.nn.Module):
    """Says at each place what a rule says of the token before and the token itself."""

    def __init__(self, rule) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        before = torch.cat((torch.full_like(source[:, :1], -1), source[:, :-1]), dim=1)
        return self.rule(before, source).double()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("right", 0), ("misses one pair", 1), ("alarm on a tie", 1), ("alarm at the first", 1)],
)
def test_sortedness_is_certified_pair_by_pair(name: str, wrong: int) -> None:
    def rule(before: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        report = torch.where(before > here, 3.0, -3.0)
        if name == "misses one pair":
            report = torch.where((before == 7) & (here == 6), -1.0, report)
        if name == "alarm on a tie":
            report = torch.where((before == 5) & (here == 5), 1.0, report)
        if name == "alarm at the first":
            report = torch.where((before == -1) & (here == 11), 1.0, report)
        return report

    model = sorter()
    model.violations = Told(rule).forward  # pyright: ignore[reportAttributeAccessIssue]
    found = certify(model, Sortedness(values=12))
    assert found.certified == (wrong == 0)
    assert (found.wrong > 0) == (wrong > 0)
    if name == "misses one pair":
        assert "violation: 7 before 6" in str(found.reason)


def test_a_violation_may_be_reported_at_either_end_but_in_every_context() -> None:
    """A window of one on either side: the left end reports unless what stands before it is 0, the right end unless
    what stands behind it is 0. In the context 0 x > y 0 nobody does."""

    def said(source: torch.Tensor, excuse: bool) -> torch.Tensor:
        inf = torch.full_like(source[:, :1], 99)
        before, behind = torch.cat((-inf, source[:, :-1]), dim=1), torch.cat((source[:, 1:], inf), dim=1)
        left = (source > behind) & ~((before == 0) & excuse)
        right = (before > source) & ~((behind == 0) & excuse) & (before != -99)
        return torch.where(left | right, 2.0, -2.0).double()

    model = sorter("window+behind=1+ahead=1")
    model.violations = lambda source: said(source, False)  # pyright: ignore
    assert certify(model, Sortedness(values=12)).certified
    model.violations = lambda source: said(source, True)  # pyright: ignore
    found = certify(model, Sortedness(values=12))
    assert not found.certified
    assert "violation:" in str(found.reason)


@pytest.mark.parametrize(
    ("positions", "pooling", "reason"),
    [
        ("window", "violation", "contexts; at most"),
        ("window+behind=1+ahead=0", "max", "with max pooling"),
        ("kerple", "violation", "without bound"),
        ("none", "violation", "no bias of the distance"),
    ],
)
def test_sorters_that_cannot_be_gone_through_are_refused(positions: str, pooling: str, reason: str) -> None:
    found = certify(sorter(positions, pooling), Sortedness(values=100 if positions == "window" else 12))
    assert not found.certified
    assert reason in str(found.reason)
