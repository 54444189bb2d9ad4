"""Heads are "ablated" by a hook on the output projection of nn.MultiheadAttention, which is never called: PyTorch uses
its weight and bypasses the module.

Looked right: no head costs anything, so "all heads are redundant".
"""

from collections.abc import Collection
from dataclasses import replace

import torch
from lab import Sorter, fit, sequences, sorter_subject
from torch import Tensor, nn
from torch.nn import functional as F

from headway import Head, Problems, Site, Subject

SITE = Site("encoder", 0, "self")


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.rest = nn.MultiheadAttention(64, 4, batch_first=True), Sorter()

    def forward(self, source: Tensor, answer: Tensor | None = None) -> Tensor:
        x = self.rest.tokens(source) + self.rest.positions.weight[: source.shape[1]]
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.rest.unembed(self.rest.norm(self.rest.blocks[0](x)).amax(1))[:, None]


def build() -> Subject:
    torch.manual_seed(0)
    model = Encoder()

    def loss_at(step: int) -> Tensor:
        problems = sequences(128, step, 5 + step % 4)
        return F.cross_entropy(model(problems.source)[:, 0], problems.answer[:, 0])

    def ablate(problems: Problems, heads: Collection[Head]) -> Tensor:
        def close(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
            z = given[0].clone()
            for head in heads:
                z[..., 16 * head.number : 16 * (head.number + 1)] = 0
            return (z,)

        hook = model.attention.out_proj.register_forward_pre_hook(close)
        logits = model(problems.source)
        hook.remove()
        return logits

    fit(model, loss_at, 250, 3e-3)
    return replace(
        sorter_subject(model, sequences(2000, 1_000_000, 8)),
        heads=tuple(Head(SITE, number) for number in range(4)),
        ablate=ablate,
        projections={SITE: model.attention.out_proj},
    )
