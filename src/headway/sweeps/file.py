"""The sweep file: a base, axes, studies, resources and a comparison.

A TOML file is only parsed: nothing in it runs, so it may not name Python code (module:Class). A Python function
(file.py:function, module:function) returns the same entries as a dict and may name any code.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError, unknown
from headway.flags import parse_memory
from headway.plugins import import_neighbours, load_function
from headway.runs.config import Overrides
from headway.trials.plan import Axis, Draws, Grid, Range, trials_of
from headway.trials.trial import Resources, Study, Trial, Value

SETTINGS = ("task", "track", "rate", "seed", *(entry.name for entry in fields(Overrides)))
"""the settings of a trial; options of the task are option.NAME"""
TABLES = ("name", "out", "base", "axis", "studies", "choose", "resources", "compare")
HOWS = ("grid", "zip", "list", "random")
PRECISIONS = ("auto", "float32", "bfloat16")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
PACKAGE = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]+\])?([=<>!~]=?[A-Za-z0-9.*+!_-]+)?")
"""a package of an index: a URL or a folder would let the file bring its own code"""
LARGEST = 10_000_000  # bytes of a sweep file
DEEPEST = 20  # levels of nested tables and lists


@dataclass(frozen=True)
class ComparisonRequest:
    """The comparison to make at the end."""

    by: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # the first one ranks the trials while they run


@dataclass(frozen=True)
class SweepFile:
    name: str
    out: Path
    base: dict[str, Value]
    axes: tuple[Axis, ...]
    studies: tuple[Study, ...] = ()
    choose: str | None = None
    """the setting whose best value in range, over all seeds, is used; only its trials are studied"""
    resources: Resources = field(default_factory=Resources)
    compare: ComparisonRequest = field(default_factory=ComparisonRequest)
    home: Path | None = None  # the folder of the Python file, from which trials may import

    def trials(self) -> list[Trial]:
        """Lists every trial once, in the order of the axes; rejects what cannot be trained."""
        return trials_of(self.axes, self.base)


def read_sweep(name: str, out: str | None = None) -> SweepFile:
    """Reads a sweep from a TOML file or a Python function."""
    file, colon, _ = name.partition(":")
    is_toml = Path(name).suffix == ".toml" or not colon
    raw = _read_toml(Path(name)) if is_toml else _call_function(name)
    try:
        _check_tree(raw, is_toml)
        if is_toml:
            return _sweep(raw, Path(name).stem, out, None)
        home = Path(file).resolve().parent if file.endswith(".py") else Path.cwd()
        return _sweep(raw, Path(file).stem.rpartition(".")[2], out, home)
    except HeadwayError as error:
        raise HeadwayError(f"{name}: {error}") from error


def _call_function(name: str) -> Any:
    with import_neighbours(name):
        build = load_function(name)
        try:
            raw = build()
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raised = f"{type(error).__name__}: {error}"
            raise HeadwayError(f"{name} raised {raised}; call it directly to see where") from error
    if not isinstance(raw, dict):
        raise HeadwayError(f"{name} returned {type(raw).__name__}; it must return a dict of sweep entries")
    return raw


def _read_toml(path: Path) -> Any:
    if not path.is_file():
        raise HeadwayError(f"there is no sweep file {path}; name a TOML file, or a function such as sweep.py:build")
    if path.stat().st_size > LARGEST:
        raise HeadwayError(f"{path} has {path.stat().st_size:,} bytes; a sweep file may have at most {LARGEST:,}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, not UTF-8, or a number with thousands of digits
        raise HeadwayError(f"{path} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise HeadwayError(f"{path} is nested too deeply for a sweep file") from error


def _check_tree(raw: Any, is_toml: bool, where: str = "", deep: int = 0) -> None:
    """Rejects keys that are not strings, which a Python function may return; in TOML, everything that names code."""
    if deep > DEEPEST:
        raise HeadwayError(f"{where[:40]} is nested too deeply for a sweep file; the limit is {DEEPEST} levels")
    if isinstance(raw, str) and is_toml and where == "resources.pip" and not PACKAGE.fullmatch(raw):
        raise HeadwayError(f"pip has {raw!r}; in a TOML file write a name and a version, such as a==1.0")
    if isinstance(raw, str) and is_toml and where != "resources.pip" and ":" in raw:
        raise HeadwayError(
            f"{where} is {raw!r}, a name of Python code, and a TOML file runs none; write the sweep as a function in "
            "a Python file and name it, such as sweep.py:build"
        )
    for key, value in raw.items() if isinstance(raw, dict) else ():
        if not isinstance(key, str):
            raise HeadwayError(f"{where or 'the sweep'} has the key {key!r}; keys must be strings")
        _check_tree(value, is_toml, f"{where}.{key}".strip("."), deep + 1)
    for value in raw if isinstance(raw, list) else ():
        _check_tree(value, is_toml, where, deep + 1)


Check = Callable[[Any], bool]


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _list_of(check: Check, least: int = 0) -> Check:
    return lambda value: isinstance(value, list | tuple) and len(value) >= least and all(map(check, value))


def _number(kind: Any, least: int | float, most: int | float = 1_000_000) -> Check:
    return lambda value: isinstance(value, kind) and not isinstance(value, bool) and least <= value <= most


def _seconds(value: Any) -> float:
    """Parses 90, "90s", "15m" or "2h" as seconds; returns 0 for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
    return 0.0 if found is None or isinstance(value, bool) else float(found[1]) * SECONDS[found[2]]


