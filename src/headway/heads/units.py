"""The units that a study keeps or closes as a whole: each head, or each group of heads that share keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headway.errors import HeadwayError
from headway.models import Head, Site
from headway.subjects.subject import Subject


@dataclass(frozen=True, order=True)
class KeyValueGroup:
    """The heads of a site that read the same keys and values, and so share a cache."""

    site: Site
    number: int
    heads: tuple[Head, ...]

    def __str__(self) -> str:
        return f"{self.site}.group{self.number}"


Unit = Head | KeyValueGroup


def heads_in(*units: Unit) -> frozenset[Head]:
    """Returns the heads of some units."""
    return frozenset(head for unit in units for head in (unit.heads if isinstance(unit, KeyValueGroup) else (unit,)))


def units_of(subject: Subject, kind: str = "heads") -> tuple[Unit, ...]:
    """Returns the units of a subject, in the order of its heads; where no keys are shared, a group is a head."""
    if kind == "heads":
        return subject.heads
    groups: dict[tuple[Site, int], list[Head]] = {}
    for head in subject.heads:
        groups.setdefault((head.site, head.number // _group_size(subject, head.site)), []).append(head)
    for (site, number), heads in groups.items():
        if len(heads) != _group_size(subject, site):
            named = ", ".join(map(str, heads))
            raise HeadwayError(
                f"{subject.name} names only {named} of group {number} of {site}; name all heads of a group, or use "
                "`units=heads`"
            )
    return tuple(
        heads[0] if len(heads) == 1 else KeyValueGroup(site, number, tuple(heads))
        for (site, number), heads in groups.items()
    )


def leave_out_cross(subject: Subject) -> Subject:
    """Returns the subject without its heads of cross-attention, which cannot be narrowed."""
    heads = tuple(head for head in subject.heads if head.site.kind == "self")
    if subject.heads and not heads:
        raise HeadwayError(
            f"{subject.name} has only heads of cross-attention, which see another sequence; no token of it is recent"
        )
    return replace(subject, heads=heads)


def _group_size(subject: Subject, site: Site) -> int:
    runner = subject.runner
    return runner.width[site] // runner.groups.get(site, runner.width[site])


def shares_keys(subject: Subject) -> bool:
    """Whether heads of the subject share keys and values."""
    return any(_group_size(subject, site) > 1 for site in {head.site for head in subject.heads})


def groups_of_heads(units: Iterable[Unit]) -> dict[Head, str]:
    """Returns the name of the group of each head that is in one."""
    return {head: str(unit) for unit in units if isinstance(unit, KeyValueGroup) for head in unit.heads}
