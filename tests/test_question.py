"""A question is the same value from the command line, Python and a sweep."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, fields

import pytest

from headway.cli import parse, with_flags
from headway.errors import HeadwayError
from headway.heads.question import HeadsQuestion, PruneQuestion
from headway.question import Question, asks
from headway.sweeps.studies import find_study
from headway.trials.trial import Study


@dataclass(frozen=True, kw_only=True)
class Sum(Question):
    to: int = field(kw_only=False)
    times: int = 2

    def __post_init__(self) -> None:
        if self.times < 1:
            raise HeadwayError("times is too small; leave out `times`, or take `times=2`")


@asks(Sum)
def add(subject: int, question: Sum) -> int:
    """Adds."""
    return (subject + question.to) * question.times


def test_a_question_is_asked_by_keywords_or_as_a_value() -> None:
    assert add(1, 2) == add(1, to=2) == add(1, Sum(2)) == 6
    assert add(1, 2, times=3, quiet=False) == 9
    with pytest.raises(TypeError, match="unexpected keyword argument 'tims'"):
        add(1, 2, tims=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="missing a required argument: 'to'"):
        add(1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(HeadwayError, match="times is too small"):
        add(1, 2, times=0)


def test_flags_keywords_and_sweeps_have_the_same_defaults() -> None:
    command = parse(["heads", "mine"])
    assert isinstance(command, HeadsQuestion)
    trial = find_study(Study("heads", {}))
    own = {"quiet", "budget"}  # a person sees progress; a sweep searches no sets unless asked
    for entry in fields(HeadsQuestion):
        if entry.name not in own:
            assert getattr(command, entry.name) == getattr(trial, entry.name) == entry.default, entry.name
    pruning = parse(["prune", "mine", "--out", "there", "--heads", "L0H1", "L1H0"])
    assert isinstance(pruning, PruneQuestion)
    assert (pruning.heads, pruning.out, pruning.max_drop) == (("L0H1", "L1H0"), "there", command.max_drop)


def test_a_message_names_fields_and_the_command_line_its_flags() -> None:
    with pytest.raises(HeadwayError, match="`all` takes every problem; leave out `examples`") as refused:
        HeadsQuestion(all=True, examples=5)
    assert with_flags(str(refused.value), ["heads"]) == "--all takes every problem; leave out --examples"
    assert with_flags("add `budget=0` to `nothing`", ["heads"]) == "add --budget 0 to `nothing`"


def test_questions_import_no_torch() -> None:
    code = "import sys, headway.heads.question, headway.subjects.naming; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
