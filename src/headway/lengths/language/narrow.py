"""What recall and loss become at each length when the heads of a language model see only their windows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from headway.attach.cures import Setting
from headway.attach.order import find_order
from headway.errors import HeadwayError
from headway.evaluation.intervals import Interval
from headway.lengths.language.cells import gain
from headway.lengths.language.corpus import Material, prepare_material
from headway.lengths.language.effective import NONE
from headway.lengths.language.plan import SHORTEST
from headway.lengths.language.reading import LanguageReader
from headway.lengths.language.recall import TASKS, choose_tasks, draw_recall
from headway.windows.budget import Budget
from headway.windows.switching import narrowed

ANSWERS, DEPTHS = 512, 2
PASSAGES, PLACES = 16, 64
"""passages of the text, and places of each at which the loss is measured, from its middle on"""


@dataclass(frozen=True)
class LengthRow:
    """Recall of one task, or the loss on a text, at one length: of the model as it is, and with windows."""

    what: str
    length: int
    cache_share: float
    full: float
    windows: float
    change: Interval | None
    """the 95% interval of the difference in accuracy, on the same prompts"""
    count: int
    """answers, or predicted tokens"""

    def to_json(self) -> dict[str, str | float | list[float] | None]:
        change = None if self.change is None else self.change.to_json()
        row = {"what": self.what, "length": self.length, "cache_share": self.cache_share, "full": self.full}
        return {**row, "windows": self.windows, "change": change, "count": self.count}


def measure_lengths(
    model: Any, tokenizer: Any, budget: Budget, lengths: Sequence[int], text: str | Path | None, memory: int, seed: int
) -> list[LengthRow]:
    """Measures recall with exact answers, and the loss on a text, on fresh prompts of these lengths."""
    if min(lengths) < SHORTEST:
        raise HeadwayError(f"`lengths={min(lengths)}`: prompts have at least {SHORTEST} tokens")
    order, material = find_order(model), prepare_material(model, tokenizer, text)
    if order.longest is not None and max(lengths) > order.longest:
        raise HeadwayError(f"`lengths={max(lengths)}`: the model has {order.longest} positions")
    reader = LanguageReader(model, order, memory)
    rows = []
    for task in choose_tasks((), material):
        shortest = task.layout(min(lengths), DEPTHS, material)
        for length in lengths:
            layout = replace(shortest, length=length)
            each = DEPTHS * layout.facts * (1 if TASKS[task.name].in_words else layout.width - 1)
            prompts = draw_recall(task, layout, material, math.ceil(ANSWERS / each), seed)
            full = reader.answer(prompts, NONE, Setting(length, length))
            with narrowed(model, budget) as cache:
                windows = reader.answer(prompts, NONE, Setting(length, length))
            if full.accuracy is None or windows.accuracy is None:
                raise HeadwayError(
                    f"the model cannot run at {length:,} tokens: {full.cannot_run or windows.cannot_run}"
                )
            share = cache.predict_bytes(length) / cache.predict_bytes(length, full=True)
            change = gain(full, windows, 0.95)
            rows.append(LengthRow(task.name, length, share, full.accuracy, windows.accuracy, change, full.answers))
    if text is not None:
        rows += [row for length in lengths if (row := _measure_loss(reader, material, budget, length)) is not None]
    return rows


def _measure_loss(reader: LanguageReader, material: Material, budget: Budget, length: int) -> LengthRow | None:
    """Measures the loss over the second half of passages of a length; None where the text is shorter than one."""
    passages = material.windows(length, PASSAGES)
    if not len(passages):
        return None
    places = torch.linspace(length // 2, length - 1, min(PLACES, length // 2)).long()
    at = places.expand(len(passages), -1)

    def loss(rows: slice) -> torch.Tensor:
        logits = reader.logits(passages[rows], at[rows]).cpu()
        return cross_entropy(logits.flatten(0, 1), passages[rows].gather(1, at[rows]).flatten(), reduction="none")

    full = torch.cat(reader.in_pieces(loss, len(passages), length))
    with narrowed(reader.model, budget) as cache:
        windows = torch.cat(reader.in_pieces(loss, len(passages), length))
    share = cache.predict_bytes(length) / cache.predict_bytes(length, full=True)
    return LengthRow("loss", length, share, float(full.mean()), float(windows.mean()), None, len(full))
