"""Runs found and set side by side; no torch in here."""

from headway.compare.groups import RunComparison, compare

__all__ = ["RunComparison", "compare"]
