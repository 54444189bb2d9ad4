"""A user's model with hand-written attention, studied as `own_model:build`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import headway

WIDE, HEADS, TOKENS, LONG, ROWS = 24, 4, 13, 7, 1200


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.num_heads = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE), HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights_of(q, k), v).flatten(2))


def weights_of(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bqhd,bkhd->bhqk", q, k).div(2).softmax(-1)


def maps(attention: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
    assert isinstance(attention, Attention)
    q, k, _ = attention.qkv(inputs[0]).unflatten(-1, (3, HEADS, -1)).unbind(2)
    return weights_of(q, k)


class Tagger(nn.Module):
    """Predicts a token for every token of the source."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, WIDE), nn.Embedding(LONG, WIDE)
        self.layers, self.head = nn.ModuleList(Attention() for _ in range(2)), nn.Linear(WIDE, TOKENS)

    def forward(self, source: Tensor) -> Tensor:
        x = self.embed(source) + self.place.weight
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@torch.no_grad()
def build() -> headway.Subject:
    """Builds a subject whose right answers are the model's own, so that it is always right."""
    dice = torch.Generator().manual_seed(0)
    model = Tagger().eval()
    for parameter in model.parameters():
        parameter.copy_(torch.rand(parameter.shape, generator=dice) - 0.5)  # uniform bits: the same on every machine
    source = torch.randint(TOKENS, (ROWS, LONG), generator=dice)
    problems = headway.Problems(source, model(source).argmax(-1)[:, :2])
    return headway.Subject(
        model, sites=["*.out"], examples=problems, reader=lambda model, source, _: model(source)[:, :2], maps=maps
    )
