"""One each: every head sees the keys at one distance and no others, the first head those furthest ahead.

There is nothing to learn: a head sees a key or does not. A query may have no key at a head's distance, which a softmax
does not allow, so only a model whose heads average what they see (models/averaging.py) can use it, and it is not in the
list of encodings to choose from."""

import torch
from torch import Tensor

from headway.positions.positions import Relative, Shape


class OneEach(Relative):
    name = "one-each"

    def __init__(self, shape: Shape, ahead: int = 1) -> None:
        super().__init__(shape)
        self.ahead = ahead

    @property
    def offsets(self) -> range:
        return range(self.ahead - self.shape.heads + 1, self.ahead + 1)

    def of_distance(self, distance: Tensor) -> Tensor:
        own = self.ahead - torch.arange(self.shape.heads, device=distance.device).view(-1, *[1] * distance.ndim)
        return torch.where(distance == own, 0.0, -torch.inf)  # head …
