"""An encoder without positions is trained on sorted sequences from a narrow range and others from the whole range.

Looked right: it is nearly always right, without positions! It cannot see order at all; it sees how widely the numbers
spread.
"""

import torch
from lab import Sorter, fit, sorter_subject
from torch import Tensor
from torch.nn import functional as F

from headway import Problems, Subject


def draw_sequences(rows: int, seed: int) -> Problems:
    """Draws sorted sequences that grow by 0 or 1 at each step, and unsorted ones of eight numbers from 0 to 19."""
    dice = torch.Generator().manual_seed(seed)
    grown = torch.randint(10, (rows, 1), generator=dice) + torch.randint(2, (rows, 8), generator=dice).cumsum(1)
    answer = torch.randint(2, (rows, 1), generator=dice)
    return Problems(torch.where(answer == 1, grown, torch.randint(20, (rows, 8), generator=dice)), answer)


def build() -> Subject:
    torch.manual_seed(0)
    model = Sorter(positions=0)

    def loss_at(step: int) -> Tensor:
        problems = draw_sequences(128, step)
        return F.cross_entropy(model(problems.source)[:, 0], problems.answer[:, 0])

    fit(model, loss_at, 200, 3e-3)
    return sorter_subject(model, draw_sequences(2000, 1_000_000))
