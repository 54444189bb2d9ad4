"""Clipped relative bias: a learned number for each signed distance, clipped at `distance` (after Shaw et
al., 2018). All of them are trained if `distance` is below the longest training length."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import Parameter

from headway.positions.positions import Shape, check_positive
from headway.positions.t5 import Bucketed


class Clipped(Bucketed):
    name = "clipped"

    def __init__(self, shape: Shape, distance: int = 8) -> None:
        super().__init__(shape)
        check_positive(self.name, distance=distance)
        self.farthest = distance
        self.table = Parameter(torch.randn(2 * distance + 1, shape.heads) * shape.d_model**-0.5)

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        return distance.clamp(-self.farthest, self.farthest) + self.farthest
