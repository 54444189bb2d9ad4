"""A hash inside a JSON object, of everything else in it: what was altered afterwards shows."""

import hashlib
import json
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk

KEY = "sha256"


def seal_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    disk.write_json(path, sealed(content))


def read_sealed(path: Path) -> dict[str, Any]:
    """The object that was sealed into this file; empty where the file is missing, broken or altered."""
    try:
        content = disk.read_json(path)
    except HeadwayError:
        return {}
    return {key: value for key, value in content.items() if key != KEY} if is_sealed(content) else {}