PARTS = ("base", "options", "studies", "resources", "compare")
WORDS = _list_of(lambda word: isinstance(word, str) and bool(word))
SEEDS = _list_of(_number(int, -math.inf, math.inf), 1)
ENTRIES: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(("name", "out", "choose"), (_is(str), "it must be a string")),
    **dict.fromkeys(("by", "metrics", "pip"), (lambda it: isinstance(it, str) or WORDS(it), "write a list of names")),
    **dict.fromkeys(("threads", "population"), (_number(int, 1), "it must be a whole number of at least 1")),
    **{name: (_is(dict), f"it must be a table, such as [{name}]") for name in PARTS},
    "axis": (_list_of(_is(dict)), "write tables, each under [[axis]]"),
    "seeds": (lambda it: _number(int, 1)(it) or SEEDS(it), "write how many, such as 5, or a list such as [0, 3, 7]"),
    "draws": (_number(int, 1), "a random axis needs a whole number of draws from 1 to 1,000,000"),
    "draw_seed": (_number(int, 0, math.inf), "it must be a whole number of at least 0"),
    "retries": (_number(int, 0), "it must be a whole number of at least 0"),
    "gpus": (_number(int | float, 0, 64), "it must be a number of at least 0, such as 1 or 0.25"),
    "memory": (lambda value: parse_memory(str(value)) > 0, "write it like 4GB"),
    "timeout": (lambda value: 0 < _seconds(value) < 1e8, 'write seconds, or "15m" or "2h"'),
    "precision": (lambda value: value in PRECISIONS, f"there are: {', '.join(PRECISIONS)}"),
}
"""the check of each entry, and the advice if it fails"""


def _entry(raw: Any, name: str, otherwise: Any = None) -> Any:
    """Reads an entry of a table and checks it."""
    value, (check, words) = raw.get(name, otherwise), ENTRIES[name]
    if not (check(value) if name in raw else value is otherwise):
        raise HeadwayError(f"{name} is {value!r}; {words}")
    return value


