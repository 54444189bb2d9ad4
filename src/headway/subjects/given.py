"""What a user's functions return: a description for messages, and what is wrong with a table of problems."""

from typing import Any

import torch
from torch import Tensor

from headway.tasks import Problems


def find_fault(problems: Problems) -> str | None:
    """Says what is wrong with problems that were given; None if nothing is."""
    source, answer, scored = problems.source, problems.answer, problems.scored
    if any(t.dim() != 2 or t.is_floating_point() for t in (source, answer)) or len(source) != len(answer):
        tables = f"{describe(source)} and {describe(answer)}"
        return f"holds {tables}; it must hold rows of integers, as many answers as sources"
    if scored is not None and (scored.dtype != torch.bool or scored.shape != answer.shape):
        one_each = f"one bool for every answer token, {tuple(answer.shape)}"
        return f"has {describe(scored)} as scored; it must be {one_each}"
    if len(problems) < 2:
        return f"has {len(problems)} problems; at least 2 are needed"
    return None


def describe(value: Any) -> str:
    """Describes a returned value by its type and shape."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return type(value).__name__
