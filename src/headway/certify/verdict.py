"""The result of checking all contexts, and whether it is a proof: a context is proved if the lead of the right answer
over every other, in exact arithmetic, exceeds the bound on the rounding of that lead in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.certify.accuracy import Accuracy
from headway.certify.leads import Leads

MOST = 50_000_000  # contexts to check at most
ROWS = 1_000  # at a time

Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Beyond:
    """The keys outside a neighbourhood where attention masks none: what they can do to a place at any length."""

    window: tuple[int, int]  # the first and the last distance of the neighbourhood
    mass: float  # the largest share of a head's attention that lies outside
    bound: float  # the largest change of a lead by that and by rounding
    share: float  # the largest part of a lead that this is
    distance: int  # from here on every key weighs exactly 0 in float32
    fall: float  # by how much the bias of every head falls with a step, at least

    def to_json(self) -> dict[str, float | list[int] | None]:
        bounds = {"mass": self.mass, "bound": self.bound, "share": self.share}
        finite = {name: value if math.isfinite(value) else None for name, value in bounds.items()}
        return {"window": [*self.window], **finite, "distance": self.distance, "fall": self.fall}


@dataclass
class Verdict:
    """The result of checking all contexts."""

    contexts: int = 0
    wrong: int = 0
    smallest_margin: float = float("inf")
    patterns: dict[str, int] = field(default_factory=dict)  # contexts of each kind
    offending: str | None = None
    undecided: int = 0  # contexts that are right, but whose lead does not exceed the bound on its rounding
    rounding: float = 0.0  # the largest that was measured
    rounding_bound: float = 0.0  # the largest that can occur in a lead
    rounding_share: float = 0.0  # the largest part of a lead that it can be
    mismatch: str | None = None  # a context whose rounding exceeds its bound: the model is not what was bounded
    accuracy_at_least: list[Accuracy] | None = None  # at each length, where something is wrong
    reason: str | None = None
    assumes: dict[str, Any] | None = None  # the conditions of the proof
    outside: Beyond | None = None  # what is known of keys outside a neighbourhood that are not masked

    @property
    def certified(self) -> bool:
        return self.reason is None and self.contexts > 0 and not self.wrong and not self.undecided

    def compare(self, measured: Tensor, leads: Leads, show: Callable[[int], str]) -> None:
        """Compares leads that the model gave in float32, row × rival, with those in float64 and their bounds."""
        off = (measured.double() - leads.value).abs().where(leads.value.isfinite(), 0).nan_to_num(nan=torch.inf)
        shares = (leads.bound / leads.value.abs()).nan_to_num(nan=torch.inf)
        self.rounding = max(self.rounding, float(off.max()))
        self.rounding_bound = max(self.rounding_bound, float(leads.bound.max()))
        self.rounding_share = max(self.rounding_share, float(shares.max()))
        if self.mismatch is None and bool((beyond := off > leads.bound).any()):
            row = int(beyond.any(1).nonzero()[0, 0])
            self.mismatch = (
                f"{show(row)}: {float(off[row].max()):.2g} apart, at most {float(leads.bound[row].max()):.2g}"
            )

    def add(self, name: str, margins: Tensor, proved: Tensor, show: Callable[[int], str]) -> Tensor:
        """Adds a batch of contexts by their margins, the lead of the right answer in float32, which is wrong at 0 or
        below; and by what is proved of the lead, its value less the bound. Returns which of them fail."""
        margins = margins.nan_to_num(nan=-torch.inf)  # NaN counts as wrong
        wrong = ~(margins > 0)
        undecided = ~wrong & ~(proved > 0)
        failed = wrong | undecided
        self.contexts += len(margins)
        self.wrong += int(wrong.sum())
        self.undecided += int(undecided.sum())
        self.smallest_margin = min(self.smallest_margin, float(margins.min()))
        if failed.any() and (self.offending is None or (wrong.any() and self.wrong == int(wrong.sum()))):
            first = wrong if wrong.any() else failed  # the first wrong context, else the first undecided one
            self.offending = f"{name}: {show(int(first.nonzero()[0, 0]))}"
        self.patterns[name] = self.patterns.get(name, 0) + len(margins)
        return failed

    def settle(self) -> Verdict:
        """Sets the reason if the certificate is refused."""
        if self.wrong:
            self.reason = f"{self.wrong:,} of {self.contexts:,} contexts are wrong, such as {self.offending}"
        elif self.mismatch is not None:
            self.reason = (
                "the model computes something else than its weights and config say: float32 is further from float64 "
                f"than rounding can be, at {self.mismatch}"
            )
        elif self.undecided and self.outside is not None:
            change = f"by up to {self.outside.bound:.2g}" if math.isfinite(self.outside.bound) else "without bound"
            self.reason = (
                f"in {self.undecided:,} of {self.contexts:,} contexts the tokens outside the neighbourhood may change "
                f"the answer, such as {self.offending}: they hold up to {self.outside.mass:.2g} of a head's attention "
                f"and with rounding change a lead {change}; the smallest margin is {self.smallest_margin:.2g}"
            )
        elif self.undecided:
            self.reason = (
                f"in {self.undecided:,} of {self.contexts:,} contexts rounding in float32 may change the answer, such "
                f"as {self.offending}: the bound on rounding is up to {self.rounding_bound:.2g}, the smallest margin "
                f"{self.smallest_margin:.2g}"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        content = {key: value for key, value in asdict(self).items() if key != "mismatch"}
        numbers = ("smallest_margin", "rounding", "rounding_bound", "rounding_share")
        finite = {name: content[name] if math.isfinite(content[name]) else None for name in numbers}
        if not self.contexts:
            finite |= {"rounding_bound": None, "rounding_share": None}
        if self.outside is not None:
            content["outside"] = self.outside.to_json()
        patterns = [{"pattern": name, "contexts": contexts} for name, contexts in self.patterns.items()]
        return {"certified": self.certified, **content, **finite, "patterns": patterns}
