"""A hash inside a JSON object, of everything else in it: what was altered afterwards shows."""

import hashlib
import json
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk

KEY = "sha256"
CERTIFICATE = "certificate.json"


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, KEY: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def unsealed(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != KEY}


def is_sealed(content: Any) -> bool:
    """Whether this is an object with a seal that fits it."""
    try:
        return isinstance(content, dict) and content.get(KEY) == sealed(unsealed(content))[KEY]
    except RecursionError:  # deeper than anything that was ever sealed
        return False


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    disk.write_json(path, sealed(content))


def read_sealed(path: Path) -> dict[str, Any]:
    """The object that was sealed into this file; empty where the file is missing, broken or altered."""
    try:
        content = disk.read_json(path)
    except HeadwayError:
        return {}
    return unsealed(content) if is_sealed(content) else {}


def fault_of_certificate(certificate: Any, weights_sha256: str) -> str | None:
    """Why a certificate does not count for these weights, as the predicate of a sentence; None where it does."""
    if not is_sealed(certificate):
        return "was altered after it was granted"
    return None if certificate.get("weights_sha256") == weights_sha256 else "is of other weights"
