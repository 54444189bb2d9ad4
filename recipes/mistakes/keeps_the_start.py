"""Decoding keeps the start token, so every digit is compared with the one before it.

Looked right: the loss is near zero and decoded answers look like numbers; the 0% was blamed on "cascading errors". A
public implementation reports 0.0% for this reason, and 100% once the first token is dropped.
"""

from dataclasses import replace

import torch
from lab import START, adder_subject, exact, trained_adder
from torch import Tensor

from headway import Problems, Subject


def build() -> Subject:
    model = trained_adder()

    def generate(problems: Problems) -> Tensor:
        written = torch.full_like(problems.answer[:, :1], START)
        for _ in range(2):
            written = torch.cat((written, model(problems.source, written)[:, -1:].argmax(-1)), dim=1)
        return written

    return replace(adder_subject(model), generate=generate, score=lambda problems: exact(generate(problems), problems))
