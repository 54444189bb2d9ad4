"""Models and files made to deceive `headway certify` are refused, each with its reason."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from damaged import every_context
from torch import Tensor, nn

from headway.api import certify_run, certifying
from headway.certify.certificate import certify
from headway.certify.verdict import Verdict
from headway.cli import main
from headway.models import Classifier, Decoder, build_model
from headway.models.blocks import FeedForward, Tokens
from headway.positions import Shape
from headway.positions.window import Window
from headway.runs.seal import seal, strip_seal
from headway.subjects.naming import pretrained_folder
from headway.subjects.own import Run, open_one
from headway.tasks import Addition

FEED = "blocks.0.feed."


@pytest.fixture(scope="module")
def run() -> Run:
    return open_one("pretrained:certified-sorter")


@pytest.fixture
def model(run: Run) -> Classifier:
    found = copy.deepcopy(run.model).eval()
    assert isinstance(found, Classifier)
    return found


def refusal(model: nn.Module, run: Run) -> str:
    found = certify(model, run.task)  # pyright: ignore[reportArgumentType]
    assert not found.certified
    json.dumps(found.to_json(), allow_nan=False)
    return str(found.reason)


def widen(model: Classifier | Decoder, into: Tensor, bias: Tensor, out: Tensor) -> nn.Module:
    """Returns the model with more feed-forward units."""
    weights = model.state_dict()
    wide = build_model(replace(model.config, d_ff=model.config.d_ff + len(bias)))
    weights[f"{FEED}into.weight"] = torch.cat((weights[f"{FEED}into.weight"], into))
    weights[f"{FEED}into.bias"] = torch.cat((weights[f"{FEED}into.bias"], bias))
    weights[f"{FEED}out.weight"] = torch.cat((weights[f"{FEED}out.weight"], out), dim=1)
    wide.load_state_dict(weights)
    return wide.eval()


# In the weights


def test_units_that_cancel_only_in_exact_arithmetic(model: Classifier, run: Run) -> None:
    one = torch.ones(model.config.d_model, 1)
    into = model.blocks[0].feed.into.weight[:1].detach().repeat(2, 1)  # pyright: ignore
    spoiled = widen(model, into, torch.ones(2), torch.cat((1e6 * one, -1e6 * one), dim=1))
    assert "rounding in float32 may change the answer" in refusal(spoiled, run)


@torch.no_grad()
def near_tie(model: Classifier) -> None:
    model.head.bias.add_(16.0134697 - 1e-5)  # the sorted pair closest to an alarm


@torch.no_grad()
def wrong_pair(model: Classifier) -> None:
    model.tokens.weight[57] = model.tokens.weight[63]


@torch.no_grad()
def huge_embedding(model: Classifier) -> None:
    model.tokens.weight[:, 0] += 3e7  # the norm divides by it, and nothing is left of the other numbers


@torch.no_grad()
def huge_weight(model: Classifier) -> None:
    model.tokens.weight[3, 3] = 1e30


@torch.no_grad()
def denormal(model: Classifier) -> None:
    model.blocks[0].feed.out.weight.view(torch.int32)[0, 0] = 7  # pyright: ignore


@torch.no_grad()
def nan_path(model: Classifier) -> None:
    model.tokens.weight[99, 5] = torch.nan


@torch.no_grad()
def masking_weight(model: Classifier) -> None:
    model.positions.table[0, 0] = -torch.inf  # pyright: ignore


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (near_tie, "contexts rounding in float32 may change the answer, such as sorted"),
        (wrong_pair, "contexts are wrong"),
        (huge_embedding, "contexts"),
        (huge_weight, "tokens.weight contains NaN, infinity or a number above 2^30"),
        (denormal, "below 2^-126"),
        (nan_path, "tokens.weight contains NaN"),
        (masking_weight, "a bias inside the window is not finite"),
        (Classifier.double, "is float64; the bound on rounding is for float32"),
        (Classifier.bfloat16, "is bfloat16; the bound on rounding is for float32"),
    ],
)
def test_weights(attack: Callable[[Classifier], object], reason: str, model: Classifier, run: Run) -> None:
    attack(model)
    assert reason in refusal(model, run)


# In the parts of a model


class Leaking(Tokens):
    def forward(self, input: Tensor) -> Tensor:
        plain = super().forward(input)
        return plain + 1e-3 * plain.cumsum(1)


def leaking_tokens(model: Classifier) -> None:
    tokens = Leaking(model.config.vocabulary, model.config.d_model)
    tokens.load_state_dict(model.tokens.state_dict())
    model.tokens = tokens


def hook(model: Classifier) -> None:
    model.blocks[0].register_forward_hook(lambda module, given, found: found + (found.shape[1] > 1_000))


def own_forward(model: Classifier) -> None:
    plain = model.blocks[0].feed.forward  # pyright: ignore
    model.blocks[0].feed.forward = lambda x, *more: plain(x, *more) + (x.shape[1] > 1_000)  # pyright: ignore


def own_index(model: Classifier) -> None:
    plain = model.index.numbers
    model.index.numbers = lambda *given, **more: plain(*given, **more)  # pyright: ignore


def buffer(model: Classifier) -> None:
    model.norm.register_buffer("far", torch.zeros(1))


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (leaking_tokens, "tokens is a Leaking, not a part of Headway's models"),
        (hook, "blocks.0 has a hook"),
        (own_forward, "blocks.0.feed has its own forward in place of that of FeedForward"),
        (own_index, "the index has its own numbers"),
        (buffer, "norm has the buffer far"),
    ],
)
def test_parts(attack: Callable[[Classifier], None], reason: str, model: Classifier, run: Run) -> None:
    attack(model)
    assert reason in refusal(model, run)


@pytest.fixture
def global_hook() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, found: None)
    yield
    handle.remove()


def test_a_hook_of_all_modules(global_hook: None, model: Classifier, run: Run) -> None:
    assert "a hook is registered for all modules" in refusal(model, run)


def test_a_class_that_was_changed(model: Classifier, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x, *more: 1.01 * plain(self, x, *more))
    assert "computes something else than its weights and config say" in refusal(model, run)


def test_a_class_that_looks_past_the_masks(model: Classifier, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Tokens.forward

    def leak(self: Tokens, input: Tensor) -> Tensor:
        return plain(self, input) + 1e-3 * plain(self, input).cumsum(1)

    monkeypatch.setattr(Tokens, "forward", leak)
    assert "sees past the masks" in refusal(model, run)


# In a user's encoding


class OwnEmbed(Window):
    """Right up to 1,000 places."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 1, 0)
        self.embed = lambda x, index: x + (index.max() > 1_000)


