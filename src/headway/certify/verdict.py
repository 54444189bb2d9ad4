"""The result of checking all contexts, and whether it is a proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.certify.accuracy import Accuracy

MARGIN_OVER_ROUNDING = 10  # a margin must exceed this many times the largest rounding difference measured
MOST = 50_000_000  # contexts to check at most
ROWS = 1_000  # at a time

Watch = Callable[[int, int], None]


@dataclass
class Verdict:
    """The result of checking all contexts."""

    contexts: int = 0
    wrong: int = 0
    smallest_margin: float = float("inf")
    patterns: dict[str, int] = field(default_factory=dict)  # contexts of each kind
    offending: str | None = None
    rounding: float = 0.0
    accuracy_at_least: list[Accuracy] | None = None  # at each length, where something is wrong
    reason: str | None = None

    @property
    def certified(self) -> bool:
        return self.reason is None and self.contexts > 0 and not self.wrong

    def add(self, name: str, margins: Tensor, show: Callable[[int], str]) -> Tensor:
        """Adds a batch of contexts by their margins: the lead of the right answer; it is wrong at 0 or below. Returns
        which of them fail."""
        margins = margins.nan_to_num(nan=-torch.inf)  # NaN counts as wrong
        wrong = ~(margins > 0)
        self.contexts += len(margins)
        self.wrong += int(wrong.sum())
        self.smallest_margin = min(self.smallest_margin, float(margins.min()))
        if self.offending is None and wrong.any():
            self.offending = f"{name}: {show(int(wrong.nonzero()[0, 0]))}"
        self.patterns[name] = self.patterns.get(name, 0) + len(margins)
        return wrong

    def settle(self) -> Verdict:
        """Sets the reason if the certificate is refused."""
        if self.wrong:
            self.reason = f"{self.wrong:,} of {self.contexts:,} contexts are wrong, such as {self.offending}"
        elif not self.smallest_margin > MARGIN_OVER_ROUNDING * self.rounding:
            self.reason = (
                f"the smallest margin, {self.smallest_margin:.2g}, is not {MARGIN_OVER_ROUNDING} times the largest "
                f"rounding difference, {self.rounding:.2g}"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        numbers = {"smallest_margin": self.smallest_margin, "rounding": self.rounding}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        patterns = [{"pattern": name, "contexts": contexts} for name, contexts in self.patterns.items()]
        return {"certified": self.certified, **asdict(self), **finite, "patterns": patterns}
