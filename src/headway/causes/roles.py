"""Finds which heads carry what to which digit: the causal tests of patching.py as a table, with controls.

Every head, site and feed-forward block is tested by itself (flips.py), and for every contrast a set of heads that
suffices is grown and tested (sufficient.py). Shares are given for each contrast and column, never averaged over
columns: a site may flip nearly every pair at one column and be unable to flip any at another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.causes.flips import CANNOT, Cannot, Flips, Strength, measure_strengths
from headway.causes.patching import Pairs, Patch
from headway.causes.sufficient import SufficientSet, grow_set, measure_set
from headway.models import Head, Site
from headway.models.sites import Part, site_of
from headway.progress import SILENT, Watch
from headway.subjects.splits import Split
from headway.subjects.subject import Subject

PAIRS, GROWN = 200, 60  # pairs of each contrast: for the table, and for growing sets
RANDOM_SETS = 100
KINDS = {
    "operand": "The digits of a column",
    "carry": "A carry",
    "propagated": "A carry that the column below passes on",
    "written": "A carry that its own column passes on",
}
SWAPS = {"source": ", with only the source swapped", "prefix": ", with only the written digits swapped"}


@dataclass(frozen=True)
class SwappedInput:
    """How often the model writes the other problem's digit when only a part of its input is swapped: no patch."""

    contrast: str
    flips: Flips

    def to_json(self) -> dict[str, Any]:
        return {
            "contrast": self.contrast,
            "flips": self.flips.share,
            "interval": self.flips.interval(),
            "by_direction": self.flips.directions(),
            "pairs": self.flips.pairs,
        }

    def finding(self) -> str:
        _, column, swap = self.contrast.split()
        first, second = self.flips.directions() or [0.0, 0.0]
        what, rest = ("source", "written digits") if swap == "source" else ("written digits", "source")
        return (
            f"No patch, column {column} passes a carry on: with its own {rest} and the {what} of a sum with that "
            f"carry, a sum without it gets the other's digit {column} in {first:.1%} of {self.flips.pairs} pairs; the "
            f"other way round in {second:.1%}."
        )


@dataclass(frozen=True)
class Roles:
    table: tuple[Strength, ...]
    explained: tuple[SufficientSet, ...]
    swapped: tuple[SwappedInput, ...] = ()

    def to_json(self) -> dict[str, Any]:
        both = [each for each in self.explained if len(each.contrast.split()) < 3]  # nothing is swapped in part
        return {
            "table": [strength.to_json() for strength in self.table],
            "explained": [each.to_json() for each in self.explained],
            "mean_explained": self.mean_of([each.real for each in both]),
            "mean_by_named": self.mean_of([each.by_named for each in both]),
            "by_site": self.by_site(),
            "swapped_inputs": [each.to_json() for each in self.swapped],
        }

    def by_site(self) -> dict[str, dict[str, float]]:
        """Returns the sites and feed-forward blocks that flip at least half of the pairs of each contrast."""
        flips: dict[str, dict[str, float | Cannot]] = {}
        for strength in self.table:
            share = strength.both.to_json()
            if isinstance(strength.part, Site) and not strength.at_answer and strength.pairs and share is not None:
                flips.setdefault(str(strength.part), {})[strength.contrast] = share
        return parts_that_flip_half(flips)

    def sites_that_cannot(self) -> dict[str, list[str]]:
        """Returns the sites that provably flip nothing, by contrast."""
        found: dict[str, list[str]] = {}
        for strength in self.table:
            if isinstance(strength.part, Site) and not strength.at_answer and strength.pairs and not strength.can:
                found.setdefault(strength.contrast, []).append(str(strength.part))
        return found

    @staticmethod
    def mean_of(found: Sequence[Flips]) -> float | None:
        """Returns the mean share over the contrasts that the model has right."""
        shares = [flips.share for flips in found if flips.share is not None]
        return sum(shares) / len(shares) if shares else None

    def findings(self) -> list[str]:
        """States what the tests support, and nothing else."""
        words = [each.finding() for each in self.explained if each.sound]
        words += [each.finding() for each in self.swapped if each.flips.pairs and each.contrast.startswith("written")]
        by_kind: dict[tuple[str, str], list[str]] = {}
        cannot = self.sites_that_cannot()
        for contrast, parts in self.by_site().items():
            kind, column, *swap = contrast.split()
            listed = [", ".join(f"{part} {share:.0%}" for part, share in parts.items()) or "none"]
            listed += [f"{', '.join(cannot[contrast])} cannot"] if contrast in cannot else []
            by_kind.setdefault((kind, "".join(swap)), []).append(f"{column}: {'; '.join(listed)}")
        for (kind, swap), columns in by_kind.items():
            name, of = KINDS.get(kind, f"A {kind}"), "column" if kind in KINDS else "place"
            words.append(
                f"{name}{SWAPS.get(swap, '')}: patched as a whole, each of these flips at least half of the pairs, by "
                f"{of}: {'. '.join(columns)}."
            )
        return words