class Remembers(Window):
    """Learns the length from a check that every pass makes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 1, 0)
        self.far = False

    def check_length(self, tokens: int) -> None:
        self.far = tokens > 1_000

    def of_distance(self, distance: Tensor) -> Tensor:
        return super().of_distance(distance) + self.far


class Counts(Window):
    """Weakens attention where many distances are asked for at once."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 1, 0)

    def of_distance(self, distance: Tensor) -> Tensor:
        return super().of_distance(distance) * (1.0 if distance.numel() < 3_000 or distance.ndim == 1 else 0.5)


class Holds(Window):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 1, 0)
        self.more = (torch.zeros(3), 1)[0]


class Buffered(Window):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 1, 0)
        self.register_buffer("offset", torch.zeros(3))


class Turns(Window):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 1, 0)

    def __getattribute__(self, name: str):
        return super().__getattribute__(name)


class Honest(Window):
    """A user's encoding with no secrets."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 1, 0)

    def of_distance(self, distance: Tensor) -> Tensor:
        return super().of_distance(distance)


def with_positions(model: Classifier, kind: type[Window]) -> Classifier:
    positions = kind(model.positions.shape)  # pyright: ignore
    positions.load_state_dict({**positions.state_dict(), **model.positions.state_dict()})
    model.positions = positions
    return model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OwnEmbed, "positions has its own embed in place of that of OwnEmbed"),
        (Remembers, "Remembers overrides check_length"),
        (Counts, "differs from that of the same neighbourhood in a short problem"),
        (Holds, "Holds holds the tensor more"),
        (Buffered, "positions has the buffer offset"),
        (Turns, "Turns overrides __getattribute__"),
    ],
)
def test_encodings(kind: type[Window], reason: str, model: Classifier, run: Run) -> None:
    assert reason in refusal(with_positions(model, kind), run)


def test_an_honest_encoding_of_a_user_is_certified_as_tried(model: Classifier, run: Run) -> None:
    found = certify(with_positions(model, Honest), run.task)
    assert found.certified, found.reason
    assert found.assumes is not None
    assert found.assumes["positions"] == "tried"


# In the files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(pretrained_folder("certified-sorter").path, tmp_path / "run")
    return tmp_path / "run"


def rewrite(folder: Path, **changed: object) -> None:
    path = folder / "certificate.json"
    content = strip_seal(json.loads(path.read_text()))
    kept = {key: value for key, value in {**content, **changed}.items() if value is not None or key not in changed}
    path.write_text(json.dumps(seal(kept)))


@pytest.fixture(scope="module")
def verdict(run: Run) -> Verdict:
    return certify(run.model, run.task)


@pytest.fixture
def found_once(verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certifying, "certify", lambda *given: verdict)


def test_a_certificate_of_the_old_kind(folder: Path, found_once: None, capsys) -> None:
    assert certify_run(folder)["certified"]
    rewrite(folder, rounding_bound=None, assumes=None)
    assert main(["certify", str(folder), "--quiet"]) == 1
    assert "is of the old kind: it claims exact arithmetic only" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "changed",
    [{"rounding_bound": 1e-6}, {"assumes": {"dtype": "bfloat16"}}, {"assumes": 7}, {"parameters": 1}],
)
def test_a_certificate_that_was_changed_and_sealed_again(
    folder: Path, found_once: None, changed: dict[str, object]
) -> None:
    rewrite(folder, **changed)
    found = certify_run(folder)
    assert not found["certified"]
    assert "differs from the new result" in found["reason"]


# In one context of 212,200


@pytest.mark.slow
def test_one_context_of_all() -> None:
    """Two units fire in one context only: they cancel, or one of them writes another digit."""
    run = open_one("pretrained:certified-adder")
    adder, task = run.model.eval(), run.task
    assert isinstance(adder, Decoder)
    assert isinstance(task, Addition)
    with torch.no_grad():
        streams = every_context(adder, task)[0]
        read = adder.blocks[0].norms["feed"](streams)  # pyright: ignore
        target = int((read - read.mean(0)).norm(dim=1).argmax())
        along = read @ read[target]
        others = along[torch.arange(len(along)) != target].max()
        gain = 100 / (along[target] - others)
        into, bias = gain * read[target : target + 1], (-gain * others)[None]
        one, rival = torch.ones(64, 1), (adder.unembed.weight[3] - adder.unembed.weight[0])[:, None]
        cancelling = widen(adder, into.repeat(2, 1), bias.repeat(2), torch.cat((1e6 * one, -1e6 * one), 1))
        wrong = widen(adder, into, bias, rival)
    assert "rounding in float32 may change the answer" in refusal(cancelling, run)
    assert "contexts are wrong" in refusal(wrong, run)
