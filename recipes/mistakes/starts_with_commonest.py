"""The leading digit is never predicted, as in starts_with_zero.py; decoding begins with the most common one of the
batch.

Looked right: more than half of the answers are right, so something was learned. The number changes with the batch size:
decoded alone, every sum begins with its own leading digit and is right. A public implementation of this lab reports
54.95% for this reason.
"""

from dataclasses import replace

import torch
from lab import adder_subject, exact, trained_without_start
from torch import Tensor

from headway import Problems, Subject


def build() -> Subject:
    model = trained_without_start()

    def generate(problems: Problems) -> Tensor:
        commonest = int(problems.answer[:, 0].mode().values)
        first = torch.full_like(problems.answer[:, :1], commonest)
        return torch.cat((first, model.generate(problems.source, length=2, start=commonest)), dim=1)

    def score(problems: Problems) -> float:
        batches = [problems[at : at + 64] for at in range(0, len(problems), 64)]
        return sum(exact(generate(batch), batch) * len(batch) for batch in batches) / len(problems)

    return replace(
        adder_subject(model),
        start=None,
        generate=generate,
        forced=lambda problems: model(problems.source, problems.answer[:, :-1]).argmax(-1),
        score=score,
        ablate=None,
    )
