"""A certificate is granted to models that are right everywhere, and to no others."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.api import add, certify_run, certifying
from headway.certify.certificate import certify
from headway.certify.columns import contexts, patterns
from headway.certify.verdict import Verdict
from headway.cli import main
from headway.models import Classifier, Decoder, build_model
from headway.models.blocks import Tokens
from headway.runs.config import Overrides
from headway.runs.seal import seal
from headway.subjects.naming import pretrained_folder
from headway.subjects.own import Run, open_one
from headway.tasks import Addition, Sortedness
from headway.tasks.problems import Columns
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner
from small import small_model

SMALL = small_model()


@pytest.fixture(scope="module")
def adder() -> Run:
    return open_one("pretrained:certified-adder")


def tiny(**asked: object) -> tuple[torch.nn.Module, Addition]:
    options = {"first": "least", "digits": 4, "shortest": 1}
    overrides = {"model": "decoder", "positions": "window+behind=1+ahead=0", "index": "coupled", **SMALL, **asked}
    config = plan("addition", Overrides(**overrides), 0, options)  # pyright: ignore[reportArgumentType]
    return build_model(config.model, 0).eval(), Addition(**options)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    run = open_one("pretrained:certified-sorter")
    return certify(run.model, run.task)


@pytest.mark.slow
def test_the_shipped_adder_is_certified_borders_included(adder: Run) -> None:
    found = certify(adder.model, adder.task)
    assert found.certified
    assert (found.contexts, found.wrong) == (212_200, 0)
    assert {p["pattern"]: p["contexts"] for p in found.to_json()["patterns"]} == {
        "a+0 b+0 operator start": 100,  # the first column
        "a-1 a+0 answer-1 b-1 b+0 start": 10_000,  # the second
        "a-1 a+0 answer-2 answer-1 b-1 b+0": 200_000,  # all others
        "a-1 answer-2 answer-1 b-1": 2_000,  # the last, which has only a carry
        "a-1 answer-1 b-1 start": 100,  # the last of numbers of one digit
    }
    assert found.rounding < found.rounding_bound < 0.5
    assert found.rounding_share < 0.05


def test_the_shipped_sorter_is_certified_and_says_under_which_conditions(verdict: Verdict) -> None:
    assert verdict.certified
    assert (verdict.contexts, verdict.wrong, verdict.undecided) == (15_150, 0, 0)
    assert 0 < verdict.rounding < verdict.rounding_bound < 0.1
    assumes = verdict.to_json()["assumes"]
    assert (assumes["dtype"], assumes["positions"], assumes["ulps"]) == ("float32", "known", {"exp": 32, "rsqrt": 4})
    assert assumes["versions"]["torch"] == torch.__version__
    assert len(assumes["code_sha256"]) == 64


@pytest.mark.parametrize("probe", ["default", "carry-chain"])
@pytest.mark.parametrize("length", [1, 2, 3, 21, 500])
def test_a_certified_model_is_right(adder: Run, probe: str, length: int) -> None:
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
    assert "'12x' is not a whole number" in capsys.readouterr().err


def test_every_content_of_a_neighbourhood_is_checked_once(adder: Run) -> None:
    """Compares with the slow way: all six tokens that an inner digit depends on, in every possible sum."""
    model, task = adder.model, adder.task
    assert isinstance(model, Decoder)
    assert isinstance(task, Addition)
    found = patterns(model, task)
    inner = next(pattern for pattern in found if not pattern.begins and len(pattern.columns) == 2)
    digits, column = found[inner]
    seen = set()
    assert isinstance(task.local, Columns)
    for problems in contexts(task.local, inner, digits, column):
        a, _, b = task.operands(problems)
        operands = [each[:, digits - 1 - column - at] for each in (a, b) for at in (0, -1)]
        answers = [problems.answer[:, column + at] for at in (-1, -2)]
        seen |= set(zip(*(each.tolist() for each in (*operands, *answers)), strict=True))
    expected = {
        (a1, a0, b1, b0, (a0 + b0 + carry) % 10, before)
        for a1, a0, b1, b0 in itertools.product(range(10), repeat=4)
        for carry in (0, 1)
        for before in range(10)
    }
    assert seen == expected


def test_an_untrained_model_is_refused_with_a_context_that_is_wrong() -> None:
    model, task = tiny()
    found = certify(model, task)  # pyright: ignore[reportArgumentType]
    assert not found.certified
    assert found.wrong > 0
    assert "contexts are wrong, such as a" in str(found.reason)
    assert " = " in str(found.offending)


@pytest.mark.slow
def test_an_error_in_the_last_column_only_is_found(adder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last column can only be 0 or 1: they are swapped."""
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


