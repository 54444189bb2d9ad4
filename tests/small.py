"""Small models that tests build, train and sweep, in one place."""

from __future__ import annotations

from typing import Any


def small_model(width: int = 16, heads: int = 2, **asked: Any) -> dict[str, Any]:
    """Returns settings of a one-layer model, with a feed-forward block twice as wide; `asked` overrides them."""
    return {"d_model": width, "heads": heads, "d_ff": 2 * width, "layers": 1, **asked}


def flags(**asked: Any) -> list[str]:
    """Returns settings as command-line flags."""
    return [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def small_trial(**asked: Any) -> dict[str, Any]:
    """Returns the settings of a trial that trains in a moment: an adder of two digits."""
    return {"task": "addition", **small_model(8, decoder_layers=1, steps=5, batch=4), "option.digits": 2, **asked}
