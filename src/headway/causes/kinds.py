"""Compares the role profiles of many runs, and counts how many kinds of solution there are.

A profile has, for each attention site and each contrast, the share of pairs that flip when the whole site is patched:
heads of a site are interchangeable, sites are not. Kinds are counted in two ways: by signature (which sites flip at
least half of the pairs of each contrast), and by clustering the profiles with the best silhouette.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.causes.flips import CANNOT, Cannot, count_flips
from headway.causes.patching import Pairs, Patch
from headway.causes.roles import parts_that_flip_half
from headway.subjects.splits import Split
from headway.subjects.subject import Subject
from headway.tasks.problems import Contrast

PROFILED = 60  # pairs of each contrast
MOST_KINDS, CLEAR = 8, 0.25  # a silhouette below `CLEAR` shows no structure: then there is one kind


@dataclass(frozen=True)
class Profile:
    """The share of pairs that flip, by attention site and contrast; "cannot" where the site provably flips none."""

    subject: str
    flips: Mapping[str, Mapping[str, float | Cannot]]

    def signature(self) -> str:
        """Lists the attention sites that flip at least half of the pairs, by contrast."""
        found = parts_that_flip_half(self.flips)
        return "; ".join(f"{contrast}: {' + '.join(sites) or 'no single site'}" for contrast, sites in found.items())


def profile_contrasts(subject: Subject, seed: int = 0) -> list[Contrast]:
    """Draws the pairs that every run is tested on."""
    assert subject.contrasts is not None
    return [contrast for contrast in subject.contrasts(PROFILED, Split.REPORT.seed(seed)) if not contrast.placebo]


def measure_profile(subject: Subject, contrasts: Sequence[Contrast]) -> Profile | None:
    """Patches every attention site at all positions; None where the model is wrong on most pairs of a contrast."""
    pairs = Pairs(subject, contrasts)
    sites = [site for site in subject.runner.sites if site.kind != "feed"]
    found = count_flips(pairs, [Patch(frozenset({site})) for site in sites])
    if min(found.known) < PROFILED // 2:
        return None
    shares: dict[str, dict[str, float | Cannot]] = {
        str(site): {
            contrast.name: CANNOT if share is None else round(share, 4)
            for number, contrast in enumerate(contrasts)
            for share in (found.total(place, number).share,)
        }
        for place, site in enumerate(sites)
    }
    return Profile(subject.name, shares)


def count_kinds(found: Sequence[Profile | None]) -> dict[str, Any]:
    """Counts the kinds of solution and averages each; None is a run too often wrong to be tested."""
    profiles = [profile for profile in found if profile is not None]
    runs = {"runs": len(profiles), "left_out": len(found) - len(profiles)}
    if not profiles:
        return {**runs, "signatures": [], "kinds": 0, "silhouette": None, "clusters": []}
    signatures = Counter(profile.signature() for profile in profiles)
    rows = [[share for row in profile.flips.values() for share in row.values()] for profile in profiles]
    shares = [
        [0.0 if isinstance(share, str) else share for share in row] for row in rows
    ]  # which tells no run from another
    number, silhouette, labels = _cluster(shares)
    largest_first = sorted(set(labels), key=lambda label: -labels.count(label))
    clusters = [[p for p, own in zip(profiles, labels, strict=True) if own == label] for label in largest_first]
    return {
        **runs,
        "signatures": [{"signature": text, "runs": count} for text, count in signatures.most_common()],
        "kinds": number,
        "silhouette": silhouette,
        "clusters": [
            {"runs": len(own), "flips": _mean_flips(own), "members": [each.subject for each in own]} for own in clusters
        ],
        "flips": _mean_flips(profiles),
    }


def describe_kinds(found: dict[str, Any]) -> str:
    """States the same in a sentence."""
    left_out = f" ({found['left_out']} more are too often wrong to be tested)" if found["left_out"] else ""
    if not found["runs"]:
        return f"No run could be tested for what its sites carry to the output{left_out}."
    runs, silhouette = f"{found['runs']:,} runs{left_out}", found["silhouette"]
    if found["kinds"] == 1:
        score = "" if silhouette is None else f": the best silhouette is {silhouette:.2f}"
        return f"By what their sites carry to the output, no kinds can be distinguished among {runs}{score}."
    kinds = f"{found['kinds']} kinds ({', '.join(str(cluster['runs']) for cluster in found['clusters'])} runs"
    return f"By what their sites carry to the output, {runs} are of {kinds}; silhouette {silhouette:.2f})."


def _mean_flips(profiles: Sequence[Profile]) -> dict[str, dict[str, float | Cannot]]:
    def mean(part: str, name: str) -> float | Cannot:
        shares = [share for profile in profiles if (share := profile.flips[part][name]) != CANNOT]
        return sum(shares) / len(shares) if shares else CANNOT

    return {part: {name: mean(part, name) for name in row} for part, row in profiles[0].flips.items()}


def _cluster(vectors: list[list[float]]) -> tuple[int, float | None, list[int]]:
    """Returns the number of clusters with the best silhouette, that silhouette, and the cluster of each vector."""
    import numpy
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import cdist

    table = numpy.array(vectors)
    if len(table) < 3 or numpy.ptp(table, axis=0).max() == 0:
        return 1, None, [1] * len(table)
    tree, distance = linkage(table, "ward"), cdist(table, table)

    def silhouette(labels: Any) -> float:
        inside, outside = numpy.zeros(len(table)), numpy.full(len(table), numpy.inf)
        for label in numpy.unique(labels):
            own = labels == label
            total = distance[:, own].sum(1)
            inside = numpy.where(own, total / max(1, own.sum() - 1), inside)
            outside = numpy.where(own, outside, numpy.minimum(outside, total / own.sum()))
        alone = numpy.bincount(labels)[labels] == 1  # a cluster of one shows no structure
        return float(numpy.where(alone, 0.0, (outside - inside) / numpy.maximum(outside, inside)).mean())

    tried = {k: fcluster(tree, k, "maxclust") for k in range(2, min(MOST_KINDS, len(table) - 1) + 1)}
    scores = {k: silhouette(labels) for k, labels in tried.items() if len(set(labels.tolist())) > 1}
    best = max(scores, key=scores.__getitem__)
    if scores[best] < CLEAR:
        return 1, scores[best], [1] * len(table)
    return best, scores[best], tried[best].tolist()
