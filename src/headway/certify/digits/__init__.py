"""Proofs that a one-layer decoder adds numbers of a fixed length right, for all pairs, by branch and bound.

A user's model comes as an `Adder`: its forward pass and its description as plain tensors. docs/ten-digits.md has the
argument and an example.
"""

from headway.certify.digits.adder import Adder
from headway.certify.digits.description import FeedWeights, NormWeights, OneLayer

__all__ = ["Adder", "FeedWeights", "NormWeights", "OneLayer"]
