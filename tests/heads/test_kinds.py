"""The number of kinds of solution is found."""

from __future__ import annotations

import random

from headway.causes.kinds import Profile, count_kinds, describe_kinds, measure_profile, profile_contrasts
from headway.subjects.own import subject_of

SITES = ("encoder.0.self", "encoder.1.self", "decoder.0.cross", "decoder.1.cross")
CONTRASTS: list[str] = ["operand 0", "operand 1", "carry 1", "carry 2", "propagated 2"]


def population(kinds: int, runs: int, spread: float = 0.05) -> list[Profile]:
    """Makes runs of several kinds: in each kind another site carries."""
    chance, found = random.Random(0), []
    for run in range(runs):
        own = SITES[run % kinds]

        def share(site: str, contrast: str, own: str = own) -> float:
            brings = site == "decoder.0.cross" if contrast.startswith("operand") else site == own
            return min(1.0, max(0.0, float(brings) + chance.gauss(0, spread)))

        flips = {site: {contrast: share(site, contrast) for contrast in CONTRASTS} for site in SITES}
        found.append(Profile(f"run {run}", flips))
    return found


def test_planted_kinds_are_counted() -> None:
    for planted in (2, 3, 4):
        found = count_kinds(population(planted, 40))
        assert found["kinds"] == planted
        assert len(found["signatures"]) == planted
        assert sorted(cluster["runs"] for cluster in found["clusters"]) == sorted(
            len(range(kind, 40, planted)) for kind in range(planted)
        )


def test_runs_that_differ_by_chance_alone_are_one_kind() -> None:
    found = count_kinds(population(1, 40, spread=0.1))
    assert found["kinds"] == 1
    assert sum(entry["runs"] for entry in found["signatures"]) == 40
    assert count_kinds(population(1, 1))["kinds"] == 1


def test_noise_and_outliers_are_not_kinds() -> None:
    """A cluster of one run is not evidence of a kind."""
    few = count_kinds(population(1, 6, spread=0.03))
    assert few["kinds"] == 1
    assert "no kinds can be distinguished among 6 runs" in describe_kinds(few)
    assert count_kinds([None, None])["left_out"] == 2
    assert "(2 more are too often wrong" in describe_kinds(count_kinds([*population(2, 20), None, None]))


def test_a_profile_names_the_sites_of_the_adder(adder) -> None:
    profile = measure_profile(subject_of(adder), profile_contrasts(subject_of(adder)))
    assert profile is not None
    assert (
        "; carry 1: encoder.0.self + encoder.1.self + decoder.0.cross; carry 2: encoder.1.self" in profile.signature()
    )
    assert set(profile.flips) == {str(head.site) for head in subject_of(adder).heads}
    flips = profile.flips["decoder.0.self"]
    assert {name for name, share in flips.items() if share != "cannot"} == {
        "written 1", "written 2", "written 1 prefix", "written 2 prefix",
    }  # fmt: skip
    assert count_kinds([profile])["flips"]["decoder.0.self"]["carry 1"] == "cannot"


def test_columns_are_not_averaged() -> None:
    """A site that flips every pair at one column and none at another is neither at half nor above it."""
    shares = {"decoder.0.cross": {"carry 1": 1.0, "carry 2": 0.0}, "decoder.1.cross": {"carry 1": 0.9, "carry 2": 0.4}}
    signature = Profile("run", {site: dict(row) for site, row in shares.items()}).signature()
    assert signature == "carry 1: decoder.0.cross + decoder.1.cross; carry 2: no single site"
