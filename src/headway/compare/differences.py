"""What else differs between groups of runs that are compared by one thing: a difference may be due to it."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headway.compare.describe import SETTINGS, Row, Value
from headway.runs.metrics import metric_of_runs

CALLED = {"steps_asked": "steps", "kind": "model", "tested_to": "the longest tested length", "examples": "problems"}
"""keys that have other names in a sentence"""


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same everywhere."""

    key: str
    by_group: tuple[tuple[Value | None, ...], ...]
    """the values in each group"""
    between: bool
    """whether groups differ in it; otherwise each has the same values, in the same shares"""

    @property
    def name(self) -> str:
        return CALLED.get(self.key, self.key.removeprefix("option."))


def differences(groups: Sequence[Sequence[Row]], by: Collection[str]) -> list[Difference]:
    """Finds settings, besides those that the groups were made by, in which these runs differ."""
    options = sorted({key for rows in groups for row in rows for key in row if key.startswith("option.")})
    return _among([key for key in (*SETTINGS, *options) if key not in by], groups)


def differing_conditions(groups: Sequence[Sequence[Row]], by: Collection[str], metric: str) -> list[Difference]:
    """Finds what of the way a metric was measured differs between groups."""
    keys = [key for key in metric_of_runs(metric).conditions if key not in by]
    measured = [[row for row in rows if metric in row] for rows in groups]
    return [each for each in _among(keys, measured) if each.between]


def _among(keys: Sequence[str], groups: Sequence[Sequence[Row]]) -> list[Difference]:
    found = []
    for key in keys:
        counts = [Counter(row.get(key) for row in rows) for rows in groups if rows]
        if len({value for count in counts for value in count}) > 1:
            shares = [{value: n / count.total() for value, n in count.items()} for count in counts]
            values = [tuple(sorted(count, key=in_order)) for count in counts]
            found.append(Difference(key, tuple(values), between=any(share != shares[0] for share in shares)))
    return found


def in_order(value: Value | None) -> tuple[int, float, str]:
    """Numbers by size, then text by the alphabet, then what is missing."""
    if value is None:
        return 2, 0.0, ""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
