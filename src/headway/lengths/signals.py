"""The position signals of an encoding, as numbers for figures: tables, biases, and similarity by distance."""

from typing import Any

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Model, build_model
from headway.positions import Positions
from headway.runs.config import RunConfig

LONGER, MOST_TOKENS = 4, 512  # multiple of the training length to show, and at most so many tokens

Signal = dict[str, list[Any] | None]


def collect_signals(config: RunConfig, trained: Model) -> dict[str, int | Signal]:
    """Collects the position signal in the first layer's input or scores, before and after training."""
    before, after = (
        next(part for part in model.children() if isinstance(part, Positions))
        for model in (build_model(config.model, config.seed), trained)
    )
    tokens = min(LONGER * config.model.trained, MOST_TOKENS)
    try:
        before.check_length(tokens)
    except HeadwayError:  # the table is too short
        tokens = config.model.trained
    shown = {"before": read_signal(before, tokens), "after": read_signal(after.cpu(), tokens)}
    return {"trained": config.model.trained, "tokens": tokens, **shown}


@torch.no_grad()
def read_signal(positions: Positions, tokens: int) -> Signal:
    """Reads an encoding's signal: `table` is added at each position; `bias` is what each head adds to its scores at
    each distance, −∞ as None; `likeness` is the similarity of two positions at each distance, from 0 on."""
    index, shape = torch.arange(tokens)[None], positions.shape
    table = positions.embed(torch.zeros(1, tokens, shape.d_model), index)[0]
    bias = positions.bias(index, index)
    found: Signal = {"table": None, "bias": None, "likeness": None}
    if bool(table.any()):
        unit = torch.nn.functional.normalize(table, dim=1)
        found |= {"table": _rounded(table), "likeness": _by_distance(unit @ unit.T)}
    elif bias is not None:
        found["bias"] = _rounded(bias[0, :, tokens // 2])  # from the middle: distances −middle to tokens − middle − 1
    else:
        drawn = torch.randn(64, shape.heads, 1, shape.dim, generator=torch.Generator().manual_seed(0))
        x = torch.nn.functional.normalize(drawn, dim=-1).expand(-1, -1, tokens, -1)
        query, key = positions.rotate(x, x, index, index)
        scores = (query @ key.transpose(-1, -2)).mean((0, 1))
        if float(scores.max() - scores.min()) > 1e-6:
            found["likeness"] = _by_distance(scores)
    return found


def _by_distance(scores: Tensor) -> list[Any]:
    return [_rounded(scores.diagonal(k).mean()) for k in range(len(scores))]


def _rounded(table: Tensor) -> Any:
    if table.ndim:
        return [_rounded(row) for row in table]
    return round(float(table), 4) if abs(float(table)) < float("inf") else None
