"""Whether a certificate counts: it was granted, nobody altered it, and it is of these weights."""

from __future__ import annotations

from typing import Any

from headway.runs.seal import is_sealed


def find_objection(certificate: Any, weights_sha256: str) -> str | None:
    """Says why a certificate does not count for these weights; None where it does."""
    if not is_sealed(certificate):
        return "it was altered after it was granted"
    if certificate.get("weights_sha256") != weights_sha256:
        return "it is of other weights"
    return None if certificate.get("certified") is True and certificate.get("wrong") == 0 else "it was not granted"
