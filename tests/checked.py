"""Tensor shapes are enforced in the first calls that a test makes of each function.

jaxtyping's import hook checks every call of every function, and compiles a checker whenever a function inside another
is defined. That took two fifths of the time of the tests and found the same thing a thousand times.
`check_first_calls` replaces its decorator.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from jaxtyping import jaxtyped

MOST_CALLS = 10  # of a function in a test
CALLS = Counter[Callable[..., Any]]()


def check_first_calls(*, typechecker: Any) -> Callable[[Any], Any]:
    """Decorates as `jaxtyped` does; a function inside another is left alone."""

    def decorate(thing: Any) -> Any:
        if inspect.isfunction(thing) and "<locals>" in thing.__qualname__:
            return thing
        checked = jaxtyped(typechecker=typechecker)(thing)
        if not inspect.isfunction(thing):
            return checked

        @functools.wraps(thing)
        def call(*given: Any, **named: Any) -> Any:
            CALLS[thing] += 1
            return (checked if CALLS[thing] <= MOST_CALLS else thing)(*given, **named)

        return call

    return decorate
