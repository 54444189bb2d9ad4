"""Learned: a table with a row for each index, added to the embeddings.

Training to length n updates rows 0 to n - 1; the rest keep their random initial values. `untrained` lists
them, and every result that depends on them says so. `learned-clamped` gives every later index the last
trained row instead.
"""

import torch
from torch import Tensor
from torch.nn import Parameter

from headway.errors import HeadwayError
from headway.positions.positions import Positions, Shape, Unseen


class Learned(Positions):
    name = "learned"
    past_training = "table rows were never trained"

    def __init__(self, shape: Shape, rows: int = 512) -> None:
        super().__init__(shape)
        if rows < shape.trained:
            few = f"{self.name} positions have {rows} rows, too few to train on {shape.trained} tokens"
            raise HeadwayError(f"{few}; use {self.name}+rows={shape.trained} or more")
        self.rows = rows
        self.table = Parameter(torch.randn(self.rows, shape.d_model) * 0.5)  # index d_model

    def embed(self, x: Tensor, index: Tensor) -> Tensor:
        return x + self.table[index]

    def untrained(self, tokens: int) -> range:
        return range(self.shape.trained, tokens)

    def unseen(self, tokens: int) -> Unseen | None:
        new = tokens - self.shape.trained
        return Unseen(self.past_training, new, tokens) if new > 0 else None

    def check_length(self, tokens: int) -> None:
        if tokens > self.rows:
            lacks = f"a sequence of {tokens} tokens has none for indices {self.rows} to {tokens - 1}"
            remedy = f"test at most {self.rows} tokens, train with {self.name}+rows={tokens}, or choose other positions"
            raise HeadwayError(f"{self.name} positions have {self.rows} rows; {lacks}: {remedy}")


class LearnedClamped(Learned):
    name = "learned-clamped"
    past_training = "places share the last trained row"

    def embed(self, x: Tensor, index: Tensor) -> Tensor:
        return x + self.table[index.clamp(max=self.shape.trained - 1)]

    def untrained(self, tokens: int) -> range:
        return range(0)

    def check_length(self, tokens: int) -> None:
        """Accepts any length: later positions share the last trained row."""
