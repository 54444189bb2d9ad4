"""One model over every problem: bfloat16 where that decides, float32 for the rest, and the same verdicts as float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.evaluation.exact import evaluate_answers
from headway.evaluation.examples import batches, list_problems
from headway.evaluation.one import OneModel
from headway.evaluation.verdicts import same_answer
from headway.models import Model, build_model
from headway.runs.config import Overrides
from headway.subjects.own import open_one
from headway.tasks import Addition, Problems, Task
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner

CPU = torch.device("cpu")


@torch.inference_mode()
def verdicts_in_float32(model: Model, problems: Problems) -> Tensor:
    """The slow obvious way: one batch after another, in float32."""
    return torch.cat([same_answer(model(some.source, some.answer).argmax(-1), some) for some in batches(problems)])


def train(task: Addition, steps: int) -> Model:
    config = plan("addition", Overrides(steps=steps), 0, {"digits": task.digits})
    learner = Learner(build_model(config.model, 0), config.training)
    training = draw_batches(task, config.training, [0], None, 0, CPU)
    for _ in range(steps):
        learner.step(next(training))
    return learner.model.eval()


def differing(model: Model, task: Task, chunks: int | None = None) -> tuple[int, int, OneModel]:
    """Counts the problems with different verdicts, and the wrong ones."""
    ours, differ, wrong = OneModel(model, fast=True), 0, 0
    for _, chunk in zip(range(chunks or 10_000), list_problems(task, CPU), strict=False):
        verdicts = same_answer(ours.answers(chunk, lambda rows: None)[0], chunk)
        exact = verdicts_in_float32(model, chunk)
        differ, wrong = differ + int((verdicts != exact).sum()), wrong + int((~exact).sum())
    return differ, wrong, ours


@pytest.mark.slow
def test_the_shipped_adder_gets_the_verdicts_of_float32() -> None:
    run = open_one("pretrained:adder")
    differ, wrong, ours = differing(run.model, run.task, chunks=1)
    assert ours.fast is not None  # bfloat16 was used
    assert (differ, wrong) == (0, 0)


def test_a_model_with_errors_gets_the_verdicts_of_float32() -> None:
    task = Addition(digits=2)
    differ, wrong, _ = differing(train(task, 60), task)
    assert differ == 0
    assert wrong > 0  # both verdicts occur


def test_an_untrained_model_is_evaluated_in_float32() -> None:
    task = Addition(digits=2)
    model = build_model(plan("addition", Overrides(), 0, {"digits": 2}).model, 0).eval()
    differ, wrong, ours = differing(model, task)
    assert ours.fast is None  # it leaves nearly everything undecided
    assert (differ, wrong) == (0, task.count)


def test_where_bfloat16_moves_margins_far_it_is_given_up() -> None:
    run = open_one("pretrained:adder")
    ours = OneModel(run.model, fast=True)
    assert ours.fast is not None
    with torch.no_grad():
        next(ours.fast.parameters()).mul_(1.2)  # the copy now answers like another model
    ours.answers(next(list_problems(run.task, CPU))[:2_000], lambda rows: None)
    assert ours.fast is None


@pytest.mark.slow
@pytest.mark.parametrize("steps", [None, 250], ids=["shipped", "imperfect"])
def test_all_sums_get_the_verdicts_of_float32(steps: int | None) -> None:
    """All 1,000,000 sums, by the shipped adder and by one with errors."""
    shipped, task = open_one("pretrained:adder"), Addition()
    model = shipped.model if steps is None else train(task, steps)
    differ, wrong, ours = differing(model, task)
    print(f"{differ} verdicts differ of {task.count:,}; {wrong:,} wrong; bfloat16 used: {ours.fast is not None}")
    assert differ == 0
    assert (wrong == 0) == (steps is None)


def test_the_evaluation_is_that_of_float32() -> None:
    task = Addition(digits=2)
    model = train(task, 60)
    total = task.count or 0
    fast, exact = (
        evaluate_answers(OneModel(model, fast).answers, task, list_problems(task, CPU), total, is_sample=False)
        for fast in (True, False)
    )
    assert fast == exact
