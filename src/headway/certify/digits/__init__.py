"""Proofs that a one-layer decoder adds numbers of a fixed length right, for all pairs, by branch and bound."""
