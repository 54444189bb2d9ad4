"""Windowed attention in linear time and memory.

For every query only the keys are gathered whose index lies at one of the window's offsets. Several tokens may share an
index (the digits of a column do), so the window need not be a band in token order: keys are looked up by their index.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.positions import Positions

CHUNK = 16_000  # queries at a time when gradients are off


@dataclass(frozen=True)
class VisibleKeys:
    """The keys that each query sees: their places, which slots are filled, and their distances."""

    place: Int[Tensor, "row query slot"]
    filled: Bool[Tensor, "row query slot"]
    distance: Int[Tensor, "row query slot"]


def find_visible_keys(
    query_index: Int[Tensor, "#batch query"], key_index: Int[Tensor, "#batch key"], offsets: range, causal: bool
) -> VisibleKeys:
    """Finds the keys at these offsets from each query. With `causal`, the queries are the last of the keys."""
    rows = max(len(query_index), len(key_index))
    query_index, key_index = query_index.expand(rows, -1), key_index.expand(rows, -1)
    queries, keys = query_index.shape[1], key_index.shape[1]
    ordered, order = key_index.sort(dim=1, stable=True)
    rank = torch.arange(keys, device=order.device) - torch.searchsorted(ordered, ordered)  # among the keys of one index
    width, most = int(rank.max()) + 1, int(ordered[:, -1].max()) + 1
    table = order.new_full((rows, most * width), -1).scatter(1, ordered * width + rank, order)
    wanted = query_index[:, :, None] + torch.tensor(offsets, device=order.device)  # row query offset
    inside = (wanted >= 0) & (wanted < most)
    slots = wanted.clamp(0, most - 1)[..., None] * width + torch.arange(width, device=order.device)
    place = table.gather(1, slots.flatten(1)).view(rows, queries, -1)
    filled = (place >= 0) & inside.repeat_interleave(width, dim=2)
    if causal:
        filled &= place <= torch.arange(keys - queries, keys, device=order.device)[:, None]
    distance = torch.tensor(offsets, device=order.device).repeat_interleave(width).expand_as(place)
    return VisibleKeys(place.clamp(min=0), filled, distance)


def attend_in_window(
    query: Float[Tensor, "batch query head dim"],
    key: Float[Tensor, "batch head key dim"],
    value: Float[Tensor, "batch head key dim"],
    positions: Positions,
    seen: VisibleKeys,
    scale: float,
    head_numbers: list[int],
) -> Float[Tensor, "batch query head dim"]:
    """Returns the outputs of the heads with these numbers."""
    step = query.shape[1] if torch.is_grad_enabled() else max(1, CHUNK // len(query))
    rows, parts = torch.arange(len(query), device=query.device)[:, None, None], []
    for start in range(0, query.shape[1], step):
        some = slice(start, start + step)
        queries, place = query[:, some], seen.place[:, some].expand(len(query), -1, -1)
        near, values = (each.transpose(1, 2)[rows, place] for each in (key, value))  # batch query slot head dim
        bias = positions.of_distance(seen.distance[:, some])[head_numbers]  # pyright: ignore[reportCallIssue]
        scores = torch.einsum("bqhd,bqshd->bqhs", queries * scale, near) + bias.permute(1, 2, 0, 3).to(queries.dtype)
        scores = scores.masked_fill(~seen.filled[:, some, None], -torch.inf)
        parts.append(torch.einsum("bqhs,bqshd->bqhd", scores.softmax(-1), values))
    return torch.cat(parts, dim=1)
