"""The bound on rounding holds on machines that round as badly as it allows, and on this one in every way it can run."""

from __future__ import annotations

import copy
import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from simulated import NORMS, Machine, numpy, run_block
from torch import Tensor

from headway.certify.fading import Nearby
from headway.certify.leads import RoundingBound, bias_of
from headway.certify.outside import NEAR, read_fading
from headway.certify.rounding import normalise
from headway.models import Classifier, Decoder, build_model
from headway.positions.alibi_learned import AlibiLearned
from headway.runs.config import Overrides
from headway.tasks import Addition
from headway.training.defaults import plan

SMALL = {"d_model": 12, "heads": 2, "d_ff": 16}
Sequences = tuple[Tensor, Tensor, int, Tensor | None]  # tokens, bias, place, right answers


def build(task: str, seed: int, scale: float, **asked: object) -> Decoder | Classifier:
    """Builds an untrained model whose weights are drawn anew, `scale` times as large as usual."""
    options = {"first": "least", "digits": 4, "shortest": 1, "base": 4} if task == "addition" else {"values": 6}
    kind = {"model": "decoder", "index": "coupled"} if task == "addition" else {"pooling": "violation"}
    overrides = {"positions": "window+behind=1+ahead=0", **kind, **SMALL, **asked}
    model = build_model(plan(task, Overrides(**overrides), 0, options).model, seed).eval()  # pyright: ignore
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=dice)
            if "norm" in name and name.endswith("weight"):
                drawn = 1 + 0.3 * drawn
            weight.copy_(
                drawn * scale * (weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.3 if "bias" in name else 1)
            )
    assert isinstance(model, Decoder | Classifier)
    return model


def sequences_of(model: Decoder | Classifier) -> Sequences:
    dice = torch.Generator().manual_seed(7)
    if isinstance(model, Classifier):
        tokens = torch.randint(6, (24, 5), generator=dice)
        return tokens, bias_of(model.stack("encoder", tokens[:1]).order), 2, None
    problems = Addition(first="least", digits=4, shortest=1, base=4).testing(0, 24, length=4)
    written = model.shift_right(problems.answer) + model.config.vocabulary
    order = model.order(problems.source[:1], 5)
    place = problems.source.shape[1] + 2
    return torch.cat((problems.source, written), 1), bias_of(order), place, problems.answer[:, 2]


def bound_of(model: Decoder | Classifier) -> RoundingBound:
    if isinstance(model, Decoder):
        return RoundingBound(model, model.unembed, model.segments)
    return RoundingBound(model, model.head, rivals=False)


def simulate(model: Decoder | Classifier, machine: Machine, sequences: Sequences) -> np.ndarray:
    """Returns the leads that a machine gives."""
    tokens, bias, place, right = sequences
    rows = numpy(model.tokens.weight)
    if isinstance(model, Decoder):
        assert model.segments is not None
        rows = np.concatenate([machine.fl(rows + each) for each in numpy(model.segments)])
    x = rows[tokens.numpy()]
    for block in model.blocks:
        x = run_block(machine, block, x, numpy(bias))  # pyright: ignore[reportArgumentType]
    x = x[:, place]
    if isinstance(model.norm, torch.nn.LayerNorm):
        x = machine.normalise(x, numpy(model.norm.weight), numpy(model.norm.bias), model.norm.eps)
    readout = model.unembed if isinstance(model, Decoder) else model.head
    logits = machine.linear(x, numpy(readout.weight), numpy(readout.bias))
    if right is None:
        return logits
    rows = np.arange(len(logits))[:, None]
    return logits[rows, right.numpy()[:, None]] - logits


MODELS = [
    ("addition", 1.0, {}),
    ("addition", 4.0, {"layers": 1}),
    ("addition", 1.0, {"norm": "post", "layers": 1}),
    ("addition", 0.6, {"layers": 2}),
    ("addition", 0.6, {"layers": 2, "norm": "post"}),
    ("addition", 1.0, {"layers": 1, "positions": "window+behind=2+ahead=1"}),
    ("sortedness", 1.0, {"layers": 1}),
    ("sortedness", 3.0, {"layers": 1, "positions": "window+behind=1+ahead=1", "norm": "post"}),
]


