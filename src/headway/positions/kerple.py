"""Kerple: a learned penalty that grows with the logarithm of the distance, −p · ln(1 + a·d), or with a power of it,
−a · d^p (Chi et al., 2022). Signed, for encoders: each direction has its own parameters."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from headway.positions.positions import Relative, Shape


class Kerple(Relative):
    """Kerple, logarithmic: −p · ln(1 + a·d), p and a learned for each head and direction."""

    name = "kerple"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.p = Parameter(2 * torch.rand(2, shape.heads))  # softplus keeps them above 0
        self.a = Parameter(torch.rand(2, shape.heads))

    def of_distance(self, distance: Tensor) -> Tensor:
        p, a = (self.by_direction(F.softplus(number), distance) for number in (self.p, self.a))
        return -p * torch.log1p(a * distance.abs())

    def fall(self) -> Float[Tensor, "two head"] | str:
        rate = float(F.softplus(self.p.detach()).min())
        why = f"the bias of {type(self).__name__} falls with the logarithm of the distance, in one head at a rate of"
        if rate <= 1:
            return f"{why} {rate:.2f}: at most 1, so the weights of all keys far away have no finite sum"
        finite = "the weights have a finite sum in exact arithmetic, but in float32 too many of them count"
        return f"{why} {rate:.2f} or more: {finite}, so rounding grows with the length"

    def by_direction(self, numbers: Float[Tensor, "two head"], distance: Tensor) -> Tensor:
        """Returns each head's parameter for the sign of each distance."""
        behind, ahead = numbers.view(*numbers.shape, *[1] * distance.ndim)
        return torch.where(distance < 0, behind, ahead)


class KerplePower(Kerple):
    """Kerple, power: −a · d^p with p at most 2."""

    name = "kerple-power"

    def of_distance(self, distance: Tensor) -> Tensor:
        p = 2 * torch.sigmoid(self.by_direction(self.p, distance))
        away = distance.abs().clamp(min=1).to(p.dtype)  # the gradient of 0^p is NaN
        return -self.by_direction(F.softplus(self.a), distance) * torch.where(distance == 0, 0.0, away**p)

    def fall(self) -> Float[Tensor, "two head"] | str:
        """Returns the first step, from 1 to 2: with a power of at least 1 all others are as large."""
        p = 2 * torch.sigmoid(self.p.detach())
        return F.softplus(self.a.detach()) * (2**p - 1) * (p >= 1)
