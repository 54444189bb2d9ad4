"""Parsers that turn what people type after a flag into values."""

import contextlib
import re
from collections.abc import Sequence

from headway.errors import HeadwayError


def plain_value(text: str) -> int | float | bool | str:
    """Parses a number or true or false; any other text is returned unchanged."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def parse_seeds(given: str | Sequence[int]) -> tuple[int, ...]:
    """Parses seeds: 5 means seeds 0 to 4, and 0,3,7 is a list."""
    parts = [part.strip() for part in given.removesuffix(",").split(",")] if isinstance(given, str) else given
    if not all(isinstance(part, int) or part.isdecimal() for part in parts):
        raise HeadwayError(f"`seeds={given!r}`; write a number of seeds such as 5, or a list such as 0,3,7")
    numbers = tuple(map(int, parts))
    if not isinstance(given, str) or "," in given:
        if len(set(numbers)) < len(numbers):
            raise HeadwayError(f"`seeds={given!r}` names a seed twice")
        return numbers
    if not 1 <= numbers[0] <= 100_000:
        raise HeadwayError(f"`seeds={given}`: ask for 1 to 100,000 seeds")
    return tuple(range(numbers[0]))


def parse_options(pairs: Sequence[str]) -> dict[str, int | float | bool | str]:
    """Parses options written as NAME=VALUE."""
    for pair in pairs:
        if "=" not in pair:
            raise HeadwayError(f"`option={pair!r}` is not NAME=VALUE")
    return {name: plain_value(value) for name, value in (pair.split("=", 1) for pair in pairs)}


def parse_words(name: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Parses words separated by commas, each of which may occur once."""
    words = tuple(word.strip() for word in given.split(",")) if isinstance(given, str) else tuple(given or ())
    if not all(words):
        raise HeadwayError(f"`{name}={given!r}`; write names separated by commas, such as a,b")
    if len(set(words)) < len(words):
        raise HeadwayError(f"`{name}` repeats a name; write each once")
    return words


def parse_numbers(name: str, given: str | Sequence[int] | None) -> tuple[int, ...]:
    """Parses whole numbers separated by commas, each of which may occur once."""
    words = parse_words(name, given if isinstance(given, str) else [str(number) for number in given or ()])
    if not all(word.isdecimal() for word in words):
        raise HeadwayError(f"`{name}={given!r}`; write whole numbers separated by commas, such as 32,64")
    return tuple(map(int, words))


def parse_rates(given: str | Sequence[float]) -> tuple[float, ...]:
    """Parses multiples above 0 separated by commas, each of which may occur once."""
    values = tuple(map(plain_value, parse_words("rates", given))) if isinstance(given, str) else tuple(given)
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if not values or len(numbers) < len(values) or not all(0 < number < 1000 for number in numbers):
        such = "multiples above 0 and below 1,000 separated by commas, such as 0.5,1,2"
        raise HeadwayError(f"`rates={given!r}`; write {such}")
    if len(set(values)) < len(values):
        raise HeadwayError(f"`rates={given!r}` repeats a rate; write each once")
    return tuple(map(float, numbers))


def parse_range(name: str, given: str | tuple[int, int]) -> tuple[int, int]:
    """Parses a range: 8-16 is from 8 to 16, and 12 is 12 alone."""
    if not isinstance(given, str):
        return given
    low, dash, high = given.partition("-")
    if not low.isdecimal() or (dash and not high.isdecimal()):
        raise HeadwayError(f"`{name}={given!r}`; write it like 8-16")
    return int(low), int(high) if dash else int(low)


def parse_memory(text: str) -> int:
    """Parses a number of bytes: 4GB, 512MB, or a plain number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|[KMG]B)", text.strip().upper())
    size = float(found[1]) * {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}[found[2]] if found else 0.0
    if not 2**20 <= size < 2**62:
        raise HeadwayError(f"memory is {text!r}; write it like 4GB or 512MB, at least 1MB")
    return int(size)
