"""Validation of JSON: checks plain values against the annotations of a dataclass or a TypedDict, with a sentence that
names the entry that does not match."""

from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}
Kind = TypeVar("Kind")


def schema_of(path: Path, content: Any, in_run: bool) -> str:
    """Names the schema of a file: `heads`, `heads-population`, `lengths`, `measured`, `evaluation` and so on. A file
    names it under `schema`, such as `headway.heads/1`; older ones are recognized by name, content and folder."""
    entries = content if isinstance(content, dict) else {}
    if isinstance(schema := entries.get("schema"), str) and schema.startswith("headway."):
        return schema.removeprefix("headway.").partition("/")[0]
    match path.stem:
        case "heads" if not in_run and "members" in entries:
            return "heads-population"
        case "lengths" if in_run and "train_lengths" not in entries:
            return "measured"
        case "evaluation-sample":
            return "evaluation"
    return path.stem


def fill(kind: type[Kind], raw: Any) -> Kind:
    """Makes a dataclass of plain values, each checked against its annotation; a TypeError says what does not match."""
    if not isinstance(raw, dict):
        raise TypeError(f"{kind.__name__} is {raw!r}")
    hints = _entries(kind)
    for name, value in raw.items():
        if name not in hints:
            raise TypeError(f"unknown entry {name!r} in {kind.__name__}")
        if not fits(value, hints[name][0]):
            raise TypeError(f"{name} of {kind.__name__} is {value!r}")
    return kind(**raw)


def fits(value: Any, hint: Any) -> bool:
    """Tells whether a plain value matches an annotation."""
    return find_fault(value, hint) is None


def find_fault(value: Any, hint: Any, place: str = "it") -> str | None:
    """Says what is wrong with a value, and where; None if it matches the annotation."""
    if isinstance(hint, type) and not is_typeddict(hint) and (known := NAMES.get(hint)):
        return None if _is_instance(value, hint) else f"{place} is {_short(value)}, not {known}"
    origin, inner = _parts(hint)
    if origin is Union:
        if value is None and NoneType in inner:
            return None
        faults = [find_fault(value, option, place) for option in inner if option is not NoneType]
        return None if None in faults else faults[0]
    if origin is dict and inner:
        if not isinstance(value, dict):
            return f"{place} is {_short(value)}, not an object"
        faults = (find_fault(each, inner[1], f"{place}.{key}") for key, each in value.items())
        return next((fault for fault in faults if fault), None)
    if origin in (list, tuple):
        if not isinstance(value, list) or (origin is tuple and len(value) != len(inner)):
            return f"{place} is {_short(value)}, not a list" + (f" of {len(inner)}" if origin is tuple else "")
        hints = inner if origin is tuple else inner * len(value)
        faults = (find_fault(value[n], one, f"{place}[{n}]") for n, one in enumerate(hints))
        return next((fault for fault in faults if fault), None)
    if is_typeddict(hint):
        return _fault_of_object(value, hint, place)
    right = value in inner if origin is Literal else hint is Any or isinstance(value, origin or hint)
    return None if right else f"{place} is {_short(value)}, not {hint}"


def _fault_of_object(value: Any, hint: Any, place: str) -> str | None:
    if not isinstance(value, dict):
        return f"{place} is {_short(value)}, not an object"
    for key, (inner, required) in _entries(hint).items():
        if key not in value and required:
            return f"{place} has no {key!r}"
        if key in value and (fault := find_fault(value[key], inner, key if place == "it" else f"{place}.{key}")):
            return fault
    return None


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    origin = get_origin(hint)
    return Union if origin is UnionType else origin, get_args(hint)


@cache
def _entries(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Returns the annotation of each entry, and whether the entry is required."""
    hints = get_type_hints(kind, include_extras=True)
    required = getattr(kind, "__required_keys__", hints)
    return {
        name: (get_args(hint)[0], False) if get_origin(hint) is NotRequired else (hint, name in required)
        for name, hint in hints.items()
    }


def _is_instance(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (kind is float and isinstance(value, int) and abs(value) <= 2**53)  # exact


def _short(value: Any) -> str:
    shown = "nothing" if value is None else repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}…"
