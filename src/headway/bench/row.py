"""A row of the bench: ours, the reference, and whether both found the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    name: str
    ours_seconds: float
    reference: str
    """what ours stands beside, in words"""
    reference_seconds: float
    same_result: bool
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.reference_seconds / self.ours_seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ours_seconds": self.ours_seconds,
            "reference": self.reference,
            "reference_seconds": self.reference_seconds,
            "ratio": self.ratio,
            "same_result": self.same_result,
            **self.details,
        }
