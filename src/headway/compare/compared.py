"""A comparison in words: which group is best and whether that may be believed, what else differs, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.compare.differing import Difference, conditions, differences
from headway.compare.spread import LOWER_IS_BETTER, Number, is_reach, spoken

if TYPE_CHECKING:
    from headway.compare.comparing import Comparison, Group

LISTED = 4
"""names that a sentence lists"""
MEASURED_BY = {
    "exact_match": "headway evaluate",
    "errors": "headway evaluate",
    "reach": "headway lengths",
    "in_range": "headway lengths",
    "heads_together": "headway heads",
    "heads_alone": "headway heads",
    "together_accuracy": "headway heads",
    "certified": "headway certify",
    "perfect": "headway train --until perfect",
}


def sentences(found: Comparison) -> list[str]:
    told = [each for metric in found.metrics for each in _of_metric(found, metric)]
    told += [*_of_settings(found), *_of_seeds(found), *_of_copies(found), *_of_states(found)]
    if not found.metrics:
        told.append("No run has a number to compare: 'headway evaluate' and 'headway lengths' measure some.")
    if found.where is not None:
        told.append(f"{len(found.runs):,} of {found.among:,} runs are those that --where {found.where!r} asks for.")
    return told


def _of_metric(found: Comparison, metric: str) -> list[str]:
    measured = [group for group in found.groups if group.spreads[metric].n]
    return [*_ranked(metric, measured), *_tested(metric, measured), *_alike(found, metric), *_absent(found, metric)]


def _ranked(metric: str, groups: list[Group]) -> list[str]:
    """The best by the median and the next, and whether their runs overlap."""
    if not groups:
        return []
    sign = 1 if metric in LOWER_IS_BETTER else -1
    ranked = sorted(groups, key=lambda group: sign * (group.spreads[metric].median or 0))
    first, *others = ranked
    top = first.spreads[metric]
    if not others:
        return [f"{metric}: {_told(first, metric)}."]
    same = [group for group in ranked if group.spreads[metric].median == top.median]
    if len(same) > 1:
        rest = [group for group in ranked if group not in same]
        below = f"; the others are at {spoken(_worst_median(metric, rest))} or better" if rest else ""
        return [
            f"{metric}: {listed([group.name for group in same])} have the same median, {spoken(top.median)}{below}."
        ]
    said = f"{metric}: best by the median {_told(first, metric)}, then {_told(others[0], metric)}"
    if top.n < 2 or others[0].spreads[metric].n < 2:
        return [f"{said}."]
    apart = top.worst is not None and all(sign * (top.worst - _best(group, metric)) < 0 for group in others)
    verdict = f"every run of {first.name} is better than every other" if apart else "their runs overlap"
    return [f"{said}; {verdict}."]


def _best(group: Group, metric: str) -> Number:
    best = group.spreads[metric].best
    assert best is not None
    return best


def _worst_median(metric: str, groups: list[Group]) -> Number:
    medians = [group.spreads[metric].median or 0.0 for group in groups]
    return max(medians) if metric in LOWER_IS_BETTER else min(medians)


def _told(group: Group, metric: str) -> str:
    found = group.spreads[metric]
    if found.n == 1:
        return f"{group.name} {spoken(found.median)} (one run)"
    span = "all the same" if found.least == found.most else f"{spoken(found.least)} to {spoken(found.most)}"
    return f"{group.name} {spoken(found.median)} ({found.n:,} runs, {span})"


def _tested(metric: str, groups: list[Group]) -> list[str]:
    """A reach that ends where the testing ended may be longer."""
    if not is_reach(metric):
        return []
    capped = [group for group in groups if group.spreads[metric].median == _tested_to(group, metric)]
    if not capped:
        return []
    return [f"{metric} of {listed([group.name for group in capped])} ends where testing ended: it may be longer."]


def _tested_to(group: Group, metric: str) -> Number | None:
    lengths = [row["tested_to"] for row in group.complete if metric in row and "tested_to" in row]
    return max((each for each in lengths if not isinstance(each, str)), default=None)


def _alike(found: Comparison, metric: str) -> list[str]:
    """Whether all groups were measured in the same way."""
    told = [group for group in found.groups if any(metric in row for row in group.complete)]
    differ = conditions([group.complete for group in told], found.by, metric)
    return [f"{metric} was not measured alike: {each.name} differs ({_values(each, told)})." for each in differ]


def _absent(found: Comparison, metric: str) -> list[str]:
    told = []
    for group in found.groups:
        if unlearned := group.spreads[metric].unlearned:
            few = f"{unlearned:,} of {len(group.complete):,} complete runs"
            told.append(
                f"{few} of {group.name} did not learn in range and have no {metric}: its median is of the others, its "
                "worst is not told."
            )
    missing = sum(group.spreads[metric].missing - group.spreads[metric].unlearned for group in found.groups)
    if missing:
        complete = sum(len(group.complete) for group in found.groups)
        command = MEASURED_BY.get("reach" if is_reach(metric) else metric)
        way = f"; '{command}' measures it" if command else ""
        told.append(f"{metric} is missing in {missing:,} of {complete:,} complete runs{way}.")
    return told


def _of_settings(found: Comparison) -> list[str]:
    told, groups = [], [group for group in found.groups if group.complete]
    if len(found.groups) == 1:
        told.append(f"All runs are of one group, {found.groups[0].name}: there is nothing to compare.")
    differ = differences([group.complete for group in groups], found.by)
    between, within = ([each for each in differ if each.between is way] for way in (True, False))
    if between:
        verb = "is not the only thing that differs" if len(found.by) == 1 else "are not the only things that differ"
        detail = f" ({between[0].name} {_values(between[0], groups)})"
        told.append(f"{listed(found.by)} {verb}: {listed([each.name for each in between])} too{detail}.")
    if within:
        names = listed([each.name for each in within])
        told.append(f"Within each group {names} varies, alike in all: the spread is not of seeds alone.")
    return told


def _values(difference: Difference, groups: Sequence[Group]) -> str:
    """Which groups have which."""
    having: dict[str, list[str]] = {}
    for group, values in zip(groups, difference.by_group, strict=True):
        having.setdefault(listed(["none" if each is None else spoken(each) for each in values]), []).append(group.name)
    told = [f"{values} in {listed(names)}" for values, names in having.items()]
    return "; ".join(told[:LISTED]) + ("; …" if len(told) > LISTED else "")


def _of_seeds(found: Comparison) -> list[str]:
    single = [group for group in found.groups if group.seeds == 1]
    if not single:
        return []
    if len(single) == sum(bool(group.complete) for group in found.groups):
        return ["One seed a group: no spread can be told, and another seed may turn the order round."]
    return [f"No spread can be told of {listed([group.name for group in single])}: one seed."]


def _of_copies(found: Comparison) -> list[str]:
    complete = [row for group in found.groups for row in group.complete]
    copies = len(complete) - len({row["digest"] for row in complete})
    if not copies:
        return []
    return [f"{copies:,} of {len(complete):,} complete runs have the config of another: a copy is no second seed."]


def _of_states(found: Comparison) -> list[str]:
    counts = {state: sum(row["state"] == state for row in found.runs) for state in ("unfinished", "broken")}
    if not any(counts.values()):
        return []
    told = " and ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    return [f"{told} of {len(found.runs):,} runs: they are counted, and no number is of them."]


def listed(names: Sequence[str]) -> str:
    """a, b and c; of many the first few."""
    if len(names) > LISTED:
        names = [*names[: LISTED - 1], f"{len(names) - LISTED + 1:,} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
