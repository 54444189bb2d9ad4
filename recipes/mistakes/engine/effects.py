"""What a planted mistake does in its company, found without the doctor: a mistake that does nothing cannot be named,
and the pair must be excluded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from headway import Problems, Subject

from .cases import Case
from .lab import build_plan
from .mistakes import plan_for

LEAST = 0.01
"""the share of right tokens that stopping early must cost"""
ROWS = 200


def has_effect(case: Case, name: str, folder: Path) -> bool:
    """Tells whether a mistake of a case does what it says, compared with the same case without it."""
    rest = plan_for([each for each in case.mistakes if each != name])
    rest = replace(rest, recipe=replace(rest.recipe, task=case.plan.recipe.task))
    torch.manual_seed(0)
    one, two = (build_plan(plan, case.style, folder) for plan in (case.plan, rest))
    if name == "one_at_a_time":  # whether a claim is wrong does not depend on how the lab ablates
        right = build_plan(replace(case.plan, ablates="columns", one_at_a_time=False), case.style, folder)
        one = replace(one, ablate=right.ablate)
    return EFFECTS[name](one, two)


def examples_of(subject: Subject) -> Problems:
    assert isinstance(subject.examples, Problems)
    return subject.examples


def read(subject: Subject, problems: Problems) -> Tensor:
    """Returns the logits of the lab's teacher-forced pass."""
    assert subject.ablate is not None
    return subject.ablate(problems, ())


def share_right(subject: Subject) -> float:
    """Returns the accuracy over tokens, in sums over those other than 0."""
    problems = examples_of(subject)
    logits = read(subject, problems)
    answer = problems.answer[:, -logits.shape[1] :]
    same = logits.argmax(-1) == answer
    return float(same[answer != 0].float().mean() if answer.shape[1] > 1 else same.float().mean())


def whole_right(subject: Subject, without_claimed: bool) -> float:
    """Returns the accuracy over answers, with or without the claimed heads."""
    assert subject.ablate is not None
    problems = examples_of(subject)
    logits = subject.ablate(problems, subject.claimed if without_claimed else ())
    return float((logits.argmax(-1) == problems.answer[:, -logits.shape[1] :]).all(1).float().mean())


def leaks(subject: Subject, _: Subject) -> bool:
    """Tells whether an earlier logit changes with later tokens."""
    problems = examples_of(subject)[:ROWS]
    answer = torch.cat((problems.answer[:, :1], problems.answer[:, 1:].roll(1, 0)), dim=1)
    moved = read(subject, replace(problems, answer=answer)) - read(subject, problems)
    return bool(moved[:, 0].abs().max() > LEAST)


def generates_otherwise(one: Subject, two: Subject) -> bool:
    assert one.generate is not None
    assert two.generate is not None
    problems = examples_of(two)[:ROWS]
    a, b = one.generate(problems), two.generate(problems)
    return a.shape != b.shape or not torch.equal(a, b)


def reads_answers(subject: Subject, _: Subject) -> bool:
    """Tells whether decoding changes with the right answers."""
    assert subject.generate is not None
    problems = examples_of(subject)[:ROWS]
    other = replace(problems, answer=problems.answer.roll(1, 0))
    return not torch.equal(subject.generate(problems), subject.generate(other))


def forces_otherwise(one: Subject, two: Subject) -> bool:
    assert one.forced is not None
    assert two.forced is not None
    problems = examples_of(two)[:ROWS]
    return not torch.equal(one.forced(problems), two.forced(problems))


def scores_otherwise(one: Subject, two: Subject) -> bool:
    """Compares the reported accuracies on the right answers, and on answers of which every second has one wrong
    token."""
    assert one.score is not None
    assert two.score is not None
    problems = examples_of(two)[:ROWS]
    tables = [problems]
    for place in range(problems.answer.shape[1]):
        answer = problems.answer.clone()
        answer[::2, place] = (answer[::2, place] + 1) % 10
        tables.append(replace(problems, answer=answer))
    return any(abs(one.score(each) - two.score(each)) > 1e-6 for each in tables)


