"""Seals: a hash inside a JSON object of everything else in it, which reveals later changes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk

KEY = "sha256"
CERTIFICATE = "certificate.json"


def seal(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, KEY: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def strip_seal(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != KEY}


def is_sealed(content: Any) -> bool:
    """Tells whether this is an object with a valid seal."""
    try:
        return isinstance(content, dict) and content.get(KEY) == seal(strip_seal(content))[KEY]
    except RecursionError:  # nested deeper than anything that was ever sealed
        return False


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    disk.write_json(path, seal(content))


def read_sealed(path: Path) -> dict[str, Any]:
    """Reads the sealed object in this file; it is empty if the file is missing, broken or altered."""
    try:
        content = disk.read_json(path)
    except HeadwayError:
        return {}
    return strip_seal(content) if is_sealed(content) else {}


def find_certificate_fault(certificate: Any, weights_sha256: str) -> str | None:
    """Says why a certificate is not valid for these weights, as the predicate of a sentence; None if it is valid."""
    if not is_sealed(certificate):
        return "was altered after it was granted"
    if certificate.get("weights_sha256") != weights_sha256:
        return "belongs to other weights"
    if "rounding_bound" not in certificate or "assumes" not in certificate:
        return "is of the old kind: it claims exact arithmetic only, without a bound on rounding"
    return None
