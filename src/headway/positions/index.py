"""The position index: the whole number each token gets, before any encoding makes a signal of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

Index = Callable[[int, int, torch.device], Int[Tensor, "#batch token"]]


def sequential(batch: int, tokens: int, device: torch.device) -> Int[Tensor, "#batch token"]:
    """0, 1, 2, …: one row that serves the whole batch."""
    return torch.arange(tokens, device=device)[None]
