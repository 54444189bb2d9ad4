"""What the config and the weights tell about positions past training; what stops a model is only told by a cure."""

import math
from typing import Any

from headway.attach.order import TokenOrder


def describe_positions(model: Any, order: TokenOrder, trained: int, cause: str, length: int) -> str:
    """Says what a model meets at this length that it never met in training."""
    if cause == "untrained rows":
        path = order.modules[0]
        rows = "" if order.longest is None else f" (the table has {order.longest:,})"
        return f"rows {trained:,} to {length - 1:,} of {path} were never used in {trained:,} tokens{rows}"
    if cause == "untrained angles":
        frequencies = getattr(model.get_submodule(order.modules[0]), "inv_freq", None)
        if frequencies is None:
            return ""
        turns = frequencies.float() * trained / (2 * math.pi)
        new = int((turns < 1).sum())
        return f"{new} of {len(turns)} pairs of dimensions turn to angles that {trained:,} tokens never reach"
    if cause == "distance penalty":
        return f"the bias at {length:,} tokens is up to {length / trained:.3g} times what training reached"
    if cause == "dispersion":
        return f"attention spreads over {length / trained:.3g} times as many tokens"
    return ""
