"""The questions about heads: which ones a model needs, and which can go. This file does not import torch."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headway.attach.question import Opening
from headway.errors import HeadwayError
from headway.windows.question import WindowsOptions

MAX_DROP = 0.01
WINDOW, SINK, RECENT = "window", 4, 64
SHARE = "write a share of the loss such as 1%, or an amount of loss such as 0.01, above 0"


@dataclass(frozen=True)
class Margin:
    """The most that a removal may cost: in accuracy, in loss, or in loss as a share of the loss of the whole model."""

    drop: float
    loss: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.drop < 1:
            raise HeadwayError(f"max_drop is {self.drop}; it must be between 0 and 1, for example 0.01")

    @property
    def by_loss(self) -> bool:
        return self.loss is not None or self.share is not None

    def limit(self, whole: float) -> float:
        """Returns the largest cost allowed; `whole` is the loss with all heads open, on the same problems."""
        return self.loss if self.loss is not None else self.drop if self.share is None else self.share * whole

    def allows(self, drop: float, loss_increase: float, whole: float) -> bool:
        return (loss_increase if self.by_loss else drop) <= self.limit(whole)


def parse_loss_increase(given: float | str) -> tuple[float | None, float | None]:
    """Parses the largest increase of a loss: an amount, or a share such as 1%; the other of the two is None."""
    text = str(given).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise HeadwayError(f"max_loss_increase is {given}; {SHARE}")
    return (None, number / 100) if text.endswith("%") else (number, None)


@dataclass(frozen=True)
class WindowSize:
    """What a narrowed head sees: the first `sink` tokens of its text and the `recent` last ones, itself included."""

    sink: int = SINK
    recent: int = RECENT

    def __str__(self) -> str:
        return f"{WINDOW} {self.sink}+{self.recent}"

    @property
    def words(self) -> str:
        return f"{self.sink} first, {self.recent} last tokens"


def parse_recent(given: int | str) -> tuple[int, ...]:
    """Parses numbers of recent tokens, such as 16,64,256; the smallest comes first."""
    try:
        sizes = {int(part) for part in str(given).split(",")}
    except ValueError:
        sizes = {0}
    if min(sizes) < 1:
        raise HeadwayError(f"recent is {given}; write numbers of tokens of at least 1, such as 64 or 16,64,256")
    return tuple(sorted(sizes))


def parse_cache(given: float | str) -> float:
    """Parses a share of the whole cache, such as 50% or 0.5."""
    text = str(given).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise HeadwayError(f"cache is {given}; write a share of the whole cache above 0%, such as 50%")
    return share


@dataclass(frozen=True, kw_only=True)
class RemovalQuestion(Opening):
    """Asks which heads can go together."""

    max_drop: float | None = None
    """the largest drop in accuracy that a removal may cost (default 0.01)"""
    max_loss_increase: float | str | None = None
    """judge heads by the loss or the metric instead: the largest increase allowed, as a share of the loss of the whole
    model such as 1%, or as an amount such as 0.01"""
    beam: int = 1
    """beam width of the search for heads that can go together"""
    budget: float | int | None = None
    """seconds per run for the search of all sets of heads (default 20 for one run, 0 for a folder of runs)"""
    seed: int = 0
    """seed of the problems"""
    units: Literal["heads", "groups"] = "heads"
    """what is kept or closed as a whole: each head, or, where heads share keys and values, each such group"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.margin
        if self.units not in ("heads", "groups"):
            raise HeadwayError(f"units is {self.units!r}; it must be heads or groups")
        if self.max_drop is not None and self.max_loss_increase is not None:
            raise HeadwayError("give `max_drop` or `max_loss_increase`, not both: heads are judged by one of them")
        if not 1 <= self.beam <= 64:
            raise HeadwayError(f"beam is {self.beam}; it must be from 1 to 64")
        if self.budget is not None and not 0 <= self.budget < math.inf:
            raise HeadwayError(f"budget is {self.budget}; it must be a number of seconds, or 0 to skip the search")

    @property
    def margin(self) -> Margin:
        drop = MAX_DROP if self.max_drop is None else self.max_drop
        return Margin(drop, *(() if self.max_loss_increase is None else parse_loss_increase(self.max_loss_increase)))


@dataclass(frozen=True, kw_only=True)
class HeadsQuestion(RemovalQuestion):
    """Asks which heads a model needs, which can go together, and what each does."""

    ablation: str = "zero"
    """what replaces the output of a head: zero, mean, resample or your own file.py:Class; or window, under which it
    sees only the first and the most recent tokens"""
    sink: int | None = None
    """with window: number of first tokens that a narrowed head sees (default 4)"""
    recent: int | str | None = None
    """with window: number of most recent tokens that it sees, itself included, or several such as 16,64,256 (default
    64)"""
    cache: float | str | None = None
    """with window: also find the windows that lose least where the cache may be this share of the whole one, such as
    50%"""
    all: bool = False
    """use every possible problem"""
    brief: bool = False
    """only measure what each head costs and which can go: one kind of ablation, no patterns, no causal tests"""
    kinds: bool = False
    """for a folder of runs: count the kinds of solution by causal tests"""
    out: str | Path | None = None
    """folder for numbers, maps and figures (default: the run's own)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.all and self.count is not None:
            raise HeadwayError("`all` takes every problem; leave out `examples`")
        for name in ("sink", "recent", "cache"):
            if not self.narrows and getattr(self, name) is not None:
                raise HeadwayError(f"`{name}` is about windows; use it with ablation=window")
        _ = self.sizes, self.share
        if self.sink is not None and self.sink < 0:
            raise HeadwayError(f"sink is {self.sink}; it must be a number of first tokens, 0 or more")

    @property
    def narrows(self) -> bool:
        """Whether heads see less, instead of being replaced."""
        return self.ablation == WINDOW

    @property
    def sizes(self) -> tuple[WindowSize, ...]:
        """The sizes of windows, from the smallest; none where heads are replaced."""
        if not self.narrows:
            return ()
        sink = SINK if self.sink is None else self.sink
        recents = parse_recent(RECENT if self.recent is None else self.recent)
        return tuple(WindowSize(sink, recent) for recent in recents)

    @property
    def share(self) -> float | None:
        """The share of the whole cache that windows may need."""
        return None if self.cache is None else parse_cache(self.cache)


@dataclass(frozen=True, kw_only=True)
class PruneQuestion(RemovalQuestion, WindowsOptions):
    """Asks which heads to remove for good, or which budget of windows to save, and where to write the model."""

    out: str | Path = field(kw_only=False)
    """folder for the pruned model"""
    heads: object = ()
    """remove these heads instead, such as decoder.1.cross.2 or L1H2"""
    budget: float | int | None = 0.0
    """seconds for the search of all sets of heads (default 0: heads are removed one by one)"""
    recover: int = 0
    """training steps after the removal"""

    def __post_init__(self) -> None:
        super().__post_init__()
        WindowsOptions.__post_init__(self)
        if self.recover < 0:
            raise HeadwayError(f"recover is {self.recover}; it must be a number of steps, or 0 for none")
