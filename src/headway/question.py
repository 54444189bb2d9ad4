"""A question is a value: one frozen dataclass per study, with its validation, defaults and help text.

The same dataclass serves every caller. A command inherits its fields as flags, and the text under a field is the flag's
help; a sweep fills it from a file; a Python function that `@asks(HeadsQuestion)` takes the fields as keywords, or the
question as a whole: study_heads(subject, max_drop=0.05), study_heads(subject, HeadsQuestion(max_drop=0.05)).

A module of questions imports no torch, so that `headway heads --help` answers at once. A message names a field in
backticks, `budget` or `budget=0`; the command line writes it as the flag.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
S = TypeVar("S")
Question_contra = TypeVar("Question_contra", contravariant=True)
Subject_contra = TypeVar("Subject_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Question:
    """The fields that every question has: where its answer is computed, and whether progress is shown."""

    device: str = "auto"
    """auto, cpu or cuda"""
    quiet: bool = True
    """no progress on standard error"""


@runtime_checkable
class Asking(Protocol[Subject_contra, P, Question_contra, Answer_co]):  # pyright: ignore[reportInvalidTypeVarUse]
    """A function that takes a question either as keywords or as a value."""

    @overload
    def __call__(self, subject: Subject_contra, question: Question_contra, /) -> Answer_co: ...
    @overload
    def __call__(self, subject: Subject_contra, *fields: P.args, **keywords: P.kwargs) -> Answer_co: ...


def asks(question: Callable[P, Q]) -> Callable[[Callable[[S, Q], R]], Asking[S, P, Q, R]]:
    """Lets a function of a subject and a question take the question's fields as keywords."""
    kind = cast(type, question)
    fields = inspect.signature(kind).parameters.values()

    def decorate(answer: Callable[[S, Q], R]) -> Asking[S, P, Q, R]:
        first = next(iter(inspect.signature(answer).parameters.values()))
        signature = inspect.Signature([first, *fields])

        @wraps(answer)
        def ask(*given: object, **keywords: object) -> R:
            if len(given) == 2 and not keywords and isinstance(given[1], kind):
                return answer(cast(S, given[0]), cast(Q, given[1]))
            values = signature.bind(*given, **keywords).arguments
            return answer(values.pop(first.name, first.default), kind(**values))

        ask.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        return cast(Asking[S, P, Q, R], ask)

    return decorate
