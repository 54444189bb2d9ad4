"""ALiBi: a penalty of m · distance on the scores, m = 2^(−8h/H) for head h of H (Press et al., 2022).

`alibi` is symmetric: in an encoder it cannot tell a sequence from its reverse. `alibi-signed` is for encoders: half of
the heads see only earlier tokens, the other half only later ones.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from headway.errors import HeadwayError
from headway.positions.positions import Relative, Shape


def penalty(heads: int, distance: Tensor) -> Tensor:
    """Returns the penalty as published: unless `heads` is a power of two, every other m of the next power is added."""
    even = 2 ** (heads.bit_length() - 1)
    first = 2.0 ** (-8.0 * torch.arange(1, even + 1, device=distance.device) / even)
    more = 2.0 ** (-4.0 * torch.arange(1, 2 * even + 1, 2, device=distance.device) / even)
    return -torch.cat((first, more[: heads - even])).view(-1, *[1] * distance.ndim) * distance.abs()


class Alibi(Relative):
    name = "alibi"
    reversible = True

    def of_distance(self, distance: Tensor) -> Tensor:
        return penalty(self.shape.heads, distance)

    def fall(self) -> Float[Tensor, "two head"] | str:
        return -penalty(self.shape.heads, torch.ones(2, dtype=torch.long)).T


class AlibiSigned(Relative):
    """ALiBi for encoders: half of the heads look back, half look ahead."""

    name = "alibi-signed"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        if shape.heads % 2:
            raise HeadwayError(f"alibi-signed gives each direction half of the heads; {shape.heads} is not even")

    def of_distance(self, distance: Tensor) -> Tensor:
        away = penalty(self.shape.heads // 2, distance)
        hidden = torch.full_like(away, -torch.inf)
        return torch.cat((away.where(distance <= 0, hidden), away.where(distance >= 0, hidden)))

    def fall(self) -> Float[Tensor, "two head"] | str:
        return -penalty(self.shape.heads // 2, torch.ones(2, dtype=torch.long)).repeat(2, 1).T
