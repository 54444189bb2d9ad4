"""The lots of problems that a study draws, each from a stream of its own: what is selected on one is reported on
another, whatever the seed."""

from __future__ import annotations

from enum import IntEnum


class Lot(IntEnum):
    REPORT = 0
    """what results are reported on"""
    SELECT = 1
    """what sets of heads are selected on"""
    CONFIRM = 2
    """what a selected set must pass"""
    BASELINE = 3
    DONORS = 4
    """whose outputs take the place of others'"""
    MEANS = 5
    PAIRS = 6
    SCREEN = 7
    """what the search of all sets is made on"""
    COMPARE = 8
    """what a pruned model is held against the gated one on"""
    CHECK = 9
    """what the search checks its last sets on, where problems cannot be listed"""

    def seed(self, seed: int) -> int:
        return (seed * len(Lot) + self) % 2**63
