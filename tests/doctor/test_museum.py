"""The museum of mistakes: the doctor names the cause of each, and raises no unexpected alarm."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.doctor.examination import CHECKS, Examination, examine_subject

MUSEUM = Path(__file__).parents[2] / "recipes" / "mistakes"
LINES = 4
"""The most lines of a message on a terminal."""

MISTAKES: dict[str, tuple[set[str], set[str], str]] = {
    # the mistake: the checks that name it as cause, other alarms that may follow from it, and words of the first cause
    "stopped_early": ({"converged"}, {"floor"}, "is below 0.95"),
    "no_when_long": ({"constant"}, set(), r"one answer, [0], to every problem of 2 of 4 sets (length 16, length 32)"),
    "keeps_the_start": ({"greedy"}, set(), "the start token is kept"),
    "starts_with_zero": ({"start token", "given digits"}, {"greedy", "converged", "floor"}, "token 0 begins every"),
    "starts_with_commonest": (
        {"given digits", "evaluation mode"}, {"greedy", "converged", "floor", "metric"}, "predicts 2 of 3 tokens",
    ),
    "no_mask_in_evaluation": ({"causality"}, {"greedy"}, "it sees the answer"),
    "no_mask_in_training": ({"causality"}, {"greedy"}, "it sees the answer"),
    "zero_is_the_start": ({"start token"}, set(), "token 0 begins every answer"),
    "first_digit_given": ({"given digits"}, set(), "token 0 is given, not predicted"),
    "token_accuracy": ({"converged", "metric"}, {"floor"}, "is below 0.95"),
    "zero_is_padding": ({"never said", "metric"}, {"converged", "floor"}, "token 0, "),
    "padding_is_read": ({"padding"}, set(), "4 tokens of padding move logits"),
    "dropout_is_on": (
        {"evaluation mode"},
        {"greedy", "given digits", "metric", "causality", "gates", "converged"},
        "the same problems twice",
    ),
    "tested_on_training": ({"overlap"}, {"converged"}, "of the test problems were trained on"),
    "mostly_unsorted": ({"balance"}, {"converged", "constant"}, "a constant answer scores that"),
    "bag_of_numbers": ({"blindness"}, {"converged"}, "when the source is permuted"),
    "rows_never_trained": ({"positions"}, {"constant"}, "length 16 uses 8 positions that were never trained"),
    "hook_never_fires": ({"gates"}, set(), "the ablation has no effect"),
    "rows_not_columns": ({"gates"}, set(), "rows are zeroed, which mix all heads"),
    "a_hundred_sums": ({"resolution"}, set(), "100 examples cannot separate a difference of 0.01 from noise"),
    "ranks_what_it_gets_wrong": ({"floor"}, set(), "heads are ranked against a baseline of 0."),
    "one_at_a_time": ({"together"}, set(), "heads may each be removed alone; accuracy without all of them"),
    "one_seed": ({"seeds"}, set(), "the costliest head differs"),
}  # fmt: skip
HYPOTHESES = {
    "keeps_the_start": "one place late",
    "starts_with_zero": "it always writes 0 as the first token, which is right in 4",
    "starts_with_commonest": "the commonest first token of the batch",
    "no_mask_in_evaluation": "the teacher-forced pass has no causal mask",
}
"""The explanations of the greedy check for four public implementations."""
LONG = ("one_seed", "one_at_a_time", "no_mask_in_evaluation")
"""The mistakes that train several models, or a large one."""


@pytest.fixture(scope="module", autouse=True)
def museum() -> Iterator[None]:
    """Imports the files as modules, so that models they share are trained once."""
    sys.path.insert(0, str(MUSEUM))
    yield
    sys.path.remove(str(MUSEUM))


def check_messages(found: Examination) -> None:
    for name in found.checks:
        lines = found.message(name)
        assert len(lines) <= LINES, lines
        assert max(map(len, lines)) <= 80
        assert found.checks[name].status == "skipped" or any(letter.isdigit() for letter in " ".join(lines)), lines


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in MISTAKES])
def test_the_doctor_names_the_cause_of(name: str) -> None:
    causes, symptoms, words = MISTAKES[name]
    found = examine_subject(importlib.import_module(name).build())
    assert set(found.causes) == causes, (found.causes, found.alarms)
    assert set(found.alarms) - causes <= symptoms, found.alarms
    first = next(check for check in found.causes)
    assert words in found.checks[first].meaning, found.checks[first].meaning
    assert all(found.checks[alarm].remedy for alarm in found.alarms)
    if name in HYPOTHESES:
        assert HYPOTHESES[name] in str(found.checks["greedy"].evidence["hypothesis"])
    check_messages(found)


def test_the_correct_lab_raises_no_alarm() -> None:
    found = examine_subject(importlib.import_module("healthy").build())
    assert found.alarms == []
    skipped = {name for name, each in found.checks.items() if each.status == "skipped"}
    assert skipped == {"padding", "resolution", "together", "seeds"}
    check_messages(found)


def test_the_museum_has_a_mistake_for_every_check_and_no_other_files() -> None:
    assert set().union(*(causes for causes, _, _ in MISTAKES.values())) == set(CHECKS)
    assert {path.stem for path in MUSEUM.glob("*.py")} == {*MISTAKES, "healthy"}
    checks = (MUSEUM.parents[1] / "docs" / "doctor.md").read_text()
    assert all(f"### {name}\n" in checks for name in CHECKS)
    page = (MUSEUM.parents[1] / "docs" / "mistakes.md").read_text()
    assert all(f"mistakes/{name}.py" in page for name in MISTAKES)