@pytest.mark.parametrize(("task", "scale", "asked"), MODELS)
def test_no_machine_within_the_assumptions_exceeds_the_bound(task: str, scale: float, asked: dict[str, object]) -> None:
    model = build(task, 3, scale, **{"layers": 1, **asked})
    sequences = sequences_of(model)
    leads = bound_of(model)(*sequences)
    value, bound = leads.value.numpy(), leads.bound.numpy()
    finite = np.isfinite(bound) & (bound > 0)
    assert finite.any()
    largest = 0.0
    for number, (norm, signs) in enumerate(itertools.product(NORMS, ("plus", "minus", "random", "alternating"))):
        machine = Machine(number, signs, norm, online=bool(number % 2))
        found = simulate(model, machine, sequences)
        off = np.abs(np.where(np.isfinite(value), found - value, 0))
        assert (off <= bound).all(), (norm, signs)
        largest = max(largest, float((off / np.where(finite, bound, np.inf)).max()))
    assert largest > 1e-3  # a bound a thousand times as small would be refuted


@pytest.mark.parametrize("slope", [9.0, 20.0])
def test_no_machine_exceeds_the_bound_where_no_key_is_masked(slope: float) -> None:
    """Whole sequences of 14 tokens run on the machine; only the pair at places 6 and 7 is known to the bound."""
    model = build("sortedness", 3, 1.0, layers=1, positions="alibi-learned")
    positions = model.positions
    assert isinstance(positions, AlibiLearned)
    with torch.no_grad():
        positions.log_slope.copy_(np.log(slope) + 0.03 * positions.log_slope)
        positions.centre.copy_(-0.5 + 0.03 * positions.centre)
    tokens, place = torch.randint(6, (24, 14), generator=torch.Generator().manual_seed(7)), 7
    tokens[:4, :6], tokens[4:8, 8:] = 2, 5  # many equal tokens on one side
    fading = read_fading(positions)
    leads = Nearby(model, fading, 1, 0)("inside", tokens[:, 6:8], 1)[1]  # pyright: ignore[reportArgumentType]
    value, bound = leads.value.numpy(), leads.bound.numpy()
    assert np.isfinite(bound).all()
    at = torch.arange(14)
    exact, largest = copy.deepcopy(positions).double().of_distance(at - at[:, None]).detach(), 0.0
    for number, (norm, signs) in enumerate(itertools.product(NORMS, ("plus", "minus", "random", "alternating"))):
        machine, sign = Machine(number, signs, norm, online=bool(number % 2)), 1 - 2 * (number % 2)
        found = simulate(model, machine, (tokens, exact * (1 + sign * NEAR * (at % 2)), place, None))
        off = np.abs(found - value)
        assert (off <= bound).all(), (norm, signs)
        largest = max(largest, float((off / bound).max()))
    assert largest > 1e-3


@pytest.mark.parametrize("signs", ["plus", "minus", "random", "alternating"])
@pytest.mark.parametrize("norm", NORMS)
def test_norms_of_far_off_numbers_stay_within_their_bound(norm: str, signs: str) -> None:
    """Means far from 0, outliers and constants are where variances lose digits."""
    dice, largest = np.random.default_rng(5), 0.0
    for n in (3, 16, 64):
        near, outlier = dice.normal(size=(4, n)), np.zeros((1, n))
        outlier[0, -1] = 1e3
        x = np.concatenate((near, near + 100, 1e4 * near, 1e-4 * near, near * 0 + 7, outlier))
        layer = torch.nn.LayerNorm(n)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(n))
            layer.bias.copy_(torch.randn(n))
        rounded = normalise(torch.tensor(x), torch.zeros(len(x)), layer)
        described, _ = rounded.describe_all(torch.eye(n).double())
        bound = rounded.slack(described).detach().numpy()
        for seed in range(6):
            found = Machine(seed, signs, norm).normalise(x, numpy(layer.weight), numpy(layer.bias), layer.eps)
            off = np.abs(found - numpy(rounded.value))
            assert (off <= bound).all()
            largest = max(largest, float((off / bound).max()))
    assert largest > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["certified-sorter", "certified-adder"])
def test_no_rounding_on_this_machine_exceeds_the_bound(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every context, in one pass and decoded with a cache, in batches of 1 to 8 and of 250, with one thread and two."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "recipes")
    recipe = importlib.import_module("measure_rounding")
    for threads in (1, 2):
        for _, bound, share in recipe.measure(f"pretrained:{subject}", threads, every=50).values():
            assert 0 < share <= 1
            assert 0 < bound < 1
