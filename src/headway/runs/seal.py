"""A hash inside a JSON object, of everything else in it: what was altered afterwards shows."""

from __future__ import annotations

import hashlib
import json
from typing import Any

KEY = "sha256"


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, KEY: seal_of(content)}


def is_sealed(content: Any) -> bool:
    """Whether this is an object with a seal that fits it."""
    if not isinstance(content, dict):
        return False
    try:
        return content.get(KEY) == seal_of({key: value for key, value in content.items() if key != KEY})
    except RecursionError:  # deeper than anything that was ever sealed
        return False


def seal_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
