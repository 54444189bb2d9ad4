"""Window: a head sees only the keys from `behind` before to `ahead` after, with a learned bias for each distance. This
holds for all heads, or for a `share` of them, rounded up; the others see everything.

Scores outside a window need not be computed: attention gathers only the visible keys, in linear time
(models/windowed.py)."""

import math

import torch
from torch import Tensor
from torch.nn import Parameter

from headway.errors import HeadwayError
from headway.positions.positions import Relative, Shape


class Window(Relative):
    name = "window"

    def __init__(self, shape: Shape, behind: int = 2, ahead: int = 2, share: float = 1.0) -> None:
        super().__init__(shape)
        if min(behind, ahead) < 0 or (shape.causal is False and behind + ahead < 1):
            raise HeadwayError(f"window+behind={behind}+ahead={ahead}: it must include at least one neighbour")
        if not 0 < share <= 1:
            raise HeadwayError(f"window+share={share:g}: it must be above 0 and at most 1")
        self.behind, self.ahead, self.heads = behind, ahead, math.ceil(share * shape.heads)
        self.table = Parameter(torch.randn(behind + 1 + ahead, shape.heads) * shape.d_model**-0.5)

    @property
    def offsets(self) -> range | None:
        return range(-self.behind, self.ahead + 1) if self.heads == self.shape.heads else None

    def of_distance(self, distance: Tensor) -> Tensor:
        known = self.table[distance.clamp(-self.behind, self.ahead) + self.behind].movedim(-1, 0)
        outside = (distance < -self.behind) | (distance > self.ahead)
        narrow = torch.arange(len(known), device=known.device) < self.heads
        far = torch.where(narrow, -torch.inf, 0.0).to(known.dtype).view(-1, *[1] * distance.ndim)
        return torch.where(outside, far, known)
