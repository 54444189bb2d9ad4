"""Finds runs and compares them, without torch."""

from headway.compare.groups import RunComparison, compare

__all__ = ["RunComparison", "compare"]
