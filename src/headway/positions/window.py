"""Window: every head sees only the keys from `behind` before to `ahead` after, with a learned bias for each distance.

What a window does not see need not be computed: attention gathers the keys it sees, in time that grows with the length
and not with its square (models/windowed.py)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from headway.errors import HeadwayError
from headway.positions.positions import Relative, Shape


class Window(Relative):
    name = "window"

    def __init__(self, shape: Shape, behind: int = 2, ahead: int = 2) -> None:
        super().__init__(shape)
        if min(behind, ahead) < 0 or (shape.causal is False and behind + ahead < 1):
            raise HeadwayError(f"window+behind={behind}+ahead={ahead}: it must see itself and at least one neighbour")
        self.behind, self.ahead = behind, ahead
        self.table = Parameter(torch.randn(behind + 1 + ahead, shape.heads) * shape.d_model**-0.5)

    @property
    def offsets(self) -> range:
        return range(-self.behind, self.ahead + 1)

    def of_distance(self, distance: Tensor) -> Tensor:
        known = self.table[distance.clamp(-self.behind, self.ahead) + self.behind].movedim(-1, 0)
        return known.masked_fill((distance < -self.behind) | (distance > self.ahead), -torch.inf)