def parts_that_flip_half(flips: Mapping[str, Mapping[str, float | Cannot]]) -> dict[str, dict[str, float]]:
    """Returns, for each contrast, the parts that flip at least half of its pairs, with their shares; `flips` are the
    shares by part and contrast."""
    names = dict.fromkeys(contrast for row in flips.values() for contrast in row)
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for part, row in flips.items():
        for contrast, share in row.items():
            if share != CANNOT and share >= 0.5:
                found[contrast][part] = share
    return found


def find_roles(
    subject: Subject,
    seed: int = 0,
    watch: Watch = SILENT,
    *,
    pairs: int | None = None,
    grown: int | None = None,
    random_sets: int | None = None,
) -> Roles:
    """Tests all heads, sites and feed-forward blocks on so many pairs of each contrast (default: PAIRS), and finds a
    sufficient set of heads for every contrast, grown on `grown` pairs (GROWN) and held against random sets
    (RANDOM_SETS)."""
    assert subject.contrasts is not None
    pairs, grown, random_sets = pairs or PAIRS, grown or GROWN, random_sets or RANDOM_SETS
    contrasts = subject.contrasts(pairs, Split.REPORT.seed(seed))
    parts: list[Part] = [*subject.heads, *subject.runner.sites]
    patches = [Patch(frozenset({part})) for part in parts]
    patches += [Patch(frozenset({part}), at_answer=True) for part in parts if site_of(part).stack == "decoder"]
    all_pairs = Pairs(subject, contrasts)
    table = measure_strengths(all_pairs, patches)
    to_grow = {c.name: c for c in subject.contrasts(grown, Split.SELECT.seed(seed)) if not c.placebo}
    explained, names = [], list(dict.fromkeys(contrast.name for contrast in contrasts))
    for name in names:
        both = [contrast for contrast in contrasts if contrast.name == name]  # the real one, then its placebo
        parts = [s.part for s in table if s.named and s.contrast == name and not s.at_answer]
        named = tuple(part for part in parts if isinstance(part, Head))
        heads = grow_set(Pairs(subject, [to_grow[name]]), subject.heads) if name in to_grow else ()
        explained.append(measure_set(subject, both, heads, named, random_sets, f"{seed} {name}"))
        watch(len(explained), len(names))
    return Roles(tuple(table), tuple(explained), tuple(swap_inputs(all_pairs)))


def swap_inputs(pairs: Pairs) -> list[SwappedInput]:
    """Measures the contrasts that swap only a part of the input, without any patch."""
    written, found = None, list[SwappedInput]()
    for number, contrast in enumerate(pairs.contrasts):
        if contrast.swap != "both" and not contrast.placebo:
            written = pairs.swapped() if written is None else written
            own = pairs.contrast == number
            there, back = (int(written[own & side].sum()) for side in (pairs.forward, ~pairs.forward))
            flips = Flips(there + back, int(pairs.known[own].sum()) // 2, True, (there, back))
            found.append(SwappedInput(contrast.name, flips))
    return found
