"""RoPE: queries and keys are rotated by angles that grow with their index (Su et al., 2021), so that their product
depends only on the difference. `interpolation=s` divides the index by s (Chen et al., 2023); `ntk=s` stretches the
long wavelengths instead, base · s^(d/(d−2))."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.positions.positions import Positions, Shape, Unseen, check_positive
from headway.positions.sinusoidal import unseen_phases


class Rope(Positions):
    name = "rope"

    def __init__(self, shape: Shape, interpolation: float = 1.0, ntk: float = 1.0) -> None:
        super().__init__(shape)
        check_positive(self.name, interpolation=interpolation, ntk=ntk)
        if shape.dim % 2 or shape.dim < 4:
            raise HeadwayError(f"rope rotates pairs of numbers; heads of width {shape.dim} do not have two whole pairs")
        self.interpolation, self.base = interpolation, 10_000.0 * ntk ** (shape.dim / (shape.dim - 2))

    def rotate(self, query: Tensor, key: Tensor, query_index: Tensor, key_index: Tensor) -> tuple[Tensor, Tensor]:
        return self._rotate_pairs(query, query_index), self._rotate_pairs(key, key_index)

    def frequencies(self, device: torch.device) -> Float[Tensor, " pair"]:
        place = torch.arange(0, self.shape.dim, 2, device=device, dtype=torch.float64)
        return self.base ** (-place / self.shape.dim)

    def _rotate_pairs(
        self, x: Float[Tensor, "batch head token dim"], index: Int[Tensor, "#batch token"]
    ) -> Float[Tensor, "batch head token dim"]:
        angle = (index[:, None, :, None] / self.interpolation) * self.frequencies(index.device)
        sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)  # batch 1 token pair
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.stack((first * cosine - second * sine, second * cosine + first * sine), dim=-1).flatten(-2)

    def unseen(self, tokens: int) -> Unseen | None:
        return unseen_phases(self.frequencies(torch.device("cpu")) / self.interpolation, self.shape.trained, tokens)
