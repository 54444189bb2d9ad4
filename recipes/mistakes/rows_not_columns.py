"""A head is "removed" by zeroing its rows of the output projection. Heads are columns; a row mixes all of them.

Looked right: accuracies fall by different amounts, and the ranking looks like any other.
"""

from collections.abc import Collection
from dataclasses import replace

import torch
from lab import adder_subject, attentions, shifted, trained_adder
from torch import Tensor

from headway import Head, Problems, Subject


def build() -> Subject:
    model = trained_adder()

    @torch.no_grad()
    def ablate(problems: Problems, heads: Collection[Head]) -> Tensor:
        kept = {site: attention.out.weight.clone() for site, attention in attentions(model).items()}
        for head in heads:
            attentions(model)[head.site].out.weight[16 * head.number : 16 * (head.number + 1)] = 0
        logits = model(problems.source, shifted(problems.answer))
        for site, attention in attentions(model).items():
            attention.out.weight.copy_(kept[site])
        return logits

    return replace(adder_subject(model), ablate=ablate)
