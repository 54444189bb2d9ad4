"""Many runs in one table: grouped by some of their keys, with what the runs of a group have in common and how far they
lie apart. Runs that are unfinished, broken or not measured are counted and told, never left out in silence."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.compare.compared import sentences
from headway.compare.describing import Row, Value
from headway.compare.differing import in_order
from headway.compare.index import find_runs
from headway.compare.spread import Spread, spoken, spread
from headway.compare.where import parse_where
from headway.errors import HeadwayError, unknown
from headway.output import as_html

METRICS = ("exact_match", "reach", "in_range", "heads_together", "final_loss")
"""those that are compared where none is named, as far as any run has them"""
COUNTED = ("complete", "unfinished", "broken")
"""states of runs"""


@dataclass(frozen=True)
class Group:
    values: dict[str, Value | None]
    """of the keys that groups are made by; None where a run does not say"""
    runs: tuple[Row, ...]
    metrics: tuple[str, ...]

    @cached_property
    def complete(self) -> list[Row]:
        return [row for row in self.runs if row["state"] == "complete"]

    @property
    def seeds(self) -> int:
        return len({row["seed"] for row in self.complete})

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        return {metric: spread(metric, self.complete) for metric in self.metrics}

    @property
    def name(self) -> str:
        """What a person calls it: rope; or d_model 128, where the value does not speak for itself."""

        def told(key: str, value: Value | None) -> str:
            if value is None:
                return f"no {key}"
            return value if isinstance(value, str) and value else f"{key} {spoken(value)}"

        return ", ".join(told(key, value) for key, value in self.values.items())

    def counts(self) -> dict[str, int]:
        states = {state: sum(row["state"] == state for row in self.runs) for state in COUNTED}
        return {"runs": len(self.runs), **states, "seeds": self.seeds}

    def to_json(self) -> dict[str, Any]:
        found = {metric: each.to_json() for metric, each in self.spreads.items()}
        return {**self.values, **self.counts(), "metrics": found}


@dataclass(frozen=True)
class Comparison:
    folders: tuple[str, ...]
    by: tuple[str, ...]
    metrics: tuple[str, ...]
    where: str | None
    among: int
    """runs there are, those that `where` leaves out with them"""
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Row]:
        return [row for group in self.groups for row in group.runs]

    def sentences(self) -> list[str]:
        """What the table says and what it does not."""
        return sentences(self)

    def to_json(self) -> dict[str, Any]:
        shown = ("run", "state", "seed", *self.metrics)
        return {
            "folders": list(self.folders),
            "by": list(self.by),
            "metrics": list(self.metrics),
            "where": self.where,
            "among": self.among,
            "rows": [group.to_json() for group in self.groups],
            "runs": [
                {"group": place, **{key: row[key] for key in shown if key in row}}
                for place, group in enumerate(self.groups)
                for row in group.runs
            ],
            "findings": self.sentences(),
        }

    def table(self) -> list[dict[str, Any]]:
        """A row a group, for a screen: of each metric the median, and from where to where."""
        amiss = [state for state in COUNTED[1:] if any(group.counts()[state] for group in self.groups)]
        return [
            {
                **group.values,
                **{key: group.counts()[key] for key in ("runs", *amiss, "seeds")},
                **{metric: found.told() for metric, found in group.spreads.items()},
            }
            for group in self.groups
        ]

    def to_csv(self) -> str:
        """A line a group."""
        told = ("n", "missing", "median", "mean", "best", "worst", "least", "most", "low", "high")
        head = [*self.by, *self.groups[0].counts(), *(f"{metric}.{each}" for metric in self.metrics for each in told)]
        lines = []
        for group in self.groups:
            cells: list[Any] = [*group.values.values(), *group.counts().values()]
            for found in group.spreads.values():
                low, high = found.interval or (None, None)
                cells += [getattr(found, each) for each in told[:-2]] + [low, high]
            lines.append(cells)
        return csv_text([head, *lines])

    def runs_csv(self) -> str:
        """A line a run, with everything that is known of it."""
        keys = list(dict.fromkeys(key for row in self.runs for key in row))
        return csv_text([keys, *([row.get(key) for key in keys] for row in self.runs)])

    def _repr_html_(self) -> str:
        return as_html(self.sentences(), self.table())


def compare(
    folders: str | Path | Sequence[str | Path],
    by: str | Sequence[str],
    metrics: Sequence[str] = (),
    where: str | None = None,
    only: Collection[str] | None = None,
) -> Comparison:
    """All runs under these folders, or only those in folders of these names, grouped by these keys. A run that is
    reached twice counts once."""
    named = [folders] if isinstance(folders, str | Path) else list(folders)
    by = [by] if isinstance(by, str) else list(by)
    asked = None if where is None else parse_where(where)
    if not named:
        raise HeadwayError("name a folder that holds runs")
    if not by:
        raise HeadwayError("name a key that runs are grouped by, such as --by positions")
    rows, among, known = list[Row](), 0, set[str]()
    for folder in _outermost([Path(each) for each in named]):
        found = find_runs(folder, asked)
        named_so = [row for row in found.rows if only is None or Path(str(row["run"])).name in only]
        rows += [{**row, "run": os.path.normpath(folder / str(row["run"]))} for row in named_so]
        among, known = among + found.runs, known | found.keys
    _check(by, metrics, known)
    if asked is not None:
        asked.check(known)
    shown = ", ".join(map(str, named))
    if not among:
        raise HeadwayError(f"{shown} holds no run; 'headway train' makes one")
    if not rows:
        raise HeadwayError(f"--where {where or only!r} leaves none of the {among:,} runs in {shown}; ask for more")
    chosen = tuple(dict.fromkeys(metrics)) or _usual(rows)
    return Comparison(tuple(map(str, named)), tuple(by), chosen, where, among, _grouped(rows, by, chosen))


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Without those that lie in others, whose runs are found there."""
    for folder in folders:
        if not folder.is_dir():
            raise HeadwayError(f"there is no folder {folder}; name one that holds runs")
    real = {folder.resolve(): folder for folder in reversed(folders)}  # of two names for one folder, the first
    return [folder for home, folder in reversed(real.items()) if not any(above in real for above in home.parents)]


def _check(by: Sequence[str], metrics: Sequence[str], known: set[str]) -> None:
    for kind, keys in (("key in --by", by), ("metric", metrics)):
        for key in keys:
            if key not in known:
                raise unknown(kind, key, known)
    for key in by:
        if key in metrics:
            raise HeadwayError(f"{key} is in --by and in --metric; leave it out of one")
    if len(set(by)) < len(by):
        raise HeadwayError(f"--by {','.join(by)} names a key twice")


def _usual(rows: Iterable[Row]) -> tuple[str, ...]:
    complete = [row for row in rows if row["state"] == "complete"]
    return tuple(metric for metric in METRICS if any(metric in row for row in complete))


def _grouped(rows: Sequence[Row], by: Sequence[str], metrics: tuple[str, ...]) -> tuple[Group, ...]:
    for metric in metrics:
        if any(isinstance(row.get(metric), str) for row in rows):
            raise HeadwayError(f"{metric} is text and no metric; name a number, such as {' or '.join(METRICS[:2])}")
    found: dict[tuple[Value | None, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in by), []).append(row)
    ordered = sorted(found, key=lambda values: [in_order(value) for value in values])
    return tuple(Group(dict(zip(by, values, strict=True)), tuple(found[values]), metrics) for values in ordered)


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it."""

    def cell(value: Any) -> Any:
        if isinstance(value, bool):
            return str(value).lower()
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return written.getvalue()
