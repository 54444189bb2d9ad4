"""Training feeds the answer without its last digit and asks for it without its first: the leading digit is given, never
predicted. Decoding then begins with token 0, which is the digit 0.

Looked right: the loss goes to zero, and given the right tokens every prediction is right. The number is the share of
sums below 100, which begin with 0. A public implementation of this lab reports 41.2% for this reason.
"""

from dataclasses import replace

import torch
from lab import adder_subject, exact, trained_without_start
from torch import Tensor

from headway import Problems, Subject


def build() -> Subject:
    model = trained_without_start()

    def generate(problems: Problems) -> Tensor:
        first = torch.zeros_like(problems.answer[:, :1])
        return torch.cat((first, model.generate(problems.source, length=2, start=0)), dim=1)

    return replace(
        adder_subject(model),
        start=0,
        generate=generate,
        forced=lambda problems: model(problems.source, problems.answer[:, :-1]).argmax(-1),
        score=lambda problems: exact(generate(problems), problems),
        ablate=None,
    )
