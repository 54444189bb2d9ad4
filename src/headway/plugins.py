"""A user's own class, named on the command line as `module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TypeVar

from headway.errors import HeadwayError, unknown

Kind = TypeVar("Kind")


def load_class(name: str, kind: type[Kind]) -> type[Kind]:
    """The class `module:Class`, which must be a `kind`; modules in the current folder are found."""
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise HeadwayError(f"{name!r} is no module:Class; write it like reversal:Reversal")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's file may raise
        what = f"{type(error).__name__}: {error}"
        raise HeadwayError(
            f"cannot import {module_name!r} of {name!r} ({what}); run from the folder that holds it"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise unknown(
            f"class in {module_name}", class_name, [n for n, v in vars(module).items() if isinstance(v, type)]
        )
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise HeadwayError(f"{name!r} is no {kind.__name__}; derive it from headway.{kind.__name__}")
    return found
