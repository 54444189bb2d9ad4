"""The mistakes: what each changes, which checks name it as a cause, and what it cannot be combined with.

`named_by` was written before any measurement. A check outside of it that the doctor calls a cause counts as a false
cause, also where what it says is a consequence of the mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .plan import Plan, Style


@dataclass(frozen=True)
class Mistake:
    name: str
    about: str
    named_by: tuple[str, ...]
    """the checks of which any, as a cause, names it"""
    training: Mapping[str, Any] = field(default_factory=dict)
    """the fields of the recipe that it changes"""
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    """the fields of the plan that it changes"""
    style: Mapping[str, Any] = field(default_factory=dict)
    """the parts of a style that it needs"""
    tasks: tuple[str, ...] = ("sums", "order")
    conflicts: Mapping[str, str] = field(default_factory=dict)
    """mistakes that it cannot be combined with, each with the reason"""
    words: str = ""
    """a pattern that the text of the check must match where another planted mistake is named by the same check"""

    def change(self, plan: Plan) -> Plan:
        return replace(plan, recipe=replace(plan.recipe, **self.training), **self.evaluation)


SUMS = ("sums",)
NO_START = "without a start token there is none to keep, and the first token is part of the answer"
NEVER_RIGHT = "a model that sees no order is wrong however long it trains"
NEVER_CONSTANT = "a model that sees no order guesses at every length, with both answers"
BOTH = "a sorter that memorized 150 sequences gives both answers at every length"
COPIES = "without a mask, copying the next token is learned within the shortened training"
UNFINISHED = "answers to longer sequences become constant only in the course of training"
ALWAYS_RIGHT = "a first digit that is given is always right; leaving it out changes no number"
MEMORIZED = "150 problems are memorized within the shortened training"
DECIDED = {
    "start": "what training begins an answer with",
    "begins": "how decoding begins",
    "output": "which tokens decoding returns",
    "ablates": "what ablating a head zeroes",
    "sets": "which longer problems are evaluated; untrained positions are why answers to them are constant",
}
"""What the fields mean that two mistakes may both change."""
MISTAKES: dict[str, Mistake] = {
    each.name: each
    for each in (
        Mistake(
            "stopped_early",
            "training stops at a third of its steps",
            ("converged",),
            training={"stopped": True},
            conflicts={"no_positions": NEVER_RIGHT, "no_mask_in_training": COPIES, "tested_on_training": MEMORIZED},
        ),
        Mistake(
            "no_mask_in_training",
            "neither training nor evaluation has a causal mask",
            ("causality",),
            training={"masked": False},
            evaluation={"masked": False},
            tasks=SUMS,
            conflicts={"no_mask_in_evaluation": "it leaves out the mask in evaluation as well"},
        ),
        Mistake(
            "no_mask_in_evaluation",
            "training has a causal mask, evaluation forgets it",
            ("causality",),
            evaluation={"masked": False},
            style={"forced": "answer"},
            tasks=SUMS,
        ),
        Mistake(
            "zero_is_the_start",
            "answers begin with token 0, which is also a digit",
            ("start token",),
            training={"start": 0},
            tasks=SUMS,
            words="token 0",
        ),
        Mistake(
            "starts_with_zero",
            "the first digit is never predicted; decoding begins with 0",
            ("given digits", "start token"),
            training={"start": None},
            evaluation={"begins": "zero"},
            tasks=SUMS,
        ),
        Mistake(
            "starts_with_commonest",
            "the first digit is never predicted; decoding begins with the commonest of each batch of 64",
            ("evaluation mode", "given digits"),
            training={"start": None},
            evaluation={"begins": "commonest"},
            tasks=SUMS,
            words="(?i)batch|given|first",
        ),
        Mistake(
            "first_digit_given",
            "the first digit is never predicted; decoding begins with the right one",
            ("given digits",),
            training={"start": None},
            evaluation={"begins": "given"},
            tasks=SUMS,
        ),
        Mistake(
            "first_digit_fed",
            "decoding begins with the start token and the right first digit",
            ("given digits",),
            evaluation={"begins": "fed"},
            tasks=SUMS,
        ),
        Mistake(
            "wrong_start",
            "decoding begins with 0, training with the start token",
            ("greedy",),
            evaluation={"begins": "other"},
            tasks=SUMS,
            conflicts={"zero_is_the_start": "where training begins with 0, decoding must too"},
            words="(?i)(begin|start)(s|ning)? (with|from)|(wrong|another|other) start",
        ),
        Mistake(
            "keeps_the_start",
            "decoding keeps the start token, so that every digit is one place late",
            ("greedy",),
            evaluation={"output": "keeps start"},
            style={"score": "generate"},
            tasks=SUMS,
            conflicts=dict.fromkeys(("starts_with_zero", "starts_with_commonest", "first_digit_given"), NO_START),
            words="(?i)kept|late|shift|drop",
        ),
        Mistake(
            "stops_short",
            "decoding writes, and the accuracy counts, two of three digits",
            ("greedy", "metric"),
            evaluation={"output": "short"},
            style={"score": "generate"},
            tasks=SUMS,
            words="(?i)wrote|writes|every token|first 2|without|last",
        ),
        Mistake(
            "samples",
            "decoding samples instead of taking the likeliest token",
            ("evaluation mode",),
            evaluation={"samples": True},
            tasks=SUMS,
            words="(?i)sampl",
        ),
        Mistake(
            "compared_with_first_row",
            "every row of teacher forcing is the first row's prediction",
            ("evaluation mode",),
            evaluation={"compares": "first row"},
            style={"forced": "answer", "score": "forced"},
            tasks=SUMS,
            words="(?i)first row|same prediction|batch",
        ),
        Mistake(
            "loss_ignores_zero",
            "the loss ignores token 0, which is also a digit",
            ("never said",),
            training={"ignores_zero": True},
            tasks=SUMS,
        ),
        Mistake(
            "dropout_is_on",
            "evaluation runs in training mode",
            ("evaluation mode",),
            training={"dropout": 0.1},
            evaluation={"training_mode": True},
            words="(?i)dropout|eval\\(\\)",
        ),
        Mistake(
            "token_accuracy",
            "the reported accuracy is over tokens",
            ("metric",),
            evaluation={"over_tokens": True},
            tasks=SUMS,
            words="(?i)over tokens|tokens",
        ),
        Mistake(
            "metric_ignores_zero",
            "the reported accuracy leaves out token 0",
            ("metric",),
            evaluation={"skips_zero": True},
            tasks=SUMS,
            words="(?i)tokens? (other than )?0",
        ),
        Mistake(
            "metric_skips_first",
            "the reported accuracy leaves out the first digit",
            ("metric",),
            evaluation={"skips_first": True},
            tasks=SUMS,
            conflicts={
                "keeps_the_start": "leaving out the start token that was kept is no mistake",
                "first_digit_given": ALWAYS_RIGHT,
                "first_digit_fed": ALWAYS_RIGHT,
            },
            words="(?i)first|last",
        ),
        Mistake(
            "tested_on_training",
            "150 problems are repeated, and split into training and test afterwards",
            ("overlap",),
            training={"few": True},
            evaluation={"tests_training": True},
        ),
        Mistake(
            "no_positions",
            "the source has no positions, so that its order is not seen",
            ("blindness",),
            training={"positions": False},
        ),
        Mistake(
            "padding_is_read",
            "padding is attended to like any other token",
            ("padding",),
            training={"padding": "read"},
        ),
        Mistake(
            "unbalanced",
            "most test problems have one answer",
            ("balance",),
            training={"positive": 0.05},
            evaluation={"unfilled": True},
        ),
        Mistake(
            "hook_never_fires",
            "heads are ablated by a hook that changes nothing",
            ("gates",),
            evaluation={"ablates": "nothing"},
        ),
        Mistake(
            "rows_not_columns",
            "ablating a head zeroes rows of the output projection",
            ("gates",),
            evaluation={"ablates": "rows"},
        ),
        Mistake(
            "ablates_the_neighbour",
            "ablating a head zeroes the columns of the next one",
            ("gates",),
            evaluation={"ablates": "neighbour"},
        ),
        Mistake(
            "a_hundred_examples",
            "a claim about 1% rests on 100 examples",
            ("resolution",),
            evaluation={"claimed_on": 100},
        ),
        Mistake(
            "ranks_what_it_gets_wrong",
            "heads are ranked on longer problems, which the model gets wrong",
            ("floor",),
            evaluation={"ranks_long": True},
            tasks=SUMS,
        ),
        Mistake(
            "one_at_a_time",
            "heads that are redundant alone are claimed to be prunable",
            ("together",),
            evaluation={"one_at_a_time": True},
        ),
        Mistake(
            "few_seeds",
            "two seeds are all there is",
            ("seeds",),
            evaluation={"seeds": 2},
        ),
        Mistake(
            "rows_never_trained",
            "longer problems are evaluated, whose positions were never trained",
            ("positions",),
            evaluation={"sets": "longer"},
            conflicts={"no_positions": "there are no positions to train"},
        ),
        Mistake(
            "no_when_long",
            "a sorter that answers longer sequences with a constant is evaluated on them",
            ("constant",),
            evaluation={"sets": "much longer"},
            tasks=("order",),
            conflicts={"no_positions": NEVER_CONSTANT, "stopped_early": UNFINISHED, "tested_on_training": BOTH},
        ),
    )
}


def find_conflict(names: Sequence[str]) -> str | None:
    """Returns why these mistakes cannot be combined, or None."""
    planted = [MISTAKES[name] for name in names]
    for place, one in enumerate(planted):
        for two in planted[:place]:
            reason = one.conflicts.get(two.name) or two.conflicts.get(one.name)
            if reason:
                return reason
            for part in ("training", "evaluation"):
                mine, theirs = getattr(one, part), getattr(two, part)
                twice = [each for each in mine if each in theirs and (mine[each] != theirs[each])]
                if twice:
                    return f"both decide {DECIDED[twice[0]]}"
            if not set(one.training) - set(two.training) and one.training and one.evaluation == two.evaluation:
                return "they are one mistake"
    if not set.intersection(*(set(each.tasks) for each in planted)):
        return "one needs a classifier, the other an answer of several tokens"
    return None


def task_of(names: Sequence[str]) -> str:
    """Returns the task that these mistakes are planted in: sums where possible."""
    return "sums" if all("sums" in MISTAKES[name].tasks for name in names) else "order"


def plan_for(names: Sequence[str]) -> Plan:
    """Returns the plan of a healthy lab with these mistakes planted."""
    plan = Plan()
    plan = replace(plan, recipe=replace(plan.recipe, task=task_of(names)))
    for name in names:
        plan = MISTAKES[name].change(plan)
    if plan.recipe.task == "sums":  # the share of sorted sequences is of no importance
        plan = replace(plan, recipe=replace(plan.recipe, positive=Plan().recipe.positive))
    return plan


def style_for(names: Sequence[str], style: Style) -> Style:
    """Returns the style with the parts that these mistakes need."""
    for name in names:
        style = replace(style, **MISTAKES[name].style)
    return style
