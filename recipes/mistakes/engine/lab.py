"""The lab: builds a Subject in a style, with any combination of mistakes planted."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from headway import Head, Problems, Subject

from .ablating import heads_of, make_ablation
from .evaluating import Evaluation
from .mistakes import find_conflict, plan_for, style_for
from .models import Adder, Lab, Sorter, projections_of, rewrite
from .plan import Plan, Style
from .problems import (
    LENGTHS,
    long_sums,
    marks_held_out,
    mixed_sequences,
    padded,
    sequences,
    split_sums,
)
from .training import FEW, draw_batch, open_model, training_sums

ROWS, FRESH = 1_000, 30
MARGINS = (0.01, 0.02, 0.05)
CLAIMED_ON = 20_000


def default_folder() -> Path:
    """Returns the folder of trained models that is used if none is named."""
    return Path(tempfile.gettempdir()) / "headway-engine"


def build(mistakes: Sequence[str] = (), style: Style | None = None, folder: Path | None = None) -> Subject:
    """Plants the mistakes in a healthy lab of this style. Trained models are kept in the folder."""
    if mistakes and (reason := find_conflict(mistakes)):
        raise ValueError(f"{' and '.join(mistakes)} cannot be combined: {reason}")
    plan, style = plan_for(mistakes), style_for(mistakes, style or Style())
    return build_plan(plan, style, folder or default_folder())


def build_plan(plan: Plan, style: Style, folder: Path) -> Subject:
    """Builds the subject of a plan."""
    subject = (build_adder if plan.recipe.task == "sums" else build_sorter)(plan, style, folder)
    if plan.seeds > 1:
        recipes = [replace(plan.recipe, seed=plan.recipe.seed + more) for more in range(1, plan.seeds)]
        others = [
            build_plan(replace(plan, seeds=1, one_at_a_time=False, recipe=each), style, folder) for each in recipes
        ]
        subject = replace(subject, others=others)
    if plan.one_at_a_time:
        claimed, margin = claim_heads(subject)
        return replace(subject, claimed=claimed, claimed_on=plan.claimed_on or CLAIMED_ON, max_drop=margin)
    return subject if plan.claimed_on is None else replace(subject, claimed_on=plan.claimed_on)


class BatchFirst(nn.Module):
    """Lets a model whose batch is last be called with the batch first."""

    def __init__(self, model: Lab) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, answer: Tensor) -> Tensor:
        given = (source.T, answer.T) if isinstance(self.model, Adder) else (source.T,)
        return self.model(*given).transpose(0, 1)


class AnswerReader(nn.Module):
    """Shifts the answer inside of the model, as some models do with their labels."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self.model, self.evaluation = evaluation.model, evaluation

    def forward(self, source: Tensor, answer: Tensor) -> Tensor:
        return self.evaluation.read(Problems(source, answer))


def prepare_model(plan: Plan, style: Style, folder: Path) -> Lab:
    """Returns the trained model in this style."""
    trained = open_model(plan.recipe, folder)
    model = rewrite(trained, style.layers)
    model.batch_first = style.batch == "first"
    if isinstance(model, Adder):
        model.mask_inside = plan.masked and style.mask == "inside"
    return model.train(plan.training_mode)


def unfilled(problems: Problems) -> Problems:
    """Returns a table of which every third row was filled; the rest are copies of the first."""
    rows = torch.arange(len(problems))
    rows[rows % 3 != 0] = 0
    return problems[rows]


def test_sums(plan: Plan, style: Style) -> Problems:
    """Returns the sums of the test, before any padding."""
    known, unseen = split_sums()
    if plan.tests_training:  # what was trained on, repeated, and a few others
        few = known[:FEW]
        problems = Problems.join([*[few] * 6, known[FEW : FEW + ROWS - 6 * FEW]])
    else:
        problems = unseen if style.unseen == "list" else Problems.join([known[-ROWS:], unseen])
    return unfilled(problems) if plan.unfilled else problems


