"""Decoding token by token, held against the one-pass verdict, problem by problem."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.exact import batch_rows, batches, right
from headway.models import Classifier, Gates, Model
from headway.tasks import Problems, Task


@dataclass(frozen=True)
class Greedy:
    checked: int
    mismatches: int
    """problems right by one way and wrong by the other"""


def same_answer(written: Int[Tensor, "row answer"], problems: Problems) -> Bool[Tensor, " row"]:
    """Which written answers are the right ones, up to the end token where there is one."""
    same = written == problems.answer
    if problems.scored is not None:
        same = same | ~problems.scored
    return same.all(1)


@torch.inference_mode()
def check_greedy(
    model: Model, task: Task, examples: int, seed: int = 0, length: int | None = None, gates: Gates | None = None
) -> Greedy:
    """Decodes fresh problems token by token with a key-value cache and compares the verdicts."""
    if isinstance(model, Classifier):
        raise HeadwayError(f"{task.name} answers with a class; there is nothing to decode: leave out --check-greedy")
    model.eval()
    device = next(model.parameters()).device
    mismatches = 0
    problems = task.testing(seed, examples, length=length, device=device)
    for batch in batches(problems, batch_rows(device)):
        written = model.generate(batch.source, batch.answer.shape[1], gates)
        in_one_pass = right(model(batch.source, batch.answer, gates), batch)
        mismatches += int((same_answer(written, batch) != in_one_pass).sum())
    return Greedy(examples, mismatches)
