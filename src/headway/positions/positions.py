"""How order is told: an encoding overrides one of the four places where order can enter.

What is not overridden adds nothing. Indices are whole numbers, `batch token`
(one row where all rows share it), chosen apart from the
encoding (see index.py), so every index combines with every encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """What an encoding may need to know of the model it serves."""

    d_model: int
    heads: int
    trained: int
    """how many indices training uses: 0 to this, exclusive"""


class Positions(nn.Module):
    """No signal at all; the parent of every encoding."""

    name: ClassVar[str]
    causal: ClassVar[bool] = False
    """whether an encoder with this encoding sees only what lies before"""

    blind: ClassVar[bool] = False
    """whether an encoder with this encoding cannot see order at all"""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    @property
    def only_embeds(self) -> bool:
        """Whether attention itself is not told of order."""
        return all(getattr(type(self), name) is getattr(Positions, name) for name in ("rotate", "bias", "temper"))

    def embed(
        self, x: Float[Tensor, "batch token d_model"], index: Int[Tensor, "#batch token"]
    ) -> Float[Tensor, "batch token d_model"]:
        """Token embeddings with what is added to them."""
        return x

    def rotate(
        self, x: Float[Tensor, "batch head token dim"], index: Int[Tensor, "#batch token"]
    ) -> Float[Tensor, "batch head token dim"]:
        """Queries, or keys, turned by their index."""
        return x

    def bias(
        self, query_index: Int[Tensor, "#batch query"], key_index: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch head query key"] | None:
        """What is added to the attention scores."""
        return None

    def temper(self, keys: int) -> float:
        """What the scores are multiplied by, given the number of keys."""
        return 1.0

    def untrained(self, tokens: int) -> range:
        """The indices below `tokens` whose signal no training step has touched."""
        return range(0)
