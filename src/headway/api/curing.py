"""`headway.cured`: a model that works at longer texts, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.attach import cures
from headway.attach.order import Setting, find_order


@contextmanager
def cured(model: Any, name: str, *, trained: int, length: int) -> Iterator[None]:
    """Applies a cure to a causal language model of transformers inside the context, for texts of `length` tokens.

    `trained` is its training length; `a+b` applies two cures. Run the model with `use_cache=False`. Afterwards it is
    restored to the bit.
    """
    with cures.cured(model, find_order(model), name, Setting(trained, length)):
        yield
