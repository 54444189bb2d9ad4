"""Plans passes for many variants of a model, so that what two variants have in common is computed only once.

A variant changes some sites. Sorted by what they change, site after site in the order of the forward pass, variants
with a long common beginning come one after another: each is replayed from the first site where it differs from one
that was recorded before, and is recorded itself where the next one has more in common with it.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.models import Site

Changes = Mapping[Site, Hashable]
"""the sites that a variant changes; equal values mean equal gates at that site"""


@dataclass(frozen=True)
class PassStep:
    """One variant, and what its pass is replayed from."""

    variant: int
    source: int
    """the depth of the recording to replay; at depth 0 nothing is changed"""
    first: Site | None
    """the first site that differs from the recording; None where nothing does"""
    keep: int | None
    """the depth to record this pass at, which replaces recordings at that depth and below; None if it need not be"""


def plan_passes(changed: Sequence[Changes], sites: Sequence[Site]) -> Iterator[PassStep]:
    """Yields the variants in an order in which they share as much as possible."""
    ranks: dict[Site, dict[Hashable, int]] = {site: {} for site in sites}
    rows = [
        tuple(ranks[site].setdefault(each[site], len(ranks[site]) + 1) if site in each else 0 for site in sites)
        for each in changed
    ]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    recorded = [(0,) * len(sites)]
    for place, variant in enumerate(order):
        row = rows[variant]
        shared = [_common(row, other) for other in recorded]
        source = shared.index(max(shared))
        del recorded[source + 1 :]
        at, keep = shared[source], None
        if at < len(sites) and place + 1 < len(order) and _common(row, rows[order[place + 1]]) > at:
            keep = len(recorded)
            recorded.append(row)
        yield PassStep(variant, source, None if at == len(sites) else sites[at], keep)


def _common(one: tuple[int, ...], two: tuple[int, ...]) -> int:
    """Returns the number of sites at the beginning that two variants change in the same way."""
    return next((place for place, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), len(one))
