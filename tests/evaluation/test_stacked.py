"""Models evaluated as a stack give the same verdicts as alone, even if the fast pass has low precision."""

from __future__ import annotations

import pytest
import torch

from headway.evaluation import stacked
from headway.evaluation.exact import evaluate_all, evaluate_answers, evaluate_sample
from headway.evaluation.examples import list_problems, sample_problems
from headway.evaluation.stacked import StackedModels, trainable_right
from headway.models import Model, build_model
from headway.runs.config import Overrides
from headway.tasks import Addition, Sortedness
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def learnt() -> list[Model]:
    """Four small adders of one digit, some of them better than others."""
    models = []
    for seed, steps in enumerate((5, 40, 80, 160)):
        config = plan("addition", Overrides(d_model=32, d_ff=64, steps=160, batch=64, warmup=5), seed, {"digits": 1})
        learner = Learner(build_model(config.model, seed), config.training)
        batches = draw_batches(Addition(digits=1), config.training, [seed], None, 0, CPU)
        for _ in range(steps):
            learner.step(next(batches))
        models.append(learner.model)
    return models


def test_a_stack_makes_the_errors_of_each_model_alone(learnt: list[Model]) -> None:
    task = Addition(digits=1)
    found = evaluate_answers(StackedModels.of(learnt).answers, task, list_problems(task, CPU), 100, is_sample=False)
    assert found == [evaluate_all(model, task) for model in learnt]
    assert len({each.errors for each in found}) > 2


def test_a_stack_also_handles_end_tokens_and_classes() -> None:
    for task, options in ((Addition(digits=2, natural=True), {"digits": 2, "natural": True}), (Sortedness(), {})):
        configs = [plan(task.name, Overrides(d_model=16, heads=2, d_ff=32), seed, options) for seed in range(3)]
        models = [build_model(config.model, config.seed).eval() for config in configs]
        problems = sample_problems(task, 200, seed=0, length=None, probe="default", device=CPU)
        found = evaluate_answers(StackedModels.of(models).answers, task, problems, 200, is_sample=True)
        assert found == [evaluate_sample(model, task, 200) for model in models]


def test_narrow_margins_of_a_low_precision_pass_are_computed_again(
    learnt: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Addition(digits=1)
    problems = task.listing(0, 100)
    exact = StackedModels.of(learnt).answers(problems)
    monkeypatch.setattr(stacked, "NARROW", {torch.bfloat16: 1.0, torch.float32: 0.1})
    coarse = StackedModels.of(learnt, torch.bfloat16)
    monkeypatch.setattr(stacked, "PASS_TOKENS", 4 * 4 * 7)  # many passes, the last one filled up
    narrow = []
    plain = coarse._decide_narrow
    monkeypatch.setattr(coarse, "_decide_narrow", lambda c, w, n: narrow.append(int(n.sum())) or plain(c, w, n))
    wrong = exact != problems.answer
    assert torch.equal(coarse.answers(problems) != problems.answer, wrong)
    assert narrow[0] > 0


def test_without_the_second_pass_low_precision_makes_errors(
    learnt: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second pass is necessary: weights rounded this coarsely do change verdicts."""
    problems = Addition(digits=1).listing(0, 100)
    exact = StackedModels.of(learnt).answers(problems)
    coarse = StackedModels.of(learnt, torch.bfloat16)
    coarse.fast = {name: (weight * 4).round() / 4 for name, weight in coarse.fast.items()}
    monkeypatch.setattr(stacked, "NARROW", {torch.bfloat16: -torch.inf})
    assert not torch.equal(coarse.answers(problems), exact)
    monkeypatch.setattr(stacked, "NARROW", {torch.bfloat16: torch.inf})
    assert torch.equal(coarse.answers(problems), exact)


@torch.no_grad()
def test_bfloat16_moves_no_margin_of_the_adder_by_a_tenth_of_the_threshold(adder) -> None:
    problems = adder.task.testing(seed=0, rows=2000, probe="carry-heavy")
    models = [StackedModels.of([adder.model], precision) for precision in (torch.float32, torch.bfloat16)]
    exact, coarse = (m._pass(m.fast, problems.source, problems.answer)[1] for m in models)
    assert (exact - coarse).abs().max() < stacked.NARROW[torch.bfloat16] / 10


def test_out_of_memory_halves_the_pass(learnt: list[Model]) -> None:
    problems = Addition(digits=1).listing(0, 100)
    models, sizes = StackedModels.of(learnt), []
    plain = models._pass

    def small(weights: dict[str, torch.Tensor], source: torch.Tensor, answer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes.append(len(source))
        if len(source) > 30:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(weights, source, answer)

    models._pass = small
    assert torch.equal(models.answers(problems), StackedModels.of(learnt).answers(problems))
    assert sizes == [100, 50, 25, 25, 50, 25, 25]


def test_perfect_is_every_trainable_problem_and_nothing_else(learnt: list[Model]) -> None:
    task = Addition(digits=1)
    found = trainable_right(StackedModels.of(learnt), task)
    every = task.listing(0, 100)
    for perfect, model in zip(found.tolist(), learnt, strict=True):
        wrong = (model(every.source, every.answer).argmax(-1) != every.answer).any(1) & ~task.held_out(every)
        assert perfect == (not wrong.any())
