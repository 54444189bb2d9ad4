"""Learned: a table with a row for each index, added to the embeddings.

Training to length n touches rows 0 to n - 1; the rest keep their random start and mean nothing. They are
known (`untrained`) and said out loud wherever they are used. `learned-clamped` gives every later index the
last trained row instead.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from headway.errors import HeadwayError
from headway.positions.positions import Positions, Shape

ROWS = 512


class Learned(Positions):
    name = "learned"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        if shape.trained > ROWS:
            raise HeadwayError(f"{self.name} positions have {ROWS} rows, too few to train on {shape.trained} tokens")
        self.table = Parameter(torch.randn(ROWS, shape.d_model) * 0.5)  # index d_model

    def embed(self, x: Tensor, index: Tensor) -> Tensor:
        tokens = x.shape[1]
        if tokens > ROWS:
            raise HeadwayError(
                f"{self.name} positions have {ROWS} rows; a sequence of {tokens} tokens has none for "
                f"indices {ROWS} to {tokens - 1}: test at most {ROWS} tokens or choose other positions"
            )
        return x + self.table[index]

    def untrained(self, tokens: int) -> range:
        return range(self.shape.trained, tokens)


class LearnedClamped(Learned):
    name = "learned-clamped"

    def embed(self, x: Tensor, index: Tensor) -> Tensor:
        return x + self.table[index.clamp(max=self.shape.trained - 1)]

    def untrained(self, tokens: int) -> range:
        return range(0)
