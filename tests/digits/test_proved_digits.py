"""Proofs by boxes agree with enumeration: on trained, damaged and untrained adders of three digits in base 4."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from handmade import handmade
from safetensors.torch import load_file

from headway.certify.digits import Adder
from headway.certify.digits.description import add_digits
from headway.certify.digits.own import adder_of_run
from headway.certify.digits.prove import prove_digits
from headway.certify.locality import NotLocal
from headway.errors import HeadwayError
from headway.models import Model, build_model
from headway.runs.config import RunConfig
from headway.tasks import Task, create_task

FOLDER = Path(__file__).parent / "base-four"


def trained() -> tuple[Model, Task]:
    config = RunConfig.from_json(json.loads((FOLDER / "config.json").read_text()))
    model = build_model(config.model)
    model.load_state_dict(load_file(FOLDER / "weights.safetensors"))
    return model.eval(), create_task(config.task, config.options)


def every_pair(adder: Adder) -> tuple[torch.Tensor, torch.Tensor]:
    base, digits = adder.description.base, adder.description.digits
    at = torch.arange(base ** (2 * digits))
    both = torch.stack([at // base**column % base for column in range(2 * digits)], dim=1)
    return both[:, :digits], both[:, digits:]


def is_confirmed(adder: Adder, found: object) -> bool:
    """Decodes a counterexample again, from its text."""
    a, b, written, right = (getattr(found, name) for name in ("a", "b", "written", "right"))
    first, second = (torch.tensor([[int(digit) for digit in reversed(number)]]) for number in (a, b))
    again = adder.write(first, second)[0].flip(0).tolist()
    base = adder.description.base
    truth = add_digits(first, second, base)[0].flip(0).tolist()
    assert int(a, base) + int(b, base) == int(right, base)
    assert right == "".join(map(str, truth))
    return written == "".join("?" if digit < 0 else str(digit) for digit in again) and written != right


def test_a_trained_adder_is_proved_right_on_all_pairs() -> None:
    adder = adder_of_run(*trained(), "trained")
    assert not adder.find_wrong(*every_pair(adder)).any()
    verdict = prove_digits(adder, budget=600.0)
    assert verdict.certified, verdict.reason
    assert verdict.pairs == verdict.proved_pairs == 4**6
    assert verdict.open == verdict.wrong == 0
    assert verdict.smallest_margin is not None
    assert verdict.rounding_bound is not None
    assert 0 < verdict.rounding < verdict.rounding_bound < verdict.smallest_margin  # pyright: ignore


def test_an_untrained_adder_is_refuted() -> None:
    model, task = trained()
    torch.manual_seed(0)
    adder = adder_of_run(build_model(model.config).eval(), task, "untrained")
    verdict = prove_digits(adder, budget=10.0)
    assert not verdict.certified
    assert is_confirmed(adder, verdict.counterexample)


@pytest.mark.parametrize(
    "size", [pytest.param(0.05, marks=pytest.mark.slow), pytest.param(0.15, marks=pytest.mark.slow), 0.3]
)
def test_no_wrong_pair_of_a_damaged_adder_is_proved(size: float) -> None:
    model, task = trained()
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += size * weight.std() * torch.randn(weight.shape, generator=dice) if weight.numel() > 1 else 0
    adder = adder_of_run(model, task, "damaged")
    wrong = int(adder.find_wrong(*every_pair(adder)).sum())
    verdict = prove_digits(adder, budget=20.0)
    assert verdict.proved_pairs <= verdict.pairs - wrong
    assert verdict.certified <= (wrong == 0)
    assert (verdict.counterexample is not None) == (wrong > 0)
    if verdict.counterexample is not None:
        assert is_confirmed(adder, verdict.counterexample)


def test_a_handmade_adder_is_proved_on_all_pairs_of_ten_digits() -> None:
    verdict = prove_digits(handmade(10, base=4), budget=600.0)
    assert verdict.certified, verdict.reason
    assert verdict.proved_pairs == 4**20


def test_an_error_in_one_carry_chain_is_found_and_not_proved_away() -> None:
    adder = handmade(4, base=4, planted=True)
    wrong = adder.find_wrong(*every_pair(adder))
    assert int(wrong.sum()) == 3  # 3333 + 1, + 2 and + 3
    verdict = prove_digits(adder, budget=600.0)
    assert verdict.proved_pairs == 4**8 - 3
    assert is_confirmed(adder, verdict.counterexample)


@pytest.mark.slow
def test_nine_wrong_pairs_of_ten_digits_are_all_that_is_not_proved() -> None:
    verdict = prove_digits(handmade(10, base=10, planted=True), budget=3000.0)
    assert verdict.proved_pairs == 10**20 - 9
    assert verdict.open == 9
    assert verdict.counterexample is not None
    assert verdict.counterexample.a == "9999999999"


@pytest.mark.slow
def test_attention_that_is_too_soft_is_not_proved_sharp() -> None:
    """Where attention leaks so much that some sums are wrong, these are found although random pairs miss them."""
    adder = handmade(4, base=4, elsewhere=-4.9)
    wrong = int(adder.find_wrong(*every_pair(adder)).sum())
    assert 0 < wrong < 4**8 / 1000
    verdict = prove_digits(adder, budget=60.0)
    assert verdict.proved_pairs <= 4**8 - wrong
    assert is_confirmed(adder, verdict.counterexample)


def test_other_models_and_lengths_are_refused_in_a_sentence() -> None:
    model, task = trained()
    adder = adder_of_run(model, task, "trained")
    off = replace(adder, description=replace(adder.description, readout=adder.description.readout + 0.01))
    assert "description is not the model" in (prove_digits(off).reason or "")
    seeing = replace(adder, forward=lambda tokens: adder.forward(tokens) + tokens.shape[1] * torch.eye(1))
    assert "not causal" in (prove_digits(seeing).reason or "") or "description" in (prove_digits(seeing).reason or "")
    flat = replace(adder, forward=lambda tokens: adder.forward(tokens)[:, -1])
    with pytest.raises(HeadwayError, match="expected logits of shape"):
        prove_digits(flat)
    with pytest.raises(NotLocal, match="padded"):
        adder_of_run(model, create_task("addition", {"first": "most"}), "other")
