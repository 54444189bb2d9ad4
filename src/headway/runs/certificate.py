"""Certificates on disk: whether one belongs to the weights beside it, as it was granted."""

from typing import Any

from headway.runs.seal import is_sealed

CERTIFICATE = "certificate.json"


def find_fault(certificate: Any, weights_sha256: str) -> str | None:
    """Why a certificate does not count for these weights, as the predicate of a sentence; None where it does."""
    if not is_sealed(certificate):
        return "was altered after it was granted"
    return None if certificate.get("weights_sha256") == weights_sha256 else "is of other weights"
