"""How well a ranking of heads recovers those that are known: AUROC, precision and recall, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

DRAWS = 1_000


@dataclass(frozen=True)
class Score:
    """How well a method recovers the heads; k is their number."""

    auroc: float
    low: float
    high: float
    precision: float
    """of the k heads ranked highest, the share that is known; the share of the known ones found, as well"""
    recall: float
    """the share of the known heads among the 2k ranked highest"""
    best_rank: int
    """of the first known head, from 1"""

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in vars(self).items()}


def auroc(scores: Tensor, true: Tensor) -> float:
    """Returns the chance that a known head ranks above another, ties counting half."""
    ranks, count = torch.tensor(rankdata(scores.double().numpy())), int(true.sum())
    return float((ranks[true].sum() - count * (count + 1) / 2) / (count * (len(true) - count)))


def score(by_prompt: Sequence[Tensor], truths: Sequence[Tensor], seed: int = 0) -> Score:
    """Scores the mean over prompts, for one or many models: `by_prompt` is [head, prompt], `truths` [head], of each.
    The interval is of prompts drawn anew, and where there are several models of these."""
    generator = torch.Generator().manual_seed(seed)
    means = [scores.mean(1) for scores in by_prompt]
    values = torch.tensor([auroc(*both) for both in zip(means, truths, strict=True)])
    drawn = []
    for _ in range(DRAWS):
        models = range(len(means))
        if len(means) > 1:
            models = torch.randint(len(means), (len(means),), generator=generator).tolist()
            drawn.append(float(values[list(models)].mean()))
            continue
        prompts = torch.randint(by_prompt[0].shape[1], (by_prompt[0].shape[1],), generator=generator)
        drawn.append(auroc(by_prompt[0][:, prompts].mean(1), truths[0]))
    low, high = torch.tensor(drawn).quantile(torch.tensor([0.025, 0.975])).tolist()
    found = [_top(*both) for both in zip(means, truths, strict=True)]
    precision, recall, best = (sum(each) / len(found) for each in zip(*found, strict=True))
    return Score(float(values.mean()), low, high, precision, recall, round(best))


def _top(scores: Tensor, true: Tensor) -> tuple[float, float, int]:
    order, count = scores.argsort(descending=True), int(true.sum())
    places = true[order].nonzero()[:, 0]
    return (
        float(true[order[:count]].float().mean()),
        float(true[order[: 2 * count]].sum() / count),
        int(places[0]) + 1,
    )


def table(rows: dict[str, Score]) -> str:
    """Writes the scores as a Markdown table, the best first."""
    lines = [
        "| method | AUROC | 95% | precision at k | recall at 2k | rank of the first |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items(), key=lambda each: -each[1].auroc):
        interval = f"{row.low:.2f}–{row.high:.2f}"
        numbers = f"{row.auroc:.3f} | {interval} | {row.precision:.2f} | {row.recall:.2f} | {row.best_rank}"
        lines.append(f"| {name} | {numbers} |")
    return "\n".join(lines)
