"""Training uses the causal mask, evaluation forgets it. The decoder has no positions: only the mask gives it order.

Looked right: the training loss is near zero, so the low number was taken for overfitting. A public implementation of
this lab reports 0.65% for this reason, and 66.1% once the mask is passed.
"""

from dataclasses import replace

import torch
from lab import Seq2Seq, adder_subject, exact, fit, shifted, sums
from torch import Tensor, nn
from torch.nn import functional as F

from headway import Problems, Subject


def build() -> Subject:
    torch.manual_seed(0)
    model = Seq2Seq(layers=2)
    nn.init.zeros_(model.answer_positions.weight.requires_grad_(False))

    def loss_at(step: int) -> Tensor:
        some = sums(128, step, held_out=False)
        return F.cross_entropy(model(some.source, shifted(some.answer)).flatten(0, 1), some.answer.flatten())

    def forced(problems: Problems) -> Tensor:
        return model(problems.source, shifted(problems.answer), causal=False).argmax(-1)

    fit(model, loss_at, 600, rate=3e-3)
    return replace(
        adder_subject(model), forced=forced, score=lambda problems: exact(forced(problems), problems), tables=()
    )