def _as_tuple(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for key in given:
        if key not in known:
            raise unknown(what, key, known)


def _sweep(raw: Any, stem: str, out: str | None, home: Path | None) -> SweepFile:
    _check_known("entry", raw, TABLES)
    name = _entry(raw, "name", stem)
    if not re.fullmatch(r"[\w .,+-]{1,80}", name) or name.startswith("."):
        raise HeadwayError(f"name is {name!r}; use letters, digits, spaces and - _ . + , at most 80 of them")
    base, studies, wanted = (_entry(raw, name, {}) for name in ("base", "studies", "compare"))
    _check_known("setting", base, (*SETTINGS, "seeds", "options"))
    settings = {key: value for key, value in base.items() if key not in ("options", "seeds")}
    settings |= {f"option.{key}": value for key, value in _entry(base, "options", {}).items()}
    _check_settings({key: [value] for key, value in settings.items()})
    axes = [_axis(each) for each in _entry(raw, "axis", [])]
    if (seeds := _entry(base, "seeds")) is not None:
        axes.append(Grid(({"seed": list(range(seeds)) if isinstance(seeds, int) else seeds},)))
    for key, asked in studies.items():
        if not isinstance(asked, dict):
            raise HeadwayError(f"studies.{key} is {asked!r}; write a table, such as [studies.{key}]")
    choose = _entry(raw, "choose")
    if choose is not None and choose not in (keys := set().union(*(axis.keys for axis in axes))):
        raise unknown("axis to choose", choose, keys)
    _check_known("entry of compare", wanted, ("by", "metrics"))
    asked = _entry(raw, "resources", {})
    _check_known("resource", asked, [entry.name for entry in fields(Resources)])
    kinds = {"gpus": float, "memory": lambda text: parse_memory(str(text)), "timeout": _seconds, "pip": _as_tuple}
    resources = Resources(**{name: kinds.get(name, lambda value: value)(_entry(asked, name)) for name in asked})
    compare = ComparisonRequest(_as_tuple(_entry(wanted, "by", ())), _as_tuple(_entry(wanted, "metrics", ())))
    made = tuple(Study(key, dict(options)) for key, options in studies.items())
    place = Path(out or _entry(raw, "out") or Path("runs") / name.replace(" ", "-"))
    return SweepFile(name, place, settings, tuple(axes), made, choose, resources, compare, home)


def _axis(raw: Any) -> Axis:
    how = raw.get("how", "grid")
    if how not in HOWS:
        raise unknown("kind of axis", str(how), HOWS)
    values = {key: value for key, value in raw.items() if key not in ("how", "draws", "draw_seed")}
    if how == "random":
        draws, seed = _entry({"draws": 0, **raw}, "draws"), _entry(raw, "draw_seed", 0)
        table = {key: _range(key, value) if isinstance(value, dict) else value for key, value in values.items()}
        _check_lists({key: value for key, value in table.items() if not isinstance(value, Range)}, values)
        return Draws(table, draws, seed)
    if "draws" in raw or "draw_seed" in raw:
        raise HeadwayError(f"draws and draw_seed belong to a random axis, and this one is a {how}; leave them out")
    if how == "list":
        if set(values) != {"trials"} or not isinstance(values["trials"], list) or not values["trials"]:
            raise HeadwayError("a list axis has one entry, trials: a list of tables of settings")
        tables, advice = [], "write a table of settings, such as {layers = 2}"
        for entry in values["trials"]:
            if not isinstance(entry, dict) or not entry:
                raise HeadwayError(f"trials of an axis has {entry!r}; {advice}")
            tables.append({key: value if isinstance(value, list) else [value] for key, value in entry.items()})
            _check_settings(tables[-1])
        return Grid(tuple(tables))
    _check_lists(values, values)
    if how == "grid":
        return Grid((values,))
    if len({*map(len, values.values())}) > 1:
        counts = ", ".join(f"{key} has {len(value)}" for key, value in values.items())
        raise HeadwayError(f"a zip axis needs equally many values for each setting; {counts}")
    rows = zip(*values.values(), strict=True)
    return Grid(tuple({key: [value] for key, value in zip(values, row, strict=True)} for row in rows))


def _check_lists(values: Any, settings: Any) -> None:
    _check_settings(settings)
    if not settings:
        raise HeadwayError('an axis has no setting; add one, such as positions = ["rope", "fire"]')
    for key, value in values.items():
        if not isinstance(value, list) or not value:
            raise HeadwayError(f"{key} of an axis is {value!r}; write a list of values")


def _check_settings(table: Any) -> None:
    _check_known("setting", [key for key in table if not key.startswith("option.")], SETTINGS)
    for key, values in table.items():
        for value in values if isinstance(values, list) else ():
            if not isinstance(value, int | float | str):
                raise HeadwayError(f"{key} is {value!r}; it must be a number, a string, true or false")


def _range(key: str, value: Any) -> Range:
    _check_known(f"entry of {key}", value, ("low", "high", "log"))
    low, high, log = value.get("low", math.nan), value.get("high", math.nan), value.get("log", False)
    is_number = _number(int | float, -1e300, 1e300)
    if not (is_number(low) and is_number(high) and isinstance(log, bool) and low < high) or (log and low <= 0):
        advice = "write {low = 1e-4, high = 1e-2, log = true}, with low below high"
        raise HeadwayError(f"{key} is drawn from {value!r}; {advice}")
    return Range(low, high, log)
