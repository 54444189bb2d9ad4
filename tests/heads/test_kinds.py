"""The number of kinds of solution is found, and no difference that drawing the pairs anew makes is taken for one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest

from headway.causes import profiles
from headway.causes.flips import Flips
from headway.causes.kinds import Kinds, count_kinds
from headway.causes.profiles import Profile, measure_profile, measure_redraws, pool, profile_contrasts
from headway.causes.retest import Retest
from headway.models import Attention
from headway.runs.folder import RunFolder
from headway.subjects.own import open_run, subject_of
from headway.subjects.subject import Subject

SITES = ("encoder.0.self", "encoder.1.self", "decoder.0.cross", "decoder.1.cross")
CONTRASTS: list[str] = ["operand 0", "operand 1", "carry 1", "carry 2", "propagated 2"]
TRAINED = Path(__file__).parents[1] / "golden" / "runs" / "population"
PAIRS, DRAWS = 60, 4


def draw(shares: dict[str, dict[str, float]], chance: random.Random, name: str = "run") -> Profile:
    """Draws pairs that flip with these chances."""

    def flips(share: float) -> Flips:
        return Flips(sum(2 * (chance.random() < share) for _ in range(PAIRS)), PAIRS)

    return Profile(name, {site: {each: flips(share) for each, share in row.items()} for site, row in shares.items()})


def population(kinds: int, runs: int, spread: float = 0.05) -> list[tuple[Profile, ...]]:
    """Makes runs of several kinds: in each kind another site carries."""
    chance, found = random.Random(0), []
    for run in range(runs):
        own = SITES[run % kinds]

        def share(site: str, contrast: str, own: str = own) -> float:
            brings = site == "decoder.0.cross" if contrast.startswith("operand") else site == own
            return min(1.0, max(0.0, float(brings) + chance.gauss(0, spread)))

        shares = {site: {contrast: share(site, contrast) for contrast in CONTRASTS} for site in SITES}
        found.append(tuple(draw(shares, chance, f"run {run}") for _ in range(DRAWS)))
    return found


def distances(found: Kinds) -> tuple[float, bool]:
    assert found.distances is not None
    assert found.distances.ratio is not None
    return found.distances.ratio.median, found.distances.beyond_redraws


def test_planted_kinds_are_counted() -> None:
    for planted in (2, 3, 4):
        found = count_kinds(population(planted, 40))
        assert found.kinds == planted
        assert len(found.signatures) == planted
        assert found.retest is not None
        assert found.retest.distinguishable() == planted
        assert found.clustering.same_cluster == 1.0
        assert sorted(cluster.runs for cluster in found.clusters()) == sorted(
            len(range(kind, 40, planted)) for kind in range(planted)
        )
        assert distances(found)[1]


def test_runs_that_differ_by_chance_alone_are_one_kind() -> None:
    """All runs have the same true shares, many of them near one half: nothing but the draws differs."""
    shares = {site: dict.fromkeys(CONTRASTS, 0.5) for site in SITES}
    chance, beyond = random.Random(0), 0
    for _ in range(20):
        runs = [tuple(draw(shares, chance) for _ in range(DRAWS)) for _ in range(12)]
        found = count_kinds(runs)
        ratio, further = distances(found)
        beyond += further
        assert found.kinds == 1
        assert ratio == pytest.approx(1, abs=0.1)
        assert found.retest is not None
        assert found.retest.distinguishable() == 1  # although no two draws have the same signature
        assert found.retest.agreement.same_signature < 0.05
        assert abs(found.retest.agreement.kappa or 0) < 0.1
        assert [count for _, count in found.signatures] == [12]
    assert beyond <= 4  # of 20 tests at 5%
    assert count_kinds(population(1, 1)).kinds == 1


def test_a_continuum_is_not_made_of_kinds() -> None:
    """Runs that really differ, but evenly: further apart than redraws, and still of no kinds."""
    chance, runs = random.Random(0), []
    for _ in range(24):
        shares = {site: {name: chance.random() for name in CONTRASTS} for site in SITES}
        runs.append(tuple(draw(shares, chance) for _ in range(DRAWS)))
    found = count_kinds(runs)
    assert found.kinds == 1
    assert distances(found)[0] > 3
    assert distances(found)[1]
    assert found.retest is not None
    assert found.retest.distinguishable() > 12
    assert min(cell.intraclass or 0 for cell in found.retest.agreement.cells) > 0.8


def test_small_differences_lie_beyond_redraws_and_do_not_differ_clearly() -> None:
    """Shares that differ by 0.03 are further apart than redraws in every population: that alone says nothing about
    circuits, and no two signatures differ clearly."""
    chance, found = random.Random(0), []
    for _ in range(10):
        base = {site: {name: chance.betavariate(0.4, 0.4) for name in CONTRASTS} for site in SITES}
        runs = []
        for _ in range(12):
            shares = {
                site: {name: min(1.0, max(0.0, share + chance.gauss(0, 0.03))) for name, share in row.items()}
                for site, row in base.items()
            }
            runs.append(tuple(draw(shares, chance) for _ in range(DRAWS)))
        found.append(count_kinds(runs))
    assert [distances(each)[1] for each in found] == [True] * 10
    assert [each.retest and each.retest.distinguishable() for each in found] == [1] * 10


def test_noise_and_outliers_are_not_kinds() -> None:
    """A cluster of one run is not evidence of a kind."""
    few = count_kinds(population(1, 6, spread=0.03))
    assert few.kinds == 1
    assert "no kinds can be distinguished among 6 runs" in few.findings()[0]
    none = count_kinds([None, None])
    assert none.left_out == 2
    assert none.findings() == [
        "No run could be tested for what its sites carry to the output (2 more are too often wrong to be tested)."
    ]
    assert "(2 more are too often wrong" in count_kinds([*population(2, 20), None, None]).findings()[0]


def trained(seed: int) -> Subject:
    return subject_of(open_run(RunFolder(TRAINED / f"seed-{seed}")))


def reorder_heads(subject: Subject) -> Subject:
    """Reverses the order of the heads of every site: the same function, written differently."""
    for module in subject.model.modules():
        if isinstance(module, Attention):
            order = numpy.arange(module.heads * module.dim).reshape(module.heads, -1)[::-1].flatten().tolist()
            module.query.data = module.query.data[order]
            module.key_value.data = module.key_value.data[:, order]
            module.out.weight.data = module.out.weight.data[:, order]
    return subject


def test_copies_of_one_adder_are_one_kind() -> None:
    """Copies under other names, some with their heads in another order, are as far apart as draws of one run."""
    copies = [trained(1) if place % 2 else reorder_heads(trained(1)) for place in range(4)]
    found = count_kinds([measure_redraws(copy, place) for place, copy in enumerate(copies)])
    ratio, further = distances(found)
    assert found.kinds == 1
    assert ratio == pytest.approx(1, abs=0.15)
    assert not further
    assert found.retest is not None
    assert found.retest.distinguishable() == 1
    signatures = {each.signature() for draws in found.retest.runs for each in draws}
    assert len(signatures) > 1  # a threshold at one half alone would tell copies apart
    assert "no further apart than draws of one run" in found.findings()[0]


def test_two_adders_are_told_apart() -> None:
    """Two adders trained from other seeds differ beyond redraws, and copies of both are two kinds."""
    found = count_kinds([measure_redraws(trained(place % 2), place) for place in range(4)])
    assert distances(found)[0] > 2
    assert distances(found)[1]
    assert found.retest is not None
    assert found.retest.distinguishable() == 2
    assert found.kinds == 2
    assert sorted(cluster.runs for cluster in found.clusters()) == [2, 2]
    assert found.clustering.same_cluster == 1.0


def test_an_untrained_model_is_left_out() -> None:
    subject = trained(0)
    for parameter in subject.model.parameters():
        parameter.data.normal_(std=0.1)
    assert measure_redraws(subject) is None
    assert count_kinds([None]).to_json()["kinds"] == 0


def test_a_cell_near_one_half_is_unclear() -> None:
    shares = {"decoder.0.cross": {"carry 1": 1.0, "carry 2": 0.5, "carry 3": 0.0}}
    chance = random.Random(0)
    runs = [tuple(draw(shares, chance) for _ in range(DRAWS)) for _ in range(3)]
    (text, count), *others = count_kinds(runs).signatures
    assert text == "carry 1: decoder.0.cross; carry 2: decoder.0.cross unclear; carry 3: no single site"
    assert (count, others) == (3, [])


def test_intervals_are_pooled_over_draws() -> None:
    shares = {"decoder.0.cross": {"carry 1": 0.7}}
    draws = tuple(draw(shares, random.Random(seed)) for seed in range(DRAWS))
    assert pool(draws).counts["decoder.0.cross"]["carry 1"].pairs == DRAWS * PAIRS
    assert Retest([draws]).states.tolist() == [[1]]
    assert Retest([draws]).distances.runs is None


def test_no_two_draws_share_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(profiles, "profile_contrasts", lambda subject, seed: seeds.append(seed))
    monkeypatch.setattr(profiles, "measure_profile", lambda subject, contrasts: Profile("run", {}))
    subject = trained(0)
    for member in range(5):
        measure_redraws(subject, member)
    assert len(set(seeds)) == 5 * DRAWS


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
    assert count_kinds([(profile, profile)]).to_json()["flips"]["decoder.0.self"]["carry 1"] == "cannot"


def test_columns_are_not_averaged() -> None:
    """A site that flips every pair at one column and none at another is neither at half nor above it."""
    counts = {"decoder.0.cross": {"carry 1": 60, "carry 2": 0}, "decoder.1.cross": {"carry 1": 54, "carry 2": 24}}
    profile = Profile("run", {s: {name: Flips(2 * n, 60) for name, n in row.items()} for s, row in counts.items()})
    assert profile.signature() == "carry 1: decoder.0.cross + decoder.1.cross; carry 2: no single site"
