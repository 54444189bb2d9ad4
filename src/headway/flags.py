"""What people type after a flag, made into values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

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


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE, one after another."""
    chosen = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise HeadwayError(f"--option {pair!r} is no NAME=VALUE")
        chosen[name] = plain_value(value)
    return chosen


def listed_words(flag: str, text: str) -> list[str]:
    """Words with commas between."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise HeadwayError(f"--{flag} {text!r}; write names with commas between, such as a,b")
    return words


def parse_numbers(flag: str, text: str) -> list[int]:
    """Whole numbers with commas between."""
    words = listed_words(flag, text)
    if not all(word.isdecimal() for word in words):
        raise HeadwayError(f"--{flag} {text!r}; write whole numbers with commas between, such as 32,64")
    return [int(word) for word in words]


def parse_rates(text: str) -> list[float]:
    """Multiples above 0 with commas between."""
    values = [plain_value(word) for word in listed_words("rates", text)]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1000 for value in values):
        raise HeadwayError(
            f"--rates {text!r}; write multiples above 0 and below 1,000 with commas between, such as 0.5,1,2"
        )
    if len(set(values)) < len(values):
        raise HeadwayError(f"--rates {text!r} names one twice")
    return [float(value) for value in values]


def parse_range(flag: str, text: str) -> tuple[int, int]:
    """8-16 is from 8 to 16; 12 is 12 alone."""
    low, dash, high = text.partition("-")
    if not low.isdecimal() or (dash and not high.isdecimal()):
        raise HeadwayError(f"--{flag} {text!r}; write it like 8-16")
    return int(low), int(high) if dash else int(low)


def parse_memory(text: str) -> int:
    """Bytes: 4GB, 512MB, or a plain number."""
    units = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?B?)", text.strip(), re.IGNORECASE)
    unit = "" if found is None else found[2].upper()
    if found is None or unit not in units or not 2**20 <= float(found[1]) * units[unit] < 2**62:
        raise HeadwayError(f"memory is {text!r}; write it like 4GB or 512MB, at least 1MB")
    return int(float(found[1]) * units[unit])
