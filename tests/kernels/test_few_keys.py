"""Attention over a few keys as one operation equals attention.py, alone and over a stack."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from headway.kernels.few_keys import few_keys
from headway.models import attention, build_model
from headway.runs.config import Overrides
from headway.tasks import Problems, create_task
from headway.training.defaults import plan

KINDS = {"encoder-decoder": "addition", "decoder": "addition", "classifier": "sortedness"}


def model_and_problems(kind: str, positions: str = "learned") -> tuple[torch.nn.Module, Problems]:
    config = plan(KINDS[kind], Overrides(model=kind, positions=positions, d_model=32, d_ff=64), seed=1)  # pyright: ignore[reportArgumentType]
    return build_model(config.model, seed=1), create_task(KINDS[kind]).testing(seed=0, rows=6)


def slopes(model: torch.nn.Module, problems: Problems) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(problems.source, problems.answer).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["learned", "none-causal"])
def test_the_kernel_and_its_gradients_match_plain_attention(
    kind: str, positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, problems = model_and_problems(kind, positions)
    plain, expected = model(problems.source, problems.answer), slopes(model, problems)
    calls = []
    monkeypatch.setattr(attention, "is_compiling", lambda: True)
    monkeypatch.setattr(attention, "few_keys", lambda *given: calls.append(1) or few_keys(*given))
    torch.testing.assert_close(model(problems.source, problems.answer), plain, rtol=1e-5, atol=1e-5)
    assert calls
    for name, slope in slopes(model, problems).items():
        torch.testing.assert_close(slope, expected[name], rtol=1e-4, atol=1e-4)


def test_over_a_stack_the_kernel_matches_each_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = plan("addition", Overrides(d_model=32, d_ff=64), seed=0).model
    models = [build_model(config, seed) for seed in range(3)]
    problems = create_task("addition").testing(seed=0, rows=5)
    weights, _ = stack_module_state(models)
    monkeypatch.setattr(attention, "is_compiling", lambda: True)
    stacked = vmap(lambda own: functional_call(models[0], own, (problems.source, problems.answer)))(weights)
    for row, model in enumerate(models):
        torch.testing.assert_close(stacked[row], model(problems.source, problems.answer), rtol=1e-5, atol=1e-5)
    stacked.square().sum().backward()
    for row, model in enumerate(models):
        for name, slope in slopes(model, problems).items():
            grad = weights[name].grad
            assert grad is not None
            torch.testing.assert_close(grad[row], slope, rtol=1e-4, atol=1e-4)


def test_the_operator_passes_opcheck() -> None:
    query, both = torch.randn(2, 3, 2, 8, requires_grad=True), torch.randn(2, 5, 2, 2, 8, requires_grad=True)
    torch.library.opcheck(few_keys, (query, both, True, 0.3))


def test_long_problems_and_recorded_maps_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "is_compiling", lambda: True)
    monkeypatch.setattr(attention, "few_keys", lambda *given: pytest.fail("seventeen keys are not a few"))
    model, _ = model_and_problems("classifier")
    problems = create_task("sortedness").testing(seed=0, rows=2, length=17)
    assert model(problems.source, problems.answer).isfinite().all()