def test_a_hidden_global_term_is_found(adder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something adds the sum of all earlier tokens."""
    plain = Tokens.forward

    def leak(self: Tokens, input: torch.Tensor) -> torch.Tensor:
        return plain(self, input) + 1e-3 * plain(self, input).cumsum(1)

    monkeypatch.setattr(Tokens, "forward", leak)
    found = certify(adder.model, adder.task)
    assert not found.certified
    assert "sees past the masks" in str(found.reason)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"positions": "sinusoidal"}, "absolute position"),
        ({"positions": "learned"}, "absolute position"),
        ({"positions": "rope"}, "rotates queries and keys"),
        ({"positions": "fire"}, "not a bias that depends on the distance alone"),
        ({"positions": "kerple"}, "masks no key"),
        ({"positions": "clipped"}, "masks no key"),
        ({"index": "sequential"}, "use coupled"),
        ({"layers": 4}, "contexts of inner columns; at most 50,000,000"),
        ({"model": "encoder-decoder", "layers": 1}, "not one of the models"),
    ],
)
def test_models_without_bounded_neighbourhoods_are_refused_by_name(asked: dict[str, object], reason: str) -> None:
    model, task = tiny(**asked)
    found = certify(model, task)  # pyright: ignore[reportArgumentType]
    assert not found.certified
    assert reason in str(found.reason)


def test_scores_that_grow_with_the_length_are_refused() -> None:
    model, task = tiny()
    model.positions.with_log_length()  # pyright: ignore
    assert "log-length" in str(certify(model, task).reason)  # pyright: ignore[reportArgumentType]


def test_an_answer_most_significant_digit_first_is_refused() -> None:
    model, task = tiny()
    assert "least significant digit first" in str(certify(model, replace(task, first="most")).reason)  # pyright: ignore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(pretrained_folder("certified-sorter").path, tmp_path / "run")
    return tmp_path / "run"


def test_a_certificate_is_kept_checked_again_and_refused_when_altered(
    folder: Path, verdict: Verdict, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(certifying, "certify", lambda *given: verdict)  # found once is enough
    path = folder / "certificate.json"
    kept = path.read_text()
    path.unlink()
    assert certify_run(folder)["certified"]
    assert json.loads(path.read_text())["contexts"] == json.loads(kept)["contexts"]
    path.write_text(kept.replace('"wrong": 0', '"wrong": 0, "also": "this"'))
    assert main(["certify", str(folder), "--quiet"]) == 1
    assert "was altered after it was granted" in capsys.readouterr().out
    for changed in (
        {"smallest_margin": 99.0},
        {"contexts": 1},
        {"weights_sha256": "0"},
    ):  # sealed again, and still seen
        content = {key: value for key, value in json.loads(kept).items() if key != "sha256"}
        path.write_text(json.dumps(seal({**content, **changed})))
        assert main(["certify", str(folder), "--quiet"]) == 1
        assert "remove it and certify again" in capsys.readouterr().out
    path.write_text(kept)
    assert main(["certify", str(folder), "--quiet"]) == 0
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    assert main(["certify", str(folder), "--quiet"]) == 2
    assert "truncated or altered" in capsys.readouterr().err


def sorter(positions: str = "window+behind=1+ahead=0", pooling: str = "violation") -> Classifier:
    overrides = Overrides(positions=positions, pooling=pooling, **SMALL)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("sortedness", overrides, 0, {"values": 12}).model, 0).eval()
    assert isinstance(model, Classifier)
    return model


@pytest.fixture(scope="module")
def right_sorter() -> tuple[Classifier, Sortedness]:
    """Trains a small sorter of pairs of five values until it is right."""
    options = {"values": 5, "shortest": 3, "longest": 8, "pools": 0.3}
    wide = {**SMALL, "d_model": 32}
    window = "window+behind=1+ahead=0"
    overrides = Overrides(positions=window, pooling="violation", hard=0.5, **wide)  # pyright: ignore[reportArgumentType]
    config = plan("sortedness", overrides, 0, options)
    task = Sortedness(**options)
    learner = Learner(build_model(config.model, 0), config.training)
    batches = draw_batches(task, config.training, [0], None, 0, torch.device("cpu"))
    for _ in range(400):
        learner.step(next(batches))
    model = learner.model.eval()
    assert isinstance(model, Classifier)
    return model, task


def test_a_sorter_is_certified_and_then_right_on_every_sequence(right_sorter: tuple[Classifier, Sortedness]) -> None:
    model, task = right_sorter
    found = certify(model, task)
    assert found.certified, found.reason
    assert found.contexts == 5 + 2 * 15 + 10  # first places, sorted pairs inside and at the end, violations
    for length in range(2, 7):
        every = torch.cartesian_prod(*[torch.arange(5)] * length)
        with torch.no_grad():
            assert torch.equal(model(every).argmax(-1), task.solve(every).answer)


def test_a_sorter_with_one_wrong_pair_is_refused_by_that_pair(
    right_sorter: tuple[Classifier, Sortedness], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model, task), violations = right_sorter, Classifier.violations

    def report(self: Classifier, source: torch.Tensor) -> torch.Tensor:
        plain = violations(self, source)
        pair = (source[:, 1:] == 2) & (source[:, :-1] == 3)
        return torch.cat((plain[:, :1], plain[:, 1:].where(~pair, -1.0)), dim=1)

    def pool(self: Classifier, source: torch.Tensor) -> torch.Tensor:
        return torch.stack((report(self, source).amax(1), torch.zeros(len(source))), 1)[:, None]

    monkeypatch.setattr(Classifier, "violations", report)
    monkeypatch.setattr(Classifier, "forward", pool)
    found = certify(model, task)
    assert not found.certified
    assert found.wrong == 1
    assert "violation: 3 before 2" in str(found.reason)


def test_nan_logits_are_wrong(right_sorter: tuple[Classifier, Sortedness]) -> None:
    broken, sums = tiny()
    with torch.no_grad():
        broken.unembed.bias[3] = torch.nan  # pyright: ignore
    found = certify(broken, sums)  # pyright: ignore[reportArgumentType]
    assert not found.certified
    json.dumps(found.to_json(), allow_nan=False)
    sorter, task = right_sorter
    broken = copy.deepcopy(sorter)
    with torch.no_grad():
        broken.head.bias[0] = torch.nan
    found = certify(broken, task)
    assert not found.certified
    json.dumps(found.to_json(), allow_nan=False)


def test_a_window_with_a_gap_is_refused(adder: Run) -> None:
    """Some key exists only in long numbers, so no short number could reveal it."""
    config = replace(adder.config.model, positions="window+behind=8+ahead=0")
    model = build_model(config)
    assert isinstance(model, Decoder)
    table = torch.full((9, config.heads), -torch.inf)
    table[-2:] = adder.model.state_dict()["positions.table"]
    table[0] = 50.0
    model.load_state_dict({**adder.model.state_dict(), "positions.table": table})
    found = certify(model, adder.task)
    assert not found.certified
    assert "inside the window" in str(found.reason)


@pytest.mark.parametrize(
    ("positions", "pooling", "reason"),
    [
        ("window", "violation", "contexts; at most 50,000,000"),
        ("window+behind=1+ahead=0", "max", "with max pooling"),
        ("kerple", "violation", "masks no key"),
        ("none", "violation", "not a bias that depends on the distance"),
    ],
)
def test_sorters_that_cannot_be_enumerated_are_refused(positions: str, pooling: str, reason: str) -> None:
    found = certify(sorter(positions, pooling), Sortedness(values=100 if positions == "window" else 12))
    assert not found.certified
    assert reason in str(found.reason)
