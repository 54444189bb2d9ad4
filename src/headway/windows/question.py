"""The part of the question about pruning that is about windows: which budget to save with a model, and how it is told.
This file does not import torch."""

from dataclasses import dataclass
from typing import Literal

from headway.errors import HeadwayError
from headway.question import Question


@dataclass(frozen=True, kw_only=True)
class WindowsOptions(Question):
    """Asks for a model with a budget of windows, instead of one without some heads."""

    windows: object = None
    """keep all heads and save the model with this budget of windows: a budget.json, or a folder with one"""
    length: int | None = None
    """with `windows`: the length in tokens at which to state the share of the cache (default: the model's longest)"""
    lengths: str | None = None
    """with `windows`: also measure recall at these lengths, with the windows and without, such as 64,128,256"""
    text: str | None = None
    """with `windows` and `lengths`: also measure the loss on this text"""
    export: Literal["duoattention", "kvpress"] | None = None
    """with `windows`: also write the budget in the form that this project reads; it must have one window, or none, for
    each group"""

    def __post_init__(self) -> None:
        if self.windows is None:
            for name in ("length", "lengths", "text", "export"):
                if getattr(self, name) is not None:
                    raise HeadwayError(f"`{name}` is about a budget of windows; give one as `windows`")
        if self.length is not None and self.length < 1:
            raise HeadwayError(f"`length={self.length}`: give a number of tokens, 1 or more")
        if self.text is not None and self.lengths is None:
            raise HeadwayError("`text` is read at the lengths that `lengths` names; give some, such as 64,128,256")
