"""Counts how many kinds of solution there are among many runs, by their profiles (profiles.py).

Kinds are claimed only where all of this holds: runs lie further apart than draws of the same run do (a permutation
test, p ≤ 0.05); the best clustering of the profiles has a silhouette of at least 0.25; and draws of a run fall into
the cluster of that run at least 95% of the time, by the nearest centre of the other runs. Signatures count only cells
whose interval is clear of one half.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy

from headway.causes.flips import CANNOT, Cannot
from headway.causes.profiles import Profile
from headway.causes.retest import Distances, Floats, Retest

MOST_KINDS, CLEAR, STABLE = 8, 0.25, 0.95  # a silhouette below `CLEAR` shows no structure: then there is one kind
Shares = dict[str, dict[str, float | Cannot]]


@dataclass(frozen=True)
class Cluster:
    runs: int
    flips: Shares
    """the mean over its runs"""
    members: list[str]


@dataclass(frozen=True)
class Clustering:
    """The clusters with the best silhouette, and whether they may be called kinds."""

    labels: list[int]
    silhouette: float | None = None
    same_cluster: float | None = None
    """the share of single draws that fall into the cluster of their run"""


@dataclass(frozen=True)
class Kinds:
    """The kinds of solution among runs, and how far the tests that they rest on can be repeated."""

    left_out: int
    """runs that are too often wrong to be tested"""
    retest: Retest | None = None
    """None where no run could be tested"""
    clustering: Clustering = Clustering([])

    @property
    def runs(self) -> int:
        return 0 if self.retest is None else len(self.retest.runs)

    @property
    def distances(self) -> Distances | None:
        return None if self.retest is None else self.retest.distances

    @property
    def kinds(self) -> int:
        return len(set(self.clustering.labels))

    @property
    def signatures(self) -> list[tuple[str, int]]:
        """Each signature with its number of runs, the commonest first."""
        return [] if self.retest is None else Counter(self.retest.clear_signatures()).most_common()

    def clusters(self) -> list[Cluster]:
        """Returns the clusters, the largest first."""
        if self.retest is None:
            return []
        labels, found = self.clustering.labels, []
        for label in sorted(set(labels), key=lambda label: -labels.count(label)):
            own = [p for p, other in zip(self.retest.pooled, labels, strict=True) if other == label]
            found.append(Cluster(len(own), mean_flips(own), [each.subject for each in own]))
        return found

    def to_json(self) -> dict[str, Any]:
        retest, distances = self.retest, self.distances
        return {
            "runs": self.runs,
            "left_out": self.left_out,
            "signatures": [{"signature": text, "runs": count} for text, count in self.signatures],
            "distinguishable": None if retest is None else retest.distinguishable(),
            "kinds": self.kinds,
            "silhouette": self.clustering.silhouette,
            "same_cluster": self.clustering.same_cluster,
            "clusters": [asdict(cluster) for cluster in self.clusters()],
            "retest": None if retest is None else asdict(retest.agreement),
            "distances": None if distances is None else distances.to_json(),
            "flips": None if retest is None else mean_flips(retest.pooled),
        }

    def findings(self) -> list[str]:
        """States the same in sentences."""
        left_out = f" ({self.left_out} more are too often wrong to be tested)" if self.left_out else ""
        if self.retest is None:
            return [f"No run could be tested for what its sites carry to the output{left_out}."]
        return [
            self._kinds_sentence(f"{self.runs:,} run{'s' if self.runs > 1 else ''}{left_out}"),
            *self._retest_sentences(self.retest),
        ]

    def _kinds_sentence(self, runs: str) -> str:
        score, said = self.clustering.silhouette, "By what their sites carry to the output"
        if self.kinds > 1:
            sizes = ", ".join(str(cluster.runs) for cluster in self.clusters())
            again = f"{self.clustering.same_cluster:.1%} of single draws fall into the cluster of their run"
            return f"{said}, {runs} are of {self.kinds} kinds ({sizes} runs; silhouette {score:.2f}; {again})."
        distances, why = self.distances, ""
        if distances is not None and distances.p is not None and not distances.beyond_redraws:
            why = f": they lie no further apart than draws of one run do (p = {distances.p:.3f})"
        elif self.clustering.same_cluster is not None and score is not None and score >= CLEAR:
            why = f": only {self.clustering.same_cluster:.1%} of single draws fall into the cluster of their run"
        elif score is not None:
            why = f": the best silhouette is {score:.2f}"
        return f"{said}, no kinds can be distinguished among {runs}{why}."

    def _retest_sentences(self, retest: Retest) -> list[str]:
        found, distances = retest.agreement, retest.distances
        beside = "" if found.kappa is None else f" (by chance {found.chance:.1%}, kappa {found.kappa:.2f})"
        words = [
            f"Of two draws of {found.pairs} pairs for one run, {found.same_signature:.1%} give the same sites that "
            f"flip at least half of the pairs; one site and contrast agrees in "
            f"{found.agreement:.1%}{beside}, and over all {found.draws} draws {found.unclear:.1%} are unclear."
        ]
        if distances.runs is not None and distances.ratio is not None:
            differ = retest.distinguishable()
            count = (
                f"At least {differ} signatures differ clearly." if differ > 1 else "No two signatures differ clearly."
            )
            verdict = "" if distances.beyond_redraws else "not clearly "
            words.append(
                f"Two runs are {verdict}further apart than two draws of one run: median distance "
                f"{distances.runs.median:.3f} against {distances.redraws.median:.3f}, ratio "
                f"{distances.ratio.median:.2f}{_spell(distances.ratio.interval)}, p = {distances.p:.3f}. {count}"
            )
        return words


def _spell(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" (95% interval {interval[0]:.2f} to {interval[1]:.2f})"


def count_kinds(found: Sequence[Sequence[Profile] | None]) -> Kinds:
    """Counts the kinds of solution among runs, each with its profiles on several draws; None is a run too often wrong
    to be tested."""
    tested = [draws for draws in found if draws is not None]
    if not tested:
        return Kinds(len(found))
    retest = Retest(tested)
    clustering = cluster(retest.means)
    if len(set(clustering.labels)) > 1:
        same = _same_cluster(retest, clustering.labels)
        kept = retest.distances.beyond_redraws and same >= STABLE
        labels = clustering.labels if kept else [1] * len(tested)
        clustering = Clustering(labels, clustering.silhouette, same)
    return Kinds(len(found) - len(tested), retest, clustering)


def mean_flips(profiles: Sequence[Profile]) -> Shares:
    """Returns the mean share by site and contrast."""
    flips = [profile.flips for profile in profiles]

    def mean(part: str, name: str) -> float | Cannot:
        shares = [share for each in flips if (share := each[part][name]) != CANNOT]
        return sum(shares) / len(shares) if shares else CANNOT

    return {part: {name: mean(part, name) for name in row} for part, row in flips[0].items()}


def _same_cluster(retest: Retest, labels: Sequence[int]) -> float:
    """Returns the share of single draws that lie nearest to the centre of their run's cluster, the run left out."""
    own, right = numpy.array(labels), []
    for run, draws in enumerate(retest.shares):
        others = numpy.arange(len(own)) != run
        centres = {label: retest.means[others & (own == label)] for label in set(labels)}
        known = {label: rows.mean(0) for label, rows in centres.items() if len(rows)}
        for draw in draws:
            nearest = min(known, key=lambda label: float(numpy.square(draw - known[label]).sum()))
            right.append(nearest == own[run])
    return float(numpy.mean(right))


def cluster(table: Floats) -> Clustering:
    """Returns the clusters with the best silhouette; one where that is too low to show any structure."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import cdist

    if len(table) < 3 or numpy.ptp(table, axis=0).max() == 0:
        return Clustering([1] * len(table))
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
    labels = [1] * len(table) if scores[best] < CLEAR else tried[best].tolist()
    return Clustering(labels, scores[best])
