"""Decoding is given the leading digit of the right answer and continues from there.

Looked right: all three digits of every answer are right. Only two of them are the model's.
"""

from dataclasses import replace

import torch
from lab import START, adder_subject, exact, trained_adder
from torch import Tensor

from headway import Problems, Subject


def build() -> Subject:
    model = trained_adder()

    def generate(problems: Problems) -> Tensor:
        first = problems.answer[:, :1]
        written = torch.cat((torch.full_like(first, START), first), dim=1)
        for _ in range(2):
            written = torch.cat((written, model(problems.source, written)[:, -1:].argmax(-1)), dim=1)
        return written[:, 1:]

    return replace(adder_subject(model), generate=generate, score=lambda problems: exact(generate(problems), problems))
