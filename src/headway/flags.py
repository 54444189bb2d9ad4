"""What people type after a flag, made into values."""

from __future__ import annotations

import contextlib

from headway.errors import HeadwayError


def plain_value(text: str) -> int | float | bool | str:
    """A number, true or false, or else the text itself."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def parse_seeds(text: str) -> list[int]:
    """5 is seeds 0 to 4; 0,3,7 is a list."""
    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(part.isdecimal() for part in parts):
        raise HeadwayError(f"--seeds {text!r}; write a number of seeds such as 5, or a list such as 0,3,7")
    numbers = [int(part) for part in parts]
    if "," in text:
        if len(set(numbers)) < len(numbers):
            raise HeadwayError(f"--seeds {text!r} names a seed twice")
        return numbers
    if not 1 <= numbers[0] <= 100_000:
        raise HeadwayError(f"--seeds {text}: ask for 1 to 100,000 seeds")
    return list(range(numbers[0]))
