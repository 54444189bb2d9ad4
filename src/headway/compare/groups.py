"""Many runs in one table: grouped by some of their keys, with the spread of each metric within a group. Runs that are
unfinished, broken or not measured are counted and named, never dropped silently."""

import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.compare.describe import Row, Value, Values
from headway.compare.index import find_runs
from headway.compare.sentences import sentences, sort_key
from headway.compare.spread import Spread, measure_spread
from headway.compare.where import parse_where
from headway.errors import HeadwayError, unknown
from headway.output import as_csv, as_html, format_value
from headway.runs.metrics import USUAL

STATES = ("complete", "unfinished", "broken")


@dataclass(frozen=True)
class Group:
    values: Values  # of the keys that runs are grouped by; None where the runs have none
    runs: tuple[Row, ...]
    metrics: tuple[str, ...]

    @cached_property
    def complete(self) -> list[Row]:
        return [row for row in self.runs if row["state"] == "complete"]

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        return {metric: measure_spread(metric, self.complete) for metric in self.metrics}

    @property
    def name(self) -> str:
        """A name for people: rope; or d_model 128, where the value alone would be unclear."""
        names = []
        for key, value in self.values.items():
            shown = f"no {key}" if value is None else f"{key} {format_value(value) or repr(value)}"
            names.append(value if isinstance(value, str) and value else shown)
        return ", ".join(names)

    @cached_property
    def counts(self) -> dict[str, int]:
        states = {state: sum(row["state"] == state for row in self.runs) for state in STATES}
        return {"runs": len(self.runs), **states, "seeds": len({row["seed"] for row in self.complete})}


@dataclass(frozen=True)
class RunComparison:
    folders: tuple[str, ...]
    by: tuple[str, ...]
    metrics: tuple[str, ...]
    where: str | None
    among: int  # all runs, including those that `where` leaves out
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Row]:
        return [row for group in self.groups for row in group.runs]

    def sentences(self) -> list[str]:
        """Says in words what the table shows and what it does not."""
        return sentences(self)

    def to_json(self) -> dict[str, Any]:
        shown = ("run", "state", "seed", *self.metrics)
        return {
            "schema": "headway.compare/1",
            **{key: list(getattr(self, key)) for key in ("folders", "by", "metrics")},
            "where": self.where,
            "among": self.among,
            "rows": [
                {**group.values, **group.counts, "metrics": {name: asdict(s) for name, s in group.spreads.items()}}
                for group in self.groups
            ],
            "runs": [
                {"group": place, **{key: row[key] for key in shown if key in row}}
                for place, group in enumerate(self.groups)
                for row in group.runs
            ],
            "findings": self.sentences(),
        }

    def table(self) -> list[Values]:
        """Makes a table for a terminal: a row per group, with the median and range of each metric."""
        incomplete = [state for state in STATES[1:] if any(group.counts[state] for group in self.groups)]
        return [
            {
                **group.values,
                **{key: group.counts[key] for key in ("runs", *incomplete, "seeds")},
                **{metric: found.summary for metric, found in group.spreads.items()},
            }
            for group in self.groups
        ]

    def to_csv(self) -> str:
        """Writes CSV with a line per group."""
        parts = ("n", "missing", "median", "mean", "best", "worst", "least", "most")
        names = [f"{metric}.{part}" for metric in self.metrics for part in (*parts, "low", "high")]
        lines = []
        for group in self.groups:
            cells: list[Value | None] = [*group.values.values(), *group.counts.values()]
            for found in group.spreads.values():
                cells += [*(getattr(found, part) for part in parts), *(found.interval or (None, None))]
            lines.append(cells)
        return as_csv([[*self.by, *self.groups[0].counts, *names], *lines])

    def runs_csv(self) -> str:
        """Writes CSV with a line per run and everything known about it."""
        keys = list(dict.fromkeys(key for row in self.runs for key in row))
        return as_csv([keys, *([row.get(key) for key in keys] for row in self.runs)])

    def _repr_html_(self) -> str:
        return as_html(self.sentences(), self.table())


def compare(
    folders: str | Path | Sequence[str | Path],
    by: str | Sequence[str],
    metrics: Sequence[str] = (),
    where: str | None = None,
    only: Collection[str] | None = None,
) -> RunComparison:
    """Compares all runs under these folders, or those in folders named in `only`, grouped by these keys. A run that is
    found twice counts once."""
    named = [folders] if isinstance(folders, str | Path) else list(folders)
    by = [by] if isinstance(by, str) else list(by)
    chosen = parse_where(where)
    if not named:
        raise HeadwayError("name a folder that holds runs")
    if not by:
        raise HeadwayError("name a key that runs are grouped by, such as `by=positions`")
    rows, among, known = list[Row](), 0, set[str]()
    for folder in _outermost([Path(each) for each in named]):
        found = find_runs(folder, chosen)
        wanted = [row for row in found.rows if only is None or Path(str(row["run"])).name in only]
        rows += [{**row, "run": os.path.normpath(folder / str(row["run"]))} for row in wanted]
        among, known = among + found.runs, known | found.keys
    _check(by, metrics, known)
    chosen.check(known)
    shown = ", ".join(map(str, named))
    if not among:
        raise HeadwayError(f"{shown} holds no run; 'headway train' makes one")
    if not rows:
        raise HeadwayError(f"`where={where or only!r}` matches none of the {among:,} runs in {shown}; loosen it")
    complete = [row for row in rows if row["state"] == "complete"]
    compared = tuple(dict.fromkeys(metrics or [name for name in USUAL if any(name in row for row in complete)]))
    return RunComparison(tuple(map(str, named)), tuple(by), compared, where, among, _group(rows, by, compared))


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Drops folders that lie in others, whose runs are found there."""
    for folder in folders:
        if not folder.is_dir():
            raise HeadwayError(f"there is no folder {folder}; name one that holds runs")
    real = {folder.resolve(): folder for folder in reversed(folders)}  # the first of two names for one folder
    return [folder for home, folder in reversed(real.items()) if not any(above in real for above in home.parents)]


def _check(by: Sequence[str], metrics: Sequence[str], known: set[str]) -> None:
    for kind, keys in (("key in `by`", by), ("metric", metrics)):
        for key in keys:
            if key not in known:
                raise unknown(kind, key, known)
    if both := [key for key in by if key in metrics]:
        raise HeadwayError(f"{both[0]} is both a grouping key and a metric; leave it out of one")
    if len(set(by)) < len(by):
        raise HeadwayError(f"`by={','.join(by)}` names a key twice")


def _group(rows: Sequence[Row], by: Sequence[str], metrics: tuple[str, ...]) -> tuple[Group, ...]:
    for metric in metrics:
        if any(isinstance(row.get(metric), str) for row in rows):
            raise HeadwayError(f"{metric} is text, not a metric; name a number, such as {' or '.join(USUAL[:2])}")
    groups: dict[tuple[Value | None, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in by), []).append(row)
    ordered = sorted(groups, key=lambda values: [sort_key(value) for value in values])
    return tuple(Group(dict(zip(by, values, strict=True)), tuple(groups[values]), metrics) for values in ordered)
