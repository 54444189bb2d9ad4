"""T5: a learned bias for each bucket of distances (Raffel et al., 2020). Half of the buckets hold one distance each,
the rest grow logarithmically up to `distance`; the last holds all beyond. In an encoder each direction gets half.

Buckets of distances that training never meets stay untrained: with 16 training tokens, the default 128 leaves some so.
"""

import math

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import Parameter

from headway.errors import HeadwayError
from headway.positions.positions import Relative, Shape, Unseen


class Bucketed(Relative):
    """A learned bias for each bucket of distances."""

    table: Parameter

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        raise NotImplementedError

    def of_distance(self, distance: Tensor) -> Tensor:
        return self.table[self.bucket(distance)].movedim(-1, 0)

    def unseen(self, tokens: int) -> Unseen | None:
        known, used = (
            set(self.bucket(torch.arange(1 - count, count)).tolist())
            for count in (min(self.shape.trained, tokens), tokens)
        )
        return Unseen("buckets were never trained", len(used - known), len(used)) if used - known else None


class T5(Bucketed):
    name = "t5"

    def __init__(self, shape: Shape, distance: int = 128, buckets: int = 32) -> None:
        super().__init__(shape)
        self.farthest, self.sides = distance, 1 if shape.causal else 2
        self.buckets = buckets // self.sides  # for one direction
        self.exact = self.buckets // 2
        if self.exact < 1 or distance <= self.exact:
            wrong = f"t5+distance={distance}+buckets={buckets}: the first {self.exact} distances have their own buckets"
            raise HeadwayError(f"{wrong}; the distance must be larger than that, and the buckets at least 4")
        self.table = Parameter(torch.randn(self.buckets * self.sides, shape.heads) * shape.d_model**-0.5)

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        away = distance.abs() if self.sides == 2 else (-distance).clamp(min=0)
        ratio = (away.clamp(min=1).float() / self.exact).log() / math.log(self.farthest / self.exact)
        far = self.exact + (ratio * (self.buckets - self.exact)).long()
        side = (distance > 0) * self.buckets if self.sides == 2 else 0
        return torch.where(away < self.exact, away, far.clamp(max=self.buckets - 1)) + side
