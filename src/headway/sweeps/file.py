"""What a person writes: a base, axes, studies, resources and the comparison wanted.

A TOML file is only read: nothing in it is run, so names of Python code (module:Class) are refused there. A Python
function (file.py:function, module:function) returns the same entries as a dict and may name whatever it likes.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import HeadwayError, unknown
from headway.flags import parse_memory
from headway.plugins import at_home, load_function
from headway.runs.config import Overrides
from headway.trials.plan import Axis, Range, trials_of
from headway.trials.trial import Resources, Study, Trial, Value

SETTINGS = ("task", "track", "rate", "seed", *(entry.name for entry in fields(Overrides)))
"""what can be set of a trial; options of the task beside, as option.NAME"""
TABLES = ("name", "out", "base", "axis", "studies", "choose", "resources", "compare")
HOWS = ("grid", "zip", "list", "random")
PRECISIONS = ("auto", "float32", "bfloat16")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
PACKAGE = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?([=<>!~]=?[A-Za-z0-9.*+!_-]+)?")
"""a package of an index: an address or a folder would be code that the file brings along"""
LARGEST = 10_000_000
"""bytes of a sweep file"""
DEEPEST = 20
"""levels of tables and lists in one another"""

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class ComparisonWanted:
    """The comparison at the end."""

    by: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    """the first of them says which trial is best so far"""


@dataclass(frozen=True)
class SweepFile:
    name: str
    out: Path
    base: dict[str, Value]
    axes: tuple[Axis, ...]
    studies: tuple[Study, ...] = ()
    choose: str | None = None
    """the setting whose best value in range is taken, over all seeds; only its trials are studied"""
    resources: Resources = field(default_factory=Resources)
    compare: ComparisonWanted = field(default_factory=ComparisonWanted)
    home: Path | None = None
    """the folder of the Python file whose neighbours trials may import"""

    def trials(self) -> list[Trial]:
        """Every trial once, in the order of the axes; refuses what cannot be trained."""
        return trials_of(self.axes, self.base)


def read_sweep(name: str, out: str | None = None) -> SweepFile:
    """The sweep of a TOML file, or of a Python function."""
    file, colon, _ = name.partition(":")
    is_toml = Path(name).suffix == ".toml" or not colon
    raw = _read_toml(Path(name)) if is_toml else _call(name)
    try:
        for where, text in _texts(raw):
            if is_toml:
                _check_text(where, text)
        if is_toml:
            return _sweep(raw, Path(name).stem, out, None)
        home = Path(file).resolve().parent if file.endswith(".py") else Path.cwd()
        return _sweep(raw, Path(file).stem.rpartition(".")[2], out, home)
    except HeadwayError as error:
        raise HeadwayError(f"{name}: {error}") from error


def _call(name: str) -> Any:
    with at_home(name):
        build = load_function(name)
        try:
            raw = build()
        except (Exception, SystemExit) as error:  # whatever a user's function may raise
            said = f"{type(error).__name__}: {error}"
            raise HeadwayError(f"{name} raised {said}; call it by itself to see where") from error
    if not isinstance(raw, dict):
        raise HeadwayError(f"{name} returned {type(raw).__name__}; it must return a dict like that of a sweep file")
    return raw


def _read_toml(path: Path) -> Any:
    if not path.is_file():
        raise HeadwayError(f"there is no sweep file {path}; name a TOML file, or a function like sweep.py:build")
    if path.stat().st_size > LARGEST:
        raise HeadwayError(f"{path} has {path.stat().st_size:,} bytes; a sweep file has at most {LARGEST:,}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of TOML, of UTF-8, or of a number with thousands of digits
        raise HeadwayError(f"{path} is no TOML: {error}") from error
    except RecursionError as error:
        raise HeadwayError(f"{path} is nested too deeply to be a sweep file") from error


def _check_text(where: str, text: str) -> None:
    """Refuses what is, or brings along, code."""
    if where == "resources.pip":
        if not PACKAGE.fullmatch(text):
            raise HeadwayError(f"pip has {text!r}; in a TOML file write a name and a version, like a==1.0")
    elif ":" in text:
        raise HeadwayError(
            f"{where} is {text!r}, a name of Python code, and a TOML file runs none; write the sweep as a function in "
            "a Python file and name it like sweep.py:build"
        )


def _texts(raw: Any, where: str = "", deep: int = 0) -> Iterator[tuple[str, str]]:
    """Every text in a table, with its place; refuses keys that are no texts, as a Python function may have them."""
    if deep > DEEPEST:
        raise HeadwayError(f"{where[:40]} is nested too deeply for a sweep file; there are at most {DEEPEST} levels")
    match raw:
        case str():
            yield where, raw
        case dict():
            for key, value in raw.items():
                if not isinstance(key, str):
                    raise HeadwayError(f"{where or 'the sweep'} has the key {key!r}; keys are texts")
                yield from _texts(value, f"{where}.{key}".strip("."), deep + 1)
        case list():
            for value in raw:
                yield from _texts(value, where, deep + 1)


def _sweep(raw: Any, stem: str, out: str | None, home: Path | None) -> SweepFile:
    _check_known("entry", raw, TABLES)
    name = _entry({"name": stem, **raw}, "name", str) or ""
    if not re.fullmatch(r"[\w .,+-]{1,80}", name) or name.startswith("."):
        raise HeadwayError(f"name is {name!r}; use letters, digits, spaces and - _ . + , at most 80 of them")
    base = _entry(raw, "base", dict) or {}
    _check_known("setting", base, (*SETTINGS, "seeds", "options"))
    settings = {key: value for key, value in base.items() if key not in ("options", "seeds")}
    settings |= {f"option.{key}": value for key, value in (_entry(base, "options", dict) or {}).items()}
    _check_settings({key: [value] for key, value in settings.items()})
    axes = [_axis(each) for each in _tables(raw, "axis")]
    if "seeds" in base:
        axes.append(Axis("grid", ({"seed": _seeds(base["seeds"])},)))
    studies = _entry(raw, "studies", dict) or {}
    for key, asked in studies.items():
        if not isinstance(asked, dict):
            raise HeadwayError(f"studies.{key} is {asked!r}; write a table, such as [studies.{key}]")
    choose = _entry(raw, "choose", str)
    if choose is not None and choose not in (keys := set().union(*(axis.keys for axis in axes))):
        raise unknown("axis to choose", choose, keys)
    wanted = _entry(raw, "compare", dict) or {}
    _check_known("entry of compare", wanted, ("by", "metrics"))
    return SweepFile(
        name=name,
        out=Path(out or _entry(raw, "out", str) or Path("runs") / name.replace(" ", "-")),
        base=settings,
        axes=tuple(axes),
        studies=tuple(Study(key, dict(asked)) for key, asked in studies.items()),
        choose=choose,
        resources=_resources(_entry(raw, "resources", dict) or {}),
        compare=ComparisonWanted(_words(wanted, "by"), _words(wanted, "metrics")),
        home=home,
    )


def _axis(raw: Any) -> Axis:
    how = raw.get("how", "grid")
    if how not in HOWS:
        raise unknown("way of an axis", str(how), HOWS)
    values = {key: value for key, value in raw.items() if key not in ("how", "draws", "draw_seed")}
    draws, draw_seed = raw.get("draws", 0), raw.get("draw_seed", 0)
    if how == "random":
        if not _is_whole(draws) or not 1 <= draws <= 1_000_000:
            raise HeadwayError(f"draws is {draws!r}; a random axis needs a whole number of draws from 1 to 1,000,000")
        if not _is_whole(draw_seed) or draw_seed < 0:
            raise HeadwayError(f"draw_seed is {draw_seed!r}; it must be a whole number from 0 on")
    elif "draws" in raw or "draw_seed" in raw:
        raise HeadwayError(f"draws and draw_seed are of a random axis, and this one is a {how}; leave them out")
    if how == "list":
        return Axis(how, tuple(_listed(values)))
    _check_settings(values)
    if not values:
        raise HeadwayError('an axis names no setting; give it one, such as positions = ["rope", "fire"]')
    table = {}
    for key, value in values.items():
        if how == "random" and isinstance(value, dict):
            table[key] = _range(key, value)
        elif not isinstance(value, list) or not value:
            raise HeadwayError(f"{key} of an axis is {value!r}; write a list of values")
        else:
            table[key] = value
    if how == "zip" and len({len(value) for value in values.values()}) > 1:
        told = ", ".join(f"{key} has {len(value)}" for key, value in values.items())
        raise HeadwayError(f"a zip axis needs as many values of each setting; {told}")
    return Axis(how, (table,), draws, draw_seed)


def _listed(values: Any) -> Iterator[dict[str, list[Value]]]:
    """The tables of an axis that is a list, every value in them as a list."""
    entries = values.get("trials")
    if set(values) != {"trials"} or not isinstance(entries, list) or not entries:
        raise HeadwayError("an axis that is a list has one entry, trials: a list of tables of settings")
    for entry in entries:
        if not isinstance(entry, dict) or not entry:
            raise HeadwayError(f"trials of an axis has {entry!r}; write a table of settings, such as {{layers = 2}}")
        _check_settings(entry)
        yield {key: value if isinstance(value, list) else [value] for key, value in entry.items()}


def _check_settings(values: Any) -> None:
    _check_known("setting", [key for key in values if not key.startswith("option.")], SETTINGS)
    for key, value in values.items():
        for each in value if isinstance(value, list) else () if isinstance(value, dict) else [value]:
            if not isinstance(each, int | float | str):
                raise HeadwayError(f"{key} is {each!r}; it must be a number, a text, or true or false")


def _range(key: str, value: Any) -> Range:
    _check_known(f"entry of {key}", value, ("low", "high", "log"))
    low, high, log = value.get("low", math.nan), value.get("high", math.nan), value.get("log", False)
    numbers = _is_number(low) and _is_number(high) and isinstance(log, bool)
    if not numbers or not low < high or (log and low <= 0):
        raise HeadwayError(
            f"{key} is drawn from {value!r}; write {{low = 1e-4, high = 1e-2, log = true}}, low below high"
        )
    return Range(low, high, log)


def _resources(raw: Any) -> Resources:
    _check_known("resource", raw, [entry.name for entry in fields(Resources)])
    found = dict(raw)
    for name, least in (("threads", 1), ("retries", 0), ("population", 1)):
        if name in found and not (_is_whole(found[name]) and least <= found[name] <= 1_000_000):
            raise HeadwayError(f"{name} is {found[name]!r}; it must be a whole number of at least {least}")
    if "gpus" in found:
        if not (_is_number(found["gpus"]) and 0 <= found["gpus"] <= 64):
            raise HeadwayError(f"gpus is {found['gpus']!r}; it must be a number from 0 on, such as 1 or 0.25")
        found["gpus"] = float(found["gpus"])
    if "memory" in found:
        found["memory"] = parse_memory(str(found["memory"]))
    if "timeout" in found:
        found["timeout"] = _seconds(found["timeout"])
    if "pip" in found:
        found["pip"] = _words(found, "pip")
    if found.get("precision", "auto") not in PRECISIONS:
        raise unknown("precision", str(found["precision"]), PRECISIONS)
    return Resources(**found)


def _seconds(value: Any) -> float:
    """90, "90s", "15m" or "2h"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
    if isinstance(value, bool) or found is None or not 0 < (seconds := float(found[1]) * SECONDS[found[2]]) < 1e8:
        raise HeadwayError(f'timeout is {value!r}; write seconds, or "15m" or "2h"')
    return seconds


def _seeds(value: Any) -> list[Value]:
    if _is_whole(value) and 1 <= value <= 1_000_000:
        return list(range(value))
    if isinstance(value, list) and value and all(map(_is_whole, value)):
        return value
    raise HeadwayError(f"seeds is {value!r}; write how many, such as 5, or a list such as [0, 3, 7]")


def _words(raw: Any, name: str) -> tuple[str, ...]:
    value = raw.get(name, [])
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(word, str) and word for word in listed):
        raise HeadwayError(f"{name} is {value!r}; write a list of words")
    return tuple(listed)


def _tables(raw: Any, name: str) -> list[Any]:
    value = raw.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise HeadwayError(f"{name} is {value!r}; write tables, each under [[{name}]]")
    return value


def _entry(raw: Any, name: str, kind: type[Kind]) -> Kind | None:
    """An entry of a table, where it is there."""
    if name in raw and not isinstance(raw[name], kind):
        words = {str: "a text", dict: f"a table, such as [{name}]"}
        raise HeadwayError(f"{name} is {raw[name]!r}; it must be {words[kind]}")
    return raw.get(name)


def _check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for key in given:
        if key not in known:
            raise unknown(what, key, known)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
