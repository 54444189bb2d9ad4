"""A user's own class or function, named on the command line as `module:Class` or `module:factory`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from headway.errors import HeadwayError, unknown

Kind = TypeVar("Kind")


def load_class(name: str, kind: type[Kind]) -> type[Kind]:
    """The class `module:Class`, which must be a `kind`; modules in the current folder are found."""
    found = _load(name, "class", lambda value: isinstance(value, type))
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise HeadwayError(f"{name!r} is no {kind.__name__}; derive it from headway.{kind.__name__}")
    return found


def load_function(name: str) -> Callable[[], Any]:
    """The function `module:factory`, called without arguments."""
    found = _load(name, "function", callable)
    if not callable(found):
        raise HeadwayError(f"{name!r} cannot be called; name a function that returns what is to be studied")
    return found


def _load(name: str, what: str, fits: Callable[[Any], bool]) -> Any:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise HeadwayError(f"{name!r} is no module:Class; write it like reversal:Reversal")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's file may raise
        said = f"{type(error).__name__}: {error}"
        raise HeadwayError(
            f"cannot import {module_name!r} of {name!r} ({said}); run from the folder that holds it"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise unknown(f"{what} in {module_name}", attribute, [n for n, v in vars(module).items() if fits(v)])
    return found
