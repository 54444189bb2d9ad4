"""A transformers `Cache` in which every key-value group keeps only what its window lets it see.

Attention gets one rectangle a layer, so the groups of a layer are stored apart, by their window, and attention runs on
each part: `switching.py` switches the model to an implementation of attention that does so. A token that has left the
windows of narrow groups is gone: such a cache cannot be cropped.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.cache_utils import Cache, CacheLayerMixin

from headway.errors import HeadwayError
from headway.windows.attention import Scoring
from headway.windows.budget import Budget, Window
from headway.windows.parts import Part, Pass

if TYPE_CHECKING:
    from headway.windows.switching import Switch


@dataclass(frozen=True)
class LayerShape:
    """What a layer stores for each token: its groups, and the width of their keys and values."""

    groups: int
    key: int
    value: int
    span: int | None
    """the model's own sliding window"""

    def kept(self, sink: int, window: Window, length: int) -> int:
        """Counts the tokens that a group keeps of a text of this length."""
        visible = min(length, self.span or length)
        return visible if window is None else min(visible, window + sink)


class WindowLayer(CacheLayerMixin):
    """The cache of one layer: a part for each window among its groups."""

    is_sliding = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, owner: "WindowCache", windows: Sequence[Window], span: int | None) -> None:
        super().__init__()
        self.owner, self.total = owner, 0
        self.staged: tuple[Tensor, Tensor] | None = None
        by_window: dict[tuple[Window, int], list[int]] = defaultdict(list)
        for group, window in enumerate(windows):
            narrow = window is not None and (span is None or window < span)
            by_window[window if narrow else span, owner.budget.sink if narrow else 0].append(group)
        self.groups = len(windows)
        self.parts = [Part(groups, recent, sink, span) for (recent, sink), groups in by_window.items()]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Takes the new keys and values, which attention stores when it is called with them."""
        if self.owner.now is None:
            raise HeadwayError(
                "a cache of windows was used outside its model, or after it was closed; make one with "
                "headway.cache(model)"
            )
        self.staged = key_states, value_states
        self.is_initialized = True
        return key_states, value_states

    def attend(self, query: Tensor, own: Tensor | None, scoring: Scoring) -> Tensor:
        """Stores the new keys and values and attends with the queries, [batch, head, query, dim]."""
        now = self.owner.now
        assert now is not None
        assert self.staged is not None
        (key, value), self.staged, self.total = self.staged, None, now.total
        if len(self.parts) == 1:
            return self.parts[0].attend(query, key, value, now, own, scoring)
        each = query.shape[1] // self.groups
        attended = query.new_empty(*query.shape[:3], value.shape[-1])
        for part in self.parts:
            groups, heads = self.owner.index(part.groups, 1, query), self.owner.index(part.groups, each, query)
            attended[:, heads] = part.attend(
                query[:, heads], key[:, groups], value[:, groups], now, own, scoring.of_heads(heads)
            )
        return attended

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.owner.seen

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise HeadwayError(
                "a cache of windows cannot take tokens back, as assisted decoding does: narrow groups have forgotten "
                "what they saw before; decode without it"
            )

    def reset(self) -> None:
        self.total, self.staged = 0, None
        for part in self.parts:
            part.stored, part.room = None, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        for part in self.parts:
            part.select_rows(beam_idx)


class WindowCache(Cache):
    """A cache with a length for each key-value group, for `model.generate(…, past_key_values=cache)`.

    The model attends through Headway's implementation until `close()`, or until the end of a `with` block; without
    such a cache it computes what it always did.
    """

    def __init__(self, switch: "Switch", budget: Budget, windows: Sequence[Sequence[Window]]) -> None:
        self.switch, self.budget = switch, budget
        self.seen, self.now, self.first, self.closed, self.broken = 0, None, None, False, False
        self._indices: dict[tuple[object, ...], Tensor] = {}
        self.stores = [WindowLayer(self, each, span) for each, span in zip(windows, switch.spans, strict=True)]
        super().__init__(layers=list[Any](self.stores))
        self.parts = [part for layer in self.stores for part in layer.parts]

    now: Pass | None
    """the forward pass that is running"""
    first: Tensor | None
    """the places of the first real tokens of each row, once a row is padded"""

    @property
    def nbytes(self) -> int:
        """The bytes that the stored keys and values take."""
        return sum(part.nbytes for part in self.parts)

    def predict_bytes(self, length: int, batch: int = 1, full: bool = False) -> int:
        """Predicts the bytes at a length, or those of the full cache, which keeps what the model's own windows show."""
        switch, sites = self.switch, self.switch.sites
        return (
            switch.itemsize
            * batch
            * sum(
                shape.kept(self.budget.sink, None if full else window, length) * (shape.key + shape.value)
                for site, shape in zip(sites, switch.shapes, strict=True)
                for window in self.budget.windows[site]
            )
        )

    def begin(self, tokens: int, mask: Tensor | None) -> None:
        """Begins a forward pass with these new tokens; `mask` is 0 where a token, old or new, is padding."""
        if self.closed:
            raise HeadwayError("this cache was closed; make a new one with headway.cache(model)")
        if self.broken:
            raise HeadwayError("a pass with this cache failed half-way; make a new one with headway.cache(model)")
        if mask is not None and (mask.ndim != 2 or mask.shape[-1] != self.seen + tokens):
            raise HeadwayError(
                f"the attention mask has shape {tuple(mask.shape)}; a cache of windows needs [batch, "
                f"{self.seen + tokens}]: 1 for every token so far, 0 for padding"
            )
        fresh = mask is not None and self._must_find_first(mask)
        if fresh:
            assert mask is not None
            self.first = _first_places(mask, self.budget.sink)
        self.now = Pass(self.seen, tokens, self.first, fresh)

    def _must_find_first(self, mask: Tensor) -> bool:
        """Tells whether the rows' first real tokens must be found: padding is new, or a row has too few so far."""
        if self.first is None:
            return not bool(mask[:, self.seen :].all())
        return bool((self.first < 0).any())

    def finish(self) -> None:
        """Ends a forward pass that ran to its end."""
        assert self.now is not None
        idle = [number for number, layer in enumerate(self.stores) if layer.total != self.now.total]
        if idle:
            self.broken = True
            raise HeadwayError(
                f"layer {idle[0]} did not attend through Headway's implementation; a cache of windows needs a family "
                "whose attention goes through transformers' AttentionInterface"
            )
        self.seen = self.now.total

    def index(self, groups: tuple[int, ...], each: int, like: Tensor) -> Tensor:
        """Returns the numbers of the heads of these groups."""
        name = groups, each, like.device
        if name not in self._indices:
            heads = [group * each + head for group in groups for head in range(each)]
            self._indices[name] = torch.tensor(heads, device=like.device)
        return self._indices[name]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        for layer in self.stores:
            layer.reorder_cache(beam_idx)
        if self.first is not None:
            self.first = self.first.index_select(0, beam_idx.to(self.first.device))

    def reset(self) -> None:
        super().reset()
        self.seen, self.now, self.first, self.broken = 0, None, None, False

    def close(self) -> None:
        """Ends the use of this cache; the model's own attention is restored with its last open cache."""
        self.closed = True
        self.switch.release(self)

    def __enter__(self) -> "WindowCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _first_places(mask: Tensor, sink: int) -> Tensor:
    """Returns the places of the first real tokens of each row, [batch, sink], −1 where a row has fewer."""
    places = torch.arange(mask.shape[1], device=mask.device)
    found = torch.where(mask.bool(), places, mask.shape[1]).sort(dim=1).values[:, :sink]
    found = F.pad(found, (0, sink - found.shape[1]), value=mask.shape[1])
    return torch.where(found < mask.shape[1], found, -1)
