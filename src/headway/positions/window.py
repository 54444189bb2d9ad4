"""Window: every head sees only the keys within `radius`, with a learned bias for each signed distance."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from headway.positions.positions import Relative, Shape, check_positive


class Window(Relative):
    name = "window"

    def __init__(self, shape: Shape, radius: int = 2) -> None:
        super().__init__(shape)
        check_positive(self.name, radius=radius)
        self.radius = radius
        self.table = Parameter(torch.randn(2 * radius + 1, shape.heads) * shape.d_model**-0.5)

    def of_distance(self, distance: Tensor) -> Tensor:
        known = self.table[distance.clamp(-self.radius, self.radius) + self.radius].movedim(-1, 0)
        return known.masked_fill(distance.abs() > self.radius, -torch.inf)
