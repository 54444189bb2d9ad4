"""Proves on a model that a cache of windows gives the logits of masked attention.

The masked pass is made by other code: eager attention over whole texts, in which every head has a mask of its own.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.attach.dispatch import NAME, register, use_attention
from headway.attach.proofs import describe_difference, difference_of, limit_of
from headway.errors import HeadwayError
from headway.windows.budget import Budget

if TYPE_CHECKING:
    from headway.windows.switching import Switch

TOKENS, PADDING, PARTS = 9, 3, (0, 5, 6, 7, 9)
"""of the proof: the tokens of a text, the padding of its second row, where its prefill, two steps and a chunk end"""


def run(model: Any, tokens: Tensor, cache: Any = None, mask: Tensor | None = None) -> Tensor:
    """Returns the logits of a pass, with a cache or without."""
    return model(tokens, attention_mask=mask, past_key_values=cache, use_cache=cache is not None).logits


def draw_tokens(model: Any, rows: int, count: int) -> Tensor:
    """Draws tokens, without the first few of the vocabulary, which are often special tokens."""
    words = model.config.get_text_config(decoder=True).vocab_size
    drawn = torch.randint(min(5, words - 1), words, (rows, count), generator=torch.Generator().manual_seed(0))
    return drawn.to(next(model.parameters()).device)


@torch.no_grad()
def masked_logits(model: Any, budget: Budget, tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns the logits of whole texts whose heads are masked as the budget says; `mask` is 0 for padding."""
    windows = [budget.windows[site] for site in sorted(budget.windows, key=lambda site: int(site.split(".")[1]))]
    place, real = torch.arange(tokens.shape[1], device=tokens.device), mask.bool()
    sinks = (real & (real.cumsum(1) <= budget.sink))[:, None, None]  # batch 1 1 key

    def narrow(
        module: nn.Module, query: Tensor, key: Tensor, own: Tensor | None, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        assert own is not None
        each, number = query.shape[1] // key.shape[1], int(module.layer_idx)  # pyright: ignore[reportArgumentType]
        spans = [len(place) if window is None else window for window in windows[number] for _ in range(each)]
        span = torch.tensor(spans, device=query.device)[:, None, None]  # head query key
        seen = (place[:, None] - place < span) | sinks
        hidden = max(
            torch.finfo(own.dtype).min, torch.finfo(torch.float32).min
        )  # many families take softmax in float32
        return query, own.clamp(min=hidden).masked_fill(~seen, hidden)

    register()
    with use_attention(model, NAME, changes=[narrow]):
        return run(model, tokens, mask=mask)


def prove(switch: "Switch", model: Any) -> None:
    """Raises unless windows of two tokens and a sink in every other group give the logits of masked attention, in a
    prefill, single steps and a chunk, with a padded row."""
    tokens = draw_tokens(model, 2, TOKENS)
    mask = torch.ones_like(tokens)
    mask[1, :PADDING] = 0
    windows = {
        site: tuple(2 if (number + group) % 2 else None for group in range(shape.groups))
        for number, (site, shape) in enumerate(zip(switch.sites, switch.shapes, strict=True))
    }
    budget = Budget(1, windows)
    with switch.make(budget) as cache:
        parts = [run(model, tokens[:, a:b], cache, mask[:, :b]) for a, b in pairwise(PARTS)]
    cached, real = torch.cat(parts, dim=1), mask.bool()
    masked = masked_logits(model, budget, tokens, mask)
    if difference_of(masked[real], cached[real]) > limit_of(masked[real]):
        raise HeadwayError(
            f"{type(model).__name__} with a cache of windows differs from masked attention, by "
            f"{describe_difference(masked[real], cached[real])}; the cache cannot follow how its family attends"
        )
