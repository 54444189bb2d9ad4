"""Transformer-XL's relative attention: (q + u)·k + (q + v)·W r(i − j), r the sinusoids (Dai et al., 2019).

The second term needs no table of distances: sin and cos of i − j are sums of products of those of i and of j, so
queries and keys only become wider by the width of the sinusoids. W, u and v are the same in all layers.
"""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import Parameter

from headway.positions.positions import Positions, Shape, Unseen
from headway.positions.sinusoidal import frequencies, unseen_phases


class TransformerXL(Positions):
    name = "transformer-xl"
    turns_by_head = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.u = Parameter(torch.zeros(shape.heads, shape.dim))
        self.v = Parameter(torch.zeros(shape.heads, shape.dim))
        self.w = Parameter(torch.randn(shape.heads, shape.dim, 2, shape.d_model // 2) * shape.d_model**-0.5)

    def rotate(self, query: Tensor, key: Tensor, query_index: Tensor, key_index: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.einsum("bhqd,hdsf->bhqsf", query + self.v[:, None], self.w)
        of_sine, of_cosine = weights.unbind(-2)  # the weights of each wave's sine and cosine of i − j
        sine, cosine = (wave.to(query.dtype)[:, None] for wave in self._waves(query_index))  # batch 1 query wave
        beside_sine, beside_cosine = of_cosine * sine - of_sine * cosine, of_sine * sine + of_cosine * cosine
        wide_query = torch.cat((query + self.u[:, None], beside_sine, beside_cosine), dim=-1)
        waves = torch.cat(self._waves(key_index), dim=-1).to(key.dtype)[:, None]
        return wide_query, torch.cat((key, waves.expand(*key.shape[:3], -1)), dim=-1)

    def _waves(self, index: Int[Tensor, "#batch token"]) -> tuple[Tensor, Tensor]:
        angle = index[..., None] * frequencies(2 * (self.shape.d_model // 2), index.device)
        return angle.sin(), angle.cos()

    def unseen(self, tokens: int) -> Unseen | None:
        return unseen_phases(frequencies(self.shape.d_model), self.shape.trained, tokens)
