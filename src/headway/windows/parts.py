"""The stored keys and values of the groups of a layer that have the same window, and their attention.

A part without a window keeps every token. One with a window of n keeps n, written round in a ring, and behind them the
first real tokens of each row, its sinks: with no padding, what a new token sees are then simply the first so many
columns. A part grows with its text, by a 64th at a time, until it is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.windows.attention import Scoring, attend

BLOCK = 512
"""queries that attend at once where a text is longer than the window"""
SMALLEST_STEP, STEPS = 16, 64


@dataclass
class Pass:
    """One forward pass: how many tokens were seen before it, how many are new, and the first real ones of each row."""

    seen: int
    tokens: int
    first: Tensor | None = None
    """batch sink: the places of the first real tokens, −1 where there is none yet; None if no row is padded"""
    fresh: bool = False
    """whether some of these are new in this pass"""
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    """masks that layers share"""

    @property
    def total(self) -> int:
        return self.seen + self.tokens

    def causal(self, device: torch.device) -> Tensor:
        """Returns the causal mask of the new tokens, [1, 1, query, key]."""
        if () not in self.masks:
            mask = torch.ones(self.tokens, self.total, dtype=torch.bool, device=device)
            self.masks[()] = mask.tril_(self.seen)[None, None]
        return self.masks[()]


class Part:
    """Stores and attends for the groups of a layer that have the same window."""

    def __init__(self, groups: Sequence[int], recent: int | None, sink: int, span: int | None) -> None:
        self.groups, self.recent, self.sink, self.span = tuple(groups), recent, sink, span
        self.room = 0
        self.stored: tuple[Tensor, Tensor] | None = None  # keys and values: batch group room+sink dim

    @property
    def nbytes(self) -> int:
        return 0 if self.stored is None else sum(each.nbytes for each in self.stored)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, now: Pass, own: Tensor | None, scoring: Scoring
    ) -> Tensor:
        """Stores the new keys and values, [batch, group, token, dim], and attends with the queries of their heads.

        `own` is the model's own mask, [batch, 1, query, place], true where a key is visible; None if it only hides what
        is later or beyond `span`.
        """
        self._grow(key, value, now.total)
        if self.sink:
            self._keep_first((key, value), now)
        if self.recent is None or now.total <= self.recent:  # nothing leaves the window yet
            self._write((key, value), now)
            whole = own is None and now.seen == 0 and now.tokens > 1
            mask = own if own is not None or whole or now.tokens == 1 else now.causal(query.device)
            keys, values = self._columns(0, now.total)
            return attend(query, keys, values, scoring, mask, whole)
        if now.tokens == 1:
            self._write((key, value), now)
            return self._attend_one(query, now, own, self.recent, scoring)
        attended = self._attend_blocks(query, (key, value), now, own, self.recent, scoring)
        self._write((key, value), now)
        return attended

    def select_rows(self, rows: Tensor) -> None:
        """Replaces the rows of the batch by these, as beam search does."""
        if self.stored is not None:
            keys, values = self.stored
            self.stored = keys.index_select(0, rows.to(keys.device)), values.index_select(0, rows.to(values.device))

    def _columns(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        assert self.stored is not None
        keys, values = self.stored
        return keys[:, :, start:stop], values[:, :, start:stop]

    def _grow(self, key: Tensor, value: Tensor, total: int) -> None:
        """Makes room for this many tokens, or for the whole window."""
        need = total if self.recent is None else min(total, self.recent)
        if need <= self.room:
            return
        step = max(SMALLEST_STEP, need // STEPS)
        room = -(-need // step) * step
        room = room if self.recent is None else min(room, self.recent)
        grown = tuple(new.new_zeros(*new.shape[:2], room + self.sink, new.shape[-1]) for new in (key, value))
        if self.stored is not None:
            for new, old in zip(grown, self.stored, strict=True):
                new[:, :, : self.room] = old[:, :, : self.room]
                new[:, :, room:] = old[:, :, self.room :]
        self.stored, self.room = (grown[0], grown[1]), room

    def _keep_first(self, new: tuple[Tensor, Tensor], now: Pass) -> None:
        """Copies those of the new tokens that are sinks behind the window."""
        assert self.stored is not None
        for stored, each in zip(self.stored, new, strict=True):
            sinks = stored[:, :, self.room :]
            if now.first is None:
                count = min(self.sink, now.total) - now.seen
                if count > 0:
                    sinks[:, :, now.seen : now.seen + count] = each[:, :, :count].detach()
            elif now.fresh:
                place = now.first[:, None, :, None].expand(-1, each.shape[1], -1, each.shape[-1])
                found = each.detach().gather(2, (place - now.seen).clamp(0, now.tokens - 1))
                sinks.copy_(torch.where(place >= now.seen, found, sinks))

    def _write(self, new: tuple[Tensor, Tensor], now: Pass) -> None:
        """Writes the new tokens, or the last of them, round in the ring."""
        assert self.stored is not None
        ring = self.recent or now.total
        count = min(now.tokens, ring)
        start = (now.total - count) % ring
        for stored, each in zip(self.stored, new, strict=True):
            last = each[:, :, now.tokens - count :].detach()
            before = min(count, ring - start)  # columns up to the end of the ring
            stored[:, :, start : start + before] = last[:, :, :before]
            if before < count:
                stored[:, :, : count - before] = last[:, :, before:]

    def _attend_one(self, query: Tensor, now: Pass, own: Tensor | None, recent: int, scoring: Scoring) -> Tensor:
        """Attends with one token, which sees the whole ring, and the sinks that are no longer in it."""
        if now.first is not None:
            mask = self._mask_of_one(now, own, recent, query.device)
            keys, values = self._columns(0, recent + self.sink)
            return attend(query, keys, values, scoring, mask)
        last = min(self.sink, now.total - recent)
        hidden = 0 if self.span is None else min(max(0, now.total - self.span), last)  # by the model's own window
        keys, values = self._columns(0, recent + (0 if hidden == last else last))
        mask = None
        if 0 < hidden < last:
            mask = torch.ones(1, 1, 1, recent + last, dtype=torch.bool, device=query.device)
            mask[..., recent : recent + hidden] = False
        return attend(query, keys, values, scoring, mask)

    def _mask_of_one(self, now: Pass, own: Tensor | None, recent: int, device: torch.device) -> Tensor:
        """Returns which columns one token sees, [batch, 1, 1, column]."""
        name = (0 if own is None else id(own), recent, self.sink)
        if name not in now.masks:
            assert now.first is not None
            slot = torch.arange(recent, device=device)
            ring = now.seen - (now.seen - slot) % recent
            place = torch.cat((ring.expand(len(now.first), -1), now.first[:, : self.sink]), dim=1)  # batch column
            seen = place >= 0
            seen[:, recent:] &= now.seen - place[:, recent:] >= recent
            if own is not None:
                seen &= own[:, 0, 0].expand(len(place), -1).gather(1, place.clamp(min=0))
            now.masks[name] = seen[:, None, None]
        return now.masks[name]

    def _attend_blocks(
        self,
        query: Tensor,
        new: tuple[Tensor, Tensor],
        now: Pass,
        own: Tensor | None,
        recent: int,
        scoring: Scoring,
    ) -> Tensor:
        """Attends with many tokens, a block at a time, each to the keys that its window can reach and to the sinks."""
        assert self.stored is not None
        begin = max(0, now.seen - recent + 1)  # the first place that a new token may see in its window
        slots = torch.arange(begin, now.seen, device=query.device) % recent
        keys, values = (
            torch.cat((stored.index_select(2, slots), each), dim=2)
            for stored, each in zip(self.stored, new, strict=True)
        )
        sinks = self._columns(self.room, self.room + self.sink)
        attended = []
        for start in range(0, now.tokens, BLOCK):
            stop = min(start + BLOCK, now.tokens)
            left, right = max(begin, now.seen + start - recent + 1), now.seen + stop
            near = slice(left - begin, right - begin)
            attended.append(
                attend(
                    query[:, :, start:stop],
                    torch.cat((keys[:, :, near], sinks[0]), dim=2),
                    torch.cat((values[:, :, near], sinks[1]), dim=2),
                    scoring,
                    self._mask_of_block(now, own, recent, (start, stop, left), query.device),
                )
            )
        return torch.cat(attended, dim=2)

    def _mask_of_block(
        self, now: Pass, own: Tensor | None, recent: int, block: tuple[int, int, int], device: torch.device
    ) -> Tensor:
        """Returns which keys of the window and which sinks the queries of a block see, [batch, 1, query, column]."""
        start, stop, left = block
        place = torch.arange(now.seen + start, now.seen + stop, device=device)[:, None]  # query 1
        key = torch.arange(left, now.seen + stop, device=device)
        near = ((key <= place) & (place - key < recent))[None]  # batch query column
        first = torch.arange(self.sink, device=device)[None] if now.first is None else now.first[:, : self.sink]
        far = (first[:, None] >= 0) & (place - first[:, None] >= recent)
        if own is not None:
            rows = own[:, 0, start:stop]
            near = near & rows[..., left : now.seen + stop]
            far = far & rows.expand(len(far), -1, -1).gather(
                2, first.clamp(min=0)[:, None].expand(-1, rows.shape[1], -1)
            )
        elif self.span is not None:
            far = far & (place - first[:, None] < self.span)
        shape = max(len(near), len(far))
        return torch.cat((near.expand(shape, -1, -1), far.expand(shape, -1, -1)), dim=-1)[:, None]
