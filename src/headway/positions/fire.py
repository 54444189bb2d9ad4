"""FIRE: a small network of the distance divided by the longest possible one, both on a logarithmic scale:
f(ψ(d)/ψ(max(L, n))), ψ(x) = ln(c·x + 1) (Li et al., 2024). Signed, for encoders: the distance keeps its sign.

In a causal model n is the query's own index, as published; in an encoder it is the largest index of the sequence.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Parameter

from headway.positions.positions import TABLED, Positions, Shape, check_positive


class Fire(Positions):
    name = "fire"

    def __init__(self, shape: Shape, width: int = 32) -> None:
        super().__init__(shape)
        check_positive(self.name, width=width)
        self.c = Parameter(torch.tensor(1.0))
        self.least = Parameter(torch.tensor(float(shape.trained)))  # L: shorter sequences are not rescaled
        self.into, self.out = nn.Linear(1, width), nn.Linear(width, shape.heads)

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        distance = key_index[:, None, :] - query_index[:, :, None]  # batch query key
        if self.shape.causal:
            return self._bias_at(distance, query_index[:, :, None])
        farthest = key_index.amax(1)[:, None]
        if distance[0].numel() <= TABLED or torch.is_grad_enabled():
            return self._bias_at(distance, farthest[:, None])
        low, high = int(distance.min()), int(distance.max())
        every = torch.arange(low, high + 1, device=distance.device)[None]
        table = self._bias_at(every, farthest)  # batch head distance
        rows, heads = table.shape[:2]
        place = (distance - low).flatten(1)[:, None].expand(rows, heads, -1)
        return table.gather(2, place).unflatten(2, distance.shape[1:])

    def fall(self) -> Float[Tensor, "two head"] | str:
        return (
            f"{super().fall()}: it divides distances by the longest one, so that as a sequence grows the bias at any "
            "distance tends to that at 0, and no key fades"
        )

    def _bias_at(self, distance: Tensor, farthest: Tensor) -> Tensor:
        """Returns the bias at these distances, with the head axis after the batch."""
        c, farthest = self.c.abs(), torch.maximum(self.least.abs(), farthest.to(self.least.dtype))
        share = distance.sign() * torch.log1p(c * distance.abs()) / torch.log1p(c * farthest)
        return self.out(self.into(share[..., None]).relu()).movedim(-1, 1)
