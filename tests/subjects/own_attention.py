"""Attention as people write it: fused, with named layers, with heads kept apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter

WIDE, HEADS, TOKENS = 12, 3, 11


class Fused(nn.Module):
    """One layer for queries, keys and values, and einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE), HEADS

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(2).softmax(-1)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class Named(nn.Module):
    """Separate layers, and the map returned as well."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.linear_out = nn.Linear(WIDE, WIDE)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.linear_q, self.linear_k, self.linear_v)
        )
        weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        return self.linear_out((weights @ v).transpose(1, 2).flatten(2)), weights


class Dense(nn.Module):
    """A layer with separate weights per head; its input has heads before queries, or after them."""

    def __init__(self, heads_first: bool) -> None:
        super().__init__()
        self.kernel, self.bias = Parameter(torch.zeros(HEADS, WIDE // HEADS, WIDE)), Parameter(torch.zeros(WIDE))
        self.rule = "bhqd,hdo->bqo" if heads_first else "bqhd,hdo->bqo"

    def forward(self, z: Tensor) -> Tensor:
        return torch.einsum(self.rule, z, self.kernel) + self.bias


class Apart(nn.Module):
    def __init__(self, heads_first: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.output, self.heads_first = Dense(heads_first), heads_first

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        z = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        return self.output(z if self.heads_first else z.transpose(1, 2))


class Net(nn.Module):
    """Two layers of some attention, a feed-forward layer between them, and logits."""

    def __init__(self, *attentions: nn.Module) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(TOKENS, WIDE), nn.ModuleList(attentions)
        self.feed, self.head = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            said = layer(x)
            x = x + (said[0] if isinstance(said, tuple) else said)
            x = x + self.feed(x).tanh()
        return self.head(x)
