"""Finds which rows of a table the answers depend on, by their gradient: of a position table, the positions in use."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.tasks import Problems


def find_used_rows(
    run: Callable[[Problems], Tensor], tables: Sequence[Tensor], sets: Iterable[Problems], name: str
) -> list[set[int]]:
    """Finds the rows of each table that any answer to these problems depends on; `run` returns the logits. A table may
    have a first axis of one, for the batch."""
    used, needed = [set[int]() for _ in tables], [table.requires_grad for table in tables]
    for table in tables:
        table.requires_grad_(True)
    try:
        for some in (batch for problems in sets for batch in batches(problems)):
            with torch.enable_grad():
                total = run(some).pow(2).sum()
            if not total.requires_grad:
                raise HeadwayError(f"{name} answers without gradients; remove torch.no_grad(), or leave out tables")
            for rows, gradient in zip(used, torch.autograd.grad(total, tables, allow_unused=True), strict=True):
                if gradient is not None:
                    each = gradient[0] if gradient.ndim == 3 and len(gradient) == 1 else gradient
                    rows |= set(each.flatten(1).abs().sum(1).nonzero()[:, 0].tolist())
    finally:
        for table, before in zip(tables, needed, strict=True):
            table.requires_grad_(before)
    return used