def build_adder(plan: Plan, style: Style, folder: Path) -> Subject:
    recipe, model = plan.recipe, prepare_model(plan, style, folder)
    assert isinstance(model, Adder)
    evaluation = Evaluation(model, plan, style)
    pad = (lambda each: each) if recipe.padding == "none" else padded
    known, unseen = training_sums(recipe), pad(test_sums(plan, style))
    wrapped = style.decode == "wrapped"
    outer = AnswerReader(evaluation) if wrapped else model if model.batch_first else BatchFirst(model)
    longer = {"2 digits": unseen[:300], "4 digits": pad(long_sums(300, 4))}
    return Subject(
        outer.train(plan.training_mode),
        examples=unseen,
        name="lab",
        start=0 if plan.begins == "zero" else recipe.start,
        decode=None if wrapped else evaluation.decode,
        generate=evaluation.generate,
        forced=None if style.forced == "none" else evaluation.force,
        score=evaluation.score,
        sets=(lambda: longer) if plan.sets == "longer" else None,
        held_out=marks_held_out if style.unseen == "function" and not plan.tests_training else None,
        trained_on=known if plan.tests_training or style.unseen == "list" else known[:ROWS],
        tables=model.tables,
        pad=recipe.pad,
        heads=heads_of(model),
        ablate=make_ablation(model, evaluation.read, style.ablation, plan.ablates),
        projections=projections_of(model),
        ranked_on=pad(long_sums(300, 5)) if plan.ranks_long else None,
    )


def test_sequences(plan: Plan) -> Problems:
    recipe = plan.recipe
    if plan.tests_training:
        few = draw_batch(recipe, 0)
        return Problems.join([*[few] * 6, draw_batch(replace(recipe, few=False, seed=77), 3)[:FRESH]])
    if recipe.padding != "none":
        return mixed_sequences(ROWS, 77_777, recipe.positive)
    return sequences(ROWS, 77_777, LENGTHS[-1], recipe.positive)


def build_sorter(plan: Plan, style: Style, folder: Path) -> Subject:
    recipe, model = plan.recipe, prepare_model(plan, style, folder)
    assert isinstance(model, Sorter)
    pad = (lambda each: each) if recipe.padding == "none" else padded

    def read(problems: Problems) -> Tensor:
        return model(problems.source) if model.batch_first else model(problems.source.T).transpose(0, 1)

    def score(problems: Problems) -> float:
        value = float((read(problems).argmax(-1) == problems.answer).all(1).float().mean())
        return 100 * value if style.percent else value

    def sets() -> dict[str, Problems]:
        lengths = (8, 16) if plan.sets == "longer" else (6, 8, 16, 32)
        return {f"length {length}": pad(sequences(300, length, length, recipe.positive)) for length in lengths}

    batches = [draw_batch(recipe, step) for step in range(1 if recipe.few else 4)]
    return Subject(
        model if model.batch_first else BatchFirst(model).train(plan.training_mode),
        examples=test_sequences(plan),
        name="lab",
        score=score,
        sets=None if plan.sets == "none" else sets,
        trained_on=batches,
        tables=() if plan.sets == "much longer" else model.tables,
        pad=recipe.pad,
        heads=heads_of(model),
        ablate=make_ablation(model, read, style.ablation, plan.ablates),
        projections=projections_of(model),
    )


def claim_heads(subject: Subject) -> tuple[tuple[Head, ...], float]:
    """Returns the heads that cost little when they are ablated alone, and what "little" means: the smallest margin at
    which there are such heads that cannot all be removed."""
    assert subject.ablate is not None
    assert isinstance(subject.examples, Problems)
    ablate, problems = subject.ablate, subject.examples

    def accuracy(heads: Collection[Head]) -> float:
        logits = ablate(problems, heads)
        return float((logits.argmax(-1) == problems.answer[:, -logits.shape[1] :]).all(1).float().mean())

    whole = accuracy(())
    costs = {head: whole - accuracy((head,)) for head in subject.heads}
    for margin in MARGINS:
        claimed = tuple(head for head, cost in costs.items() if cost <= margin)
        if len(claimed) > 1 and whole - accuracy(claimed) > 2 * margin:
            return claimed, margin
    return tuple(subject.heads), MARGINS[0]
