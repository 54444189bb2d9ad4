"""Your own position encoding: a class in a file, named on the command line.

    headway lengths sortedness --track tuned --positions recipes/own_positions.py:Slanted,kerple --lengths 32,64,128

The class only defines where order enters and gets everything else: training, every probe at
every length, the reasons why it fails, and a fair row next to the others.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from headway import Relative, Shape


class Slanted(Relative):
    """A bias that falls with the square root of the distance, at a rate learned for each head and direction."""

    name = "slanted"

    def __init__(self, shape: Shape, steep: float = 1.0) -> None:
        super().__init__(shape)
        self.slope = Parameter(steep * torch.rand(2, shape.heads))

    def of_distance(self, distance: Tensor) -> Tensor:
        behind, ahead = self.slope.view(2, -1, *[1] * distance.ndim)
        return -torch.where(distance < 0, behind, ahead) * distance.abs().sqrt()
