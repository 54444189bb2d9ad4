"""ALiBi with learned slopes: each head has its own slope behind and ahead, and its own centre, the distance at which
its bias is 0. It sees all keys, and how fast they fade is learned.

Slopes are stored as logarithms: they stay above 0, and a step of the optimizer changes steep and flat ones alike. The
settings are only where training starts: a centre of -0.5 is halfway between a token and the one before it.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter

from headway.positions.positions import Relative, Shape, check_positive


class AlibiLearned(Relative):
    """ALiBi with learned slopes: −m · |distance − centre|, m learned for each head and direction."""

    name = "alibi-learned"

    def __init__(self, shape: Shape, slope: float = 1.0, centre: float = -0.5) -> None:
        super().__init__(shape)
        check_positive(self.name, slope=slope)
        self.log_slope = Parameter(torch.full((2, shape.heads), math.log(slope)))  # behind or ahead of the centre, head
        self.centre = Parameter(torch.full((shape.heads,), centre))

    def of_distance(self, distance: Tensor) -> Tensor:
        behind, ahead = self.log_slope.exp().view(2, -1, *[1] * distance.ndim)
        away = distance - self.centre.view(-1, *[1] * distance.ndim)
        return -torch.where(away < 0, behind, ahead) * away.abs()

    def fall(self) -> Float[Tensor, "two head"] | str:
        """Returns the slopes: beyond a neighbour nothing else counts, unless the centre lies beyond it."""
        between = (self.centre.abs() <= 1).to(self.centre.dtype)
        return (self.log_slope.exp() * between).detach()
