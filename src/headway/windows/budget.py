"""A budget: how much of the context each key-value group sees, as plain data in `budget.json`.

A group with a window of n sees the first few real tokens of its text, its sinks, and the n most recent ones, itself
included; a group without a window sees everything. Where nothing is grouped, every head is its own group. Positions
stay the original ones. The file imports no torch: studies write budgets, `cache.py` runs models under them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.shapes import find_fault

FILE, STUDY, SCHEMA = "budget.json", "heads.json", "headway.budget/1"
Window = int | None
"""the number of recent tokens that a group sees, itself included; None if it sees everything"""


@dataclass(frozen=True)
class Budget:
    """The window of every key-value group of a model, by site."""

    sink: int
    """number of first real tokens that every group sees"""
    windows: Mapping[str, tuple[Window, ...]]
    """the windows of the groups of each site, such as `decoder.0.self`"""

    def __post_init__(self) -> None:
        if type(self.sink) is not int or self.sink < 0:
            raise HeadwayError(f"sink is {self.sink!r} in the budget; give a whole number of first tokens, 0 or more")
        if not self.windows:
            raise HeadwayError("the budget names no site; give the windows of at least one, such as decoder.0.self")
        for site, windows in self.windows.items():
            if not windows:
                raise HeadwayError(f"{site} has no groups in the budget; give one window for each key-value group")
            for group, window in enumerate(windows):
                if window is not None and (type(window) is not int or window < 1):
                    raise HeadwayError(
                        f"the window of group {group} of {site} is {window!r} in the budget; give a number of recent "
                        "tokens, 1 or more, or None for everything"
                    )
        object.__setattr__(self, "windows", {site: tuple(windows) for site, windows in self.windows.items()})

    @classmethod
    def of_levels(cls, sink: int, ladder: Sequence[Window], levels: Mapping[str, Sequence[int]]) -> Budget:
        """Makes a budget of each group's place in a ladder of windows; with `(recent, None)` a level may be a bool that
        tells whether the group sees everything."""
        for site, places in levels.items():
            for group, place in enumerate(places):
                if not 0 <= place < len(ladder):
                    raise HeadwayError(
                        f"group {group} of {site} has level {place!r}, but the ladder has {len(ladder)} windows; give "
                        f"0 to {len(ladder) - 1}"
                    )
        return cls(sink, {site: tuple(ladder[place] for place in places) for site, places in levels.items()})

    @classmethod
    def uniform(cls, sink: int, window: Window, groups: Mapping[str, int]) -> Budget:
        """Makes a budget that gives the same window to every group; `groups` is their number at each site."""
        return cls(sink, {site: (window,) * count for site, count in groups.items()})

    @property
    def ladder(self) -> tuple[Window, ...]:
        """The distinct windows, from the smallest; None, which is everything, comes last."""
        found = {window for _, _, window in self}
        return (*sorted(window for window in found if window is not None), *((None,) if None in found else ()))

    @property
    def groups(self) -> int:
        return sum(map(len, self.windows.values()))

    @property
    def full(self) -> int:
        """The number of groups that see everything."""
        return sum(window is None for _, _, window in self)

    def __iter__(self) -> Iterator[tuple[str, int, Window]]:
        """Yields site, group and window of every group."""
        return ((site, group, window) for site, windows in self.windows.items() for group, window in enumerate(windows))

    def replace_window(self, site: str, group: int, window: Window) -> Budget:
        """Returns the budget with another window for one group."""
        if group not in range(len(self.windows.get(site, ()))):
            raise HeadwayError(f"the budget has no group {group} of {site}; its sites are {', '.join(self.windows)}")
        windows = self.windows[site]
        return Budget(self.sink, {**self.windows, site: (*windows[:group], window, *windows[group + 1 :])})

    def kept(self, window: Window, length: int) -> int:
        """Counts the tokens that a group with this window keeps of a text of this length."""
        return length if window is None else min(length, self.sink + window)

    def cache_share(self, length: int) -> float:
        """Returns the share of the full cache that is kept at a length; every group counts the same, and a model's own
        sliding windows are left out."""
        if length < 1:
            raise HeadwayError(f"the length is {length}; give a number of tokens, 1 or more")
        return sum(self.kept(window, length) for _, _, window in self) / (self.groups * length)

    def to_json(self) -> dict[str, str | int | dict[str, list[Window]]]:
        windows = {site: list(windows) for site, windows in self.windows.items()}
        return {"schema": SCHEMA, "sink": self.sink, "windows": windows}

    @classmethod
    def from_json(cls, content: Any, source: str = "the budget") -> Budget:
        """Reads the content of a budget file; entries that it does not know are ignored."""
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise HeadwayError(f"{source} is not a budget; its `schema` must be {SCHEMA!r}")
        for key, hint in {"sink": int, "windows": dict[str, list[Window]]}.items():
            if key not in content:
                raise HeadwayError(f"{source} has no {key!r}; a budget holds `sink` and `windows`")
            if fault := find_fault(content[key], hint, key):
                raise HeadwayError(f"{source} cannot be read: {fault}")
        return cls(content["sink"], {site: tuple(windows) for site, windows in content["windows"].items()})

    @classmethod
    def read(cls, path: str | Path) -> Budget:
        """Reads a budget from its file, from a study of windows, or from `budget.json` or the study of a folder."""
        file = Path(path)
        if file.is_dir():
            file = file / (STUDY if not (file / FILE).exists() and (file / STUDY).exists() else FILE)
        if not file.exists():
            raise HeadwayError(
                f"{file} does not exist; give a budget, or a study with `ablation=window`, which ends in one"
            )
        content = disk.read_json(file)
        if isinstance(content, dict) and content.get("schema") != SCHEMA and "heads" in content:
            content = content.get("budget")
            if content is None:
                raise HeadwayError(f"{file} is a study without a budget; study with `ablation=window`")
        return cls.from_json(content, str(file))

    def write(self, path: str | Path) -> None:
        """Writes the budget to a file, or to `budget.json` of a folder, whole or not at all."""
        file = Path(path)
        disk.write_json(file / FILE if file.is_dir() else file, self.to_json())
