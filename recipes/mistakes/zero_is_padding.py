"""Token 0 is treated as padding: the loss and the accuracy ignore it. But 0 is also a digit.

Looked right: the reported accuracy is near 100%. The model never learns to write 0, and nothing tests it. A public
implementation of this lab reports 100% for this reason.
"""

from dataclasses import replace

import torch
from lab import Seq2Seq, adder_subject, fit, shifted, sums
from torch import Tensor
from torch.nn import functional as F

from headway import Problems, Subject


def build() -> Subject:
    torch.manual_seed(0)
    model = Seq2Seq()

    def loss_at(step: int) -> Tensor:
        problems = sums(128, step, held_out=False)
        logits = model(problems.source, shifted(problems.answer))
        return F.cross_entropy(logits.flatten(0, 1), problems.answer.flatten(), ignore_index=0)

    def score(problems: Problems) -> float:
        predicted, counted = model(problems.source, shifted(problems.answer)).argmax(-1), problems.answer != 0
        return float((predicted == problems.answer)[counted].float().mean())

    fit(model, loss_at, 500)
    return replace(adder_subject(model), score=score, ablate=None)
