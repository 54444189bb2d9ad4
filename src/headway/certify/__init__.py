"""Proofs that a model is right at every length."""
