"""Decoding token by token, held against the one-pass verdict, problem by problem."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from headway.evaluation.examples import batches
from headway.evaluation.verdicts import right, same_answer
from headway.models import Gates, Model
from headway.progress import Watch
from headway.tasks import Problems


@dataclass(frozen=True)
class Greedy:
    checked: int
    mismatches: int
    """problems right by one way and wrong by the other"""


@torch.inference_mode()
def check_greedy(
    model: Model, problems: Iterable[Problems], total: int, gates: Gates | None = None, watch: Watch | None = None
) -> Greedy:
    """Decodes problems token by token with a key-value cache and compares the verdicts."""
    model.eval()
    checked = mismatches = 0
    for chunk in problems:
        for batch in batches(chunk):
            written = model.generate(batch.source, batch.answer.shape[1], gates)
            in_one_pass = right(model(batch.source, batch.answer, gates), batch)
            mismatches += int((same_answer(written, batch) != in_one_pass).sum())
            checked += len(batch)
            if watch is not None:
                watch(checked, total)
    return Greedy(checked, mismatches)
