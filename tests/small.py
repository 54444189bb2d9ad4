"""Small models: what tests build, train and sweep, in one place. A size is an argument."""

from __future__ import annotations

from typing import Any


def small_model(width: int = 16, heads: int = 2, **asked: Any) -> dict[str, Any]:
    """Keywords of one layer, its feed-forward block twice as wide as the model; `asked` comes beside or instead."""
    return {"d_model": width, "heads": heads, "d_ff": 2 * width, "layers": 1, **asked}


def flags(**asked: Any) -> list[str]:
    """The same as words of a command line."""
    return [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def small_trial(**asked: Any) -> dict[str, Any]:
    """The settings of a trial that trains in a moment: an adder of two digits."""
    return {"task": "addition", **small_model(8, decoder_layers=1, steps=5, batch=4), "option.digits": 2, **asked}
