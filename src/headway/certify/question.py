"""The question of `headway certify`, without torch, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import HeadwayError
from headway.question import Question


@dataclass(frozen=True, kw_only=True)
class DigitsQuestion(Question):
    """What to prove of a one-layer adder, by branch and bound."""

    digits: int | None = None
    """instead of every length: all pairs of numbers of this length, of a model without any window"""
    budget: float = 1800.0
    """with --digits: the seconds after which the share of proved pairs is reported"""

    def __post_init__(self) -> None:
        if self.digits is not None and self.digits < 1:
            raise HeadwayError(f"digits is {self.digits}; it must be at least 1")
        if not self.budget > 0:
            raise HeadwayError(f"budget is {self.budget}; it must be a number of seconds above 0")
