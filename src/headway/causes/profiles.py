"""Profiles: for each attention site and each contrast, the share of pairs that flip when the whole site is patched.

Heads of a site are interchangeable, sites are not, so profiles are about sites. A profile belongs to one draw of the
pairs; the same run tested on another draw gives another profile, and how far the two lie apart is the noise that
differences between runs are held against (retest.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.causes.flips import Cannot, Flips, count_flips
from headway.causes.patching import Pairs, Patch
from headway.causes.roles import parts_that_flip_half
from headway.subjects.splits import Split
from headway.subjects.subject import Subject
from headway.tasks.problems import Contrast

PROFILED = 60  # pairs of each contrast
REDRAWS = 4
State = Literal["carries", "does not carry", "unclear"]


@dataclass(frozen=True)
class Profile:
    """The flips by attention site and contrast, on one draw of the pairs or on several together."""

    subject: str
    counts: Mapping[str, Mapping[str, Flips]]

    @property
    def flips(self) -> dict[str, dict[str, float | Cannot]]:
        """The share of pairs that flip; "cannot" where the site provably flips none."""
        return {
            site: {name: "cannot" if flips.share is None else round(flips.share, 4) for name, flips in row.items()}
            for site, row in self.counts.items()
        }

    def signature(self) -> str:
        """Lists the attention sites that flip at least half of the pairs, by contrast."""
        return _spell({name: list(sites) for name, sites in parts_that_flip_half(self.flips).items()})

    def clear_signature(self, states: Mapping[tuple[str, str], State]) -> str:
        """Lists the sites that clearly flip more than half of the pairs, and those where that is unclear; `states` are
        by site and contrast."""
        found: dict[str, list[str]] = {name: [] for row in self.counts.values() for name in row}
        for (site, name), state in states.items():
            if state != "does not carry":
                found[name].append(site if state == "carries" else f"{site} unclear")
        return _spell(found)


def _spell(sites: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{contrast}: {' + '.join(some) or 'no single site'}" for contrast, some in sites.items())


def pool(profiles: Sequence[Profile]) -> Profile:
    """Adds up the flips of one run over several draws."""
    first = profiles[0]
    counts = {
        site: {name: _add([each.counts[site][name] for each in profiles]) for name in row}
        for site, row in first.counts.items()
    }
    return Profile(first.subject, counts)


def _add(found: Sequence[Flips]) -> Flips:
    able = [each for each in found if each.can]
    return Flips(sum(each.flips for each in able), sum(each.pairs for each in able), bool(able))


def profile_contrasts(subject: Subject, seed: int = 0) -> list[Contrast]:
    """Draws pairs of every contrast."""
    assert subject.contrasts is not None
    return [contrast for contrast in subject.contrasts(PROFILED, Split.REPORT.seed(seed)) if not contrast.placebo]


def measure_profile(subject: Subject, contrasts: Sequence[Contrast]) -> Profile | None:
    """Patches every attention site at all positions; None where the model is wrong on most pairs of a contrast."""
    pairs = Pairs(subject, contrasts)
    sites = [site for site in subject.runner.sites if site.kind != "feed"]
    found = count_flips(pairs, [Patch(frozenset({site})) for site in sites])
    if min(found.known) < PROFILED // 2:
        return None
    return Profile(
        subject.name,
        {
            str(site): {contrast.name: found.total(place, number) for number, contrast in enumerate(contrasts)}
            for place, site in enumerate(sites)
        },
    )


def measure_redraws(
    subject: Subject, member: int = 0, seed: int = 0, draws: int = REDRAWS
) -> tuple[Profile, ...] | None:
    """Measures the profile of a run on independent draws of the pairs; no two members share a draw. None where the
    model is too often wrong."""
    found = []
    for draw in range(draws):
        profile = measure_profile(subject, profile_contrasts(subject, seed * 1_000_003 + member * draws + draw))
        if profile is None:
            return None
        found.append(profile)
    return tuple(found)
