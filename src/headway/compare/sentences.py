"""A comparison in words: which group is best and how sure that is, what is missing, and which other settings differ
between the groups, since a difference may be due to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.compare.describe import SETTINGS, Row, Value
from headway.output import format_value
from headway.runs.metrics import find_run_metric, is_reach

if TYPE_CHECKING:
    from headway.compare.groups import Group, RunComparison

MOST_LISTED = 4  # names in one sentence
TITLES = {"steps_asked": "steps", "kind": "model", "tested_to": "the longest tested length", "examples": "problems"}
"""names of keys in sentences, where they differ"""


@dataclass(frozen=True)
class Difference:
    """A setting that differs between runs."""

    name: str
    by_group: list[list[Value | None]]  # the values in each group
    between: bool  # whether groups differ in it; otherwise each group has the same values in the same shares


def sentences(comparison: RunComparison) -> list[str]:
    found = [each for metric in comparison.metrics for each in _describe_metric(comparison, metric)]
    found += [*_describe_settings(comparison), *_describe_runs(comparison)]
    if not comparison.metrics:
        found.append("No run has a metric to compare; measure one with 'headway evaluate' or 'headway lengths'.")
    if (where := comparison.where) is not None:
        found.append(f"{len(comparison.runs):,} of {comparison.among:,} runs match {where!r}.")
    return found


def _describe_metric(comparison: RunComparison, metric: str) -> list[str]:
    measured = [group for group in comparison.groups if group.spreads[metric].n]
    conditions = [key for key in find_run_metric(metric).conditions if key not in comparison.by]
    differ = _differences(conditions, [[row for row in group.complete if metric in row] for group in measured])
    unequal = [
        f"{metric} was not measured in the same way: {each.name} differs ({_list_values(each, measured)})."
        for each in differ
        if each.between
    ]
    return [*_rank(metric, measured), *_note_capped(metric, measured), *unequal, *_note_missing(comparison, metric)]


def _rank(metric: str, groups: list[Group]) -> list[str]:
    """Names the best group by the median and the next, and says whether their runs overlap."""
    if not groups:
        return []
    lower = find_run_metric(metric).lower_is_better
    sign = 1 if lower else -1
    ranked = sorted(groups, key=lambda group: sign * (group.spreads[metric].median or 0))
    first, *others = ranked
    top = first.spreads[metric]
    if not others:
        return [f"{metric}: {_summary(first, metric)}."]
    same = [group for group in ranked if group.spreads[metric].median == top.median]
    if len(same) > 1:
        rest = [group.spreads[metric].median or 0.0 for group in ranked if group not in same]
        worst = (max if lower else min)(rest, default=0.0)
        below = f"; the others are at {format_value(worst)} or better" if rest else ""
        names = join_names([group.name for group in same])
        return [f"{metric}: {names} have the same median, {format_value(top.median)}{below}."]
    order = f"{metric}: best by the median {_summary(first, metric)}, then {_summary(others[0], metric)}"
    if top.n < 2 or others[0].spreads[metric].n < 2:
        return [f"{order}."]
    best = [group.spreads[metric].best or 0.0 for group in others]
    apart = top.worst is not None and all(sign * (top.worst - each) < 0 for each in best)
    verdict = f"every run of {first.name} is better than every other" if apart else "their runs overlap"
    return [f"{order}; {verdict}."]


def _summary(group: Group, metric: str) -> str:
    found = group.spreads[metric]
    if found.n == 1:
        return f"{group.name} {format_value(found.median)} (one run)"
    same = found.least == found.most
    span = "all the same" if same else f"{format_value(found.least)} to {format_value(found.most)}"
    return f"{group.name} {format_value(found.median)} ({found.n:,} runs, {span})"


def _note_capped(metric: str, groups: list[Group]) -> list[str]:
    """Notes that a reach equal to the longest tested length may be longer."""
    if not is_reach(metric):
        return []
    capped = []
    for group in groups:
        tested = [n for row in group.complete if metric in row and isinstance(n := row.get("tested_to"), int | float)]
        capped += [group.name] if group.spreads[metric].median == max(tested, default=None) else []
    return [f"{metric} of {join_names(capped)} is the longest tested length: it may be longer."] if capped else []


def _note_missing(comparison: RunComparison, metric: str) -> list[str]:
    found = []
    for group in comparison.groups:
        if unlearned := group.spreads[metric].unlearned:
            found.append(
                f"{unlearned:,} of {len(group.complete):,} complete runs of {group.name} did not learn in range and "
                f"have no {metric}: its median is over the others, its worst is not reported."
            )
    missing = sum(group.spreads[metric].missing - group.spreads[metric].unlearned for group in comparison.groups)
    if missing:
        complete = sum(len(group.complete) for group in comparison.groups)
        command = find_run_metric(metric).command
        remedy = f"; '{command}' measures it" if command else ""
        found.append(f"{metric} is missing in {missing:,} of {complete:,} complete runs{remedy}.")
    return found


def _describe_settings(comparison: RunComparison) -> list[str]:
    found, groups = [], [group for group in comparison.groups if group.complete]
    if len(comparison.groups) == 1:
        found.append(f"All runs are in one group, {comparison.groups[0].name}: there is nothing to compare.")
    options = sorted({key for group in groups for row in group.complete for key in row if key.startswith("option.")})
    keys = [key for key in (*SETTINGS, *options) if key not in comparison.by]
    differ = _differences(keys, [group.complete for group in groups])
    between, within = ([each for each in differ if each.between is way] for way in (True, False))
    if between:
        verb = "is not the only thing that differs" if len(comparison.by) < 2 else "are not the only things that differ"
        detail = f" ({between[0].name} {_list_values(between[0], groups)})"
        found.append(f"{join_names(comparison.by)} {verb}: {join_names([each.name for each in between])} too{detail}.")
    if within:
        names = join_names([each.name for each in within])
        found.append(f"Within each group {names} varies, in the same way: the spread is not due to seeds alone.")
    return found


def _differences(keys: Sequence[str], groups: Sequence[Sequence[Row]]) -> list[Difference]:
    """Finds which of these keys differ between runs."""
    found = []
    for key in keys:
        counts = [Counter(row.get(key) for row in rows) for rows in groups]
        if len({value for count in counts for value in count}) > 1:
            shares = [{value: n / count.total() for value, n in count.items()} for count in counts]
            values = [sorted(count, key=sort_key) for count in counts]
            name = TITLES.get(key, key.removeprefix("option."))
            found.append(Difference(name, values, between=any(share != shares[0] for share in shares)))
    return found


def sort_key(value: Value | None) -> tuple[int, float, str]:
    """A key that sorts numbers by size, then text alphabetically, then missing values."""
    if value is None:
        return 2, 0.0, ""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def _list_values(difference: Difference, groups: Sequence[Group]) -> str:
    """Lists the values with the groups that have them."""
    having: dict[str, list[str]] = {}
    for group, values in zip(groups, difference.by_group, strict=True):
        shown = ["none" if value is None else format_value(value) or repr(value) for value in values]
        having.setdefault(join_names(shown), []).append(group.name)
    parts = [f"{values} in {join_names(names)}" for values, names in having.items()]
    return "; ".join(parts[:MOST_LISTED]) + ("; …" if len(parts) > MOST_LISTED else "")


def _describe_runs(comparison: RunComparison) -> list[str]:
    """Notes groups with a single seed, copies, and incomplete runs."""
    found, complete = [], [row for group in comparison.groups for row in group.complete]
    single = [group.name for group in comparison.groups if group.counts["seeds"] == 1]
    if single and len(single) == sum(bool(group.complete) for group in comparison.groups):
        found.append("One seed per group: the spread is unknown, and another seed may reverse the order.")
    elif single:
        found.append(f"The spread of {join_names(single)} is unknown: one seed.")
    if copies := len(complete) - len({row["digest"] for row in complete}):
        runs = f"{copies:,} of {len(complete):,} complete runs"
        found.append(f"{runs} have the config of another: a copy is not a second seed.")
    counts = {state: sum(row["state"] == state for row in comparison.runs) for state in ("unfinished", "broken")}
    if shown := " and ".join(f"{count:,} {state}" for state, count in counts.items() if count):
        found.append(f"{shown} of {len(comparison.runs):,} runs: they are counted, but have no metrics here.")
    return found


def join_names(names: Sequence[str]) -> str:
    """Joins names as a, b and c; of many it keeps the first few."""
    if len(names) > MOST_LISTED:
        names = [*names[: MOST_LISTED - 1], f"{len(names) - MOST_LISTED + 1:,} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