def never_says_zero(subject: Subject, _: Subject) -> bool:
    problems = examples_of(subject)
    return bool((problems.answer == 0).any()) and not bool((read(subject, problems).argmax(-1) == 0).any())


def sees_no_order(subject: Subject, _: Subject) -> bool:
    problems = examples_of(subject)[:ROWS]
    subject.model.eval()
    other = replace(problems, source=problems.source.flip(1))
    return bool((read(subject, other) - read(subject, problems)).abs().max() < 1e-3)


def reads_padding(subject: Subject, _: Subject) -> bool:
    problems = examples_of(subject)[:ROWS]
    subject.model.eval()
    other = replace(problems, source=F.pad(problems.source, (0, 2), value=subject.pad or 0))
    return subject.pad is not None and bool((read(subject, other) - read(subject, problems)).abs().max() > LEAST)


def ablates_otherwise(one: Subject, two: Subject) -> bool:
    """Compares what every head costs."""
    problems = examples_of(two)[:ROWS]
    for each in (one, two):
        each.model.eval()
    assert one.ablate is not None
    assert two.ablate is not None
    pairs = [(one.ablate(problems, (head,)), two.ablate(problems, (head,))) for head in one.heads]
    return any(bool((a - b).abs().max() > LEAST) for a, b in pairs)


def was_trained_on(subject: Subject, _: Subject) -> bool:
    known = [subject.trained_on] if isinstance(subject.trained_on, Problems) else subject.trained_on or []
    rows = {tuple(row) for each in known for row in each.source.tolist()}
    seen = [tuple(row) in rows for row in examples_of(subject).source.tolist()]
    return sum(seen) > len(seen) // 5


def has_one_answer(subject: Subject, _: Subject) -> bool:
    counts = examples_of(subject).answer.unique(dim=0, return_counts=True)[1]
    return bool(counts.max() > 0.6 * counts.sum())


def answers_with_constant(subject: Subject, _: Subject) -> bool:
    assert subject.sets is not None
    return any(len(read(subject, each).argmax(-1).unique(dim=0)) == 1 for each in subject.sets().values())


def reads_longer(subject: Subject, _: Subject) -> bool:
    width = examples_of(subject).source.shape[1]
    return subject.sets is not None and any(each.source.shape[1] > width for each in subject.sets().values())


EFFECTS: dict[str, Callable[[Subject, Subject], bool]] = {
    "stopped_early": lambda one, two: share_right(one) < share_right(two) - LEAST,
    "no_mask_in_training": leaks,
    "no_mask_in_evaluation": leaks,
    "zero_is_the_start": lambda one, two: one.start == 0 != two.start,
    "starts_with_zero": generates_otherwise,
    "starts_with_commonest": generates_otherwise,
    "first_digit_given": reads_answers,
    "first_digit_fed": reads_answers,
    "wrong_start": generates_otherwise,
    "keeps_the_start": generates_otherwise,
    "stops_short": generates_otherwise,
    "samples": generates_otherwise,
    "compared_with_first_row": forces_otherwise,
    "loss_ignores_zero": never_says_zero,
    "dropout_is_on": lambda one, two: one.model.training and not two.model.training,
    "token_accuracy": scores_otherwise,
    "metric_ignores_zero": scores_otherwise,
    "metric_skips_first": scores_otherwise,
    "tested_on_training": was_trained_on,
    "no_positions": sees_no_order,
    "padding_is_read": reads_padding,
    "unbalanced": has_one_answer,
    "hook_never_fires": ablates_otherwise,
    "rows_not_columns": ablates_otherwise,
    "ablates_the_neighbour": ablates_otherwise,
    "a_hundred_examples": lambda one, two: one.claimed_on == 100 != two.claimed_on,
    "ranks_what_it_gets_wrong": lambda one, two: one.ranked_on is not None and two.ranked_on is None,
    "one_at_a_time": lambda one, _: whole_right(one, False) - whole_right(one, True) > one.max_drop,
    "few_seeds": lambda one, two: len(one.others) == 1 and not two.others,
    "rows_never_trained": reads_longer,
    "no_when_long": answers_with_constant,
}
