"""The largest removable set of heads is the same as by trying every set on every problem."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binom

from headway.api import train
from headway.cli import main
from headway.errors import HeadwayError
from headway.evaluation.intervals import exact_interval
from headway.heads import optimum as module
from headway.heads.ablation import Margin, measure
from headway.heads.optimum import check_searchable, find_optimum, most_errors, sizes_of_all_sets
from headway.heads.question import HeadsQuestion
from headway.heads.study import study_subject
from headway.heads.variants import Variants
from headway.models import Head
from headway.models.sites import Closed
from headway.progress import SILENT
from headway.runs.folder import RunFolder
from headway.subjects.own import open_run, subject_of
from headway.subjects.subject import Subject


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAGES", (8, 64, 512))
    monkeypatch.setattr(module, "CPU_ROWS", 300)


def brute_force(subject: Subject, margin: float, ablation: str) -> tuple[int, set[Closed]]:
    """Tries every set on every problem; returns the largest removable size and the sets of that size."""
    assert subject.every is not None
    problems, variants = list(subject.every()), Variants(subject, ablation)
    for size in range(len(subject.heads), -1, -1):
        sets = [frozenset(some) for some in itertools.combinations(subject.heads, size)]
        effects = measure(variants, problems, sets)[1:]
        within = {effect.closed for effect in effects if effect.drop <= margin}
        if within:
            return size, within
    raise AssertionError("closing nothing costs nothing")


@pytest.mark.parametrize("ablation", ["zero", "mean"])
@pytest.mark.parametrize("margin", [0.02, 0.1, 0.3])
def test_the_optimum_equals_brute_force(folders: list[RunFolder], margin: float, ablation: str) -> None:
    for folder in folders[:3]:
        subject = subject_of(open_run(folder))
        size, within = brute_force(subject, margin, ablation)
        found = find_optimum(Variants(subject, ablation), [], margin)
        assert found.proved
        assert len(found.closed) == found.most == size
        assert found.closed in within
        assert found.checked is not None
        assert found.checked.examples == subject.count == 100
        assert found.searched == sum(entry.sets for entry in found.sizes)


def test_a_set_that_is_known_ends_the_search_at_its_size(folders: list[RunFolder]) -> None:
    subject = subject_of(open_run(folders[0]))
    size, within = brute_force(subject, 0.1, "zero")
    known = min(within, key=lambda closed: sorted(map(str, closed)))
    found = find_optimum(Variants(subject), [known], 0.1)
    assert found.closed == known
    assert found.proved
    assert [entry.heads for entry in found.sizes] == list(range(len(subject.heads), size, -1))


def test_without_time_nothing_unproved_is_claimed(folders: list[RunFolder]) -> None:
    subject = subject_of(open_run(folders[0]))
    found = find_optimum(Variants(subject), [frozenset(subject.heads[:1])], 0.1, budget=0)
    assert not found.proved
    assert found.checked is None
    assert found.most == len(subject.heads)
    assert found.closed == frozenset(subject.heads[:1])
    study = study_subject(subject, HeadsQuestion(examples=600, max_drop=0.05, budget=1e-6))
    assert not study.optimal
    assert "ran out of time" in study.findings()[1]


def test_a_known_set_outside_the_margin_is_dropped(folders: list[RunFolder]) -> None:
    subject = subject_of(open_run(folders[0]))
    size, _ = brute_force(subject, 0.1, "zero")
    false = frozenset(subject.heads[: size + 1])
    found = find_optimum(Variants(subject), [false], 0.1)
    assert found.proved
    assert len(found.closed) == size
    variants = Variants(subject)
    search = module._Search(variants, 0.1, 1e9, 0, SILENT)
    plain, calls = search._check_margin, []

    def within(closed: Closed) -> Any:
        calls.append(closed)
        if len(calls) > 1:
            raise module._OutOfTime
        return plain(closed)

    search._check_margin = within  # pyright: ignore[reportAttributeAccessIssue]
    late = search.run([false])
    assert late.out_of_time
    assert late.closed == frozenset()  # not the one that was refuted


def test_without_a_list_of_problems_no_larger_set_is_missed(folders: list[RunFolder]) -> None:
    """Without its list of problems, fresh problems decide which sets are clearly within the margin."""
    whole = subject_of(open_run(folders[0]))
    size, _ = brute_force(whole, 0.3, "zero")
    found = find_optimum(Variants(replace(whole, every=None, count=None, even=False)), [], 0.3)
    assert found.checked is not None
    assert found.checked.examples == 100_000
    assert len(found.closed) <= size <= found.most
    assert not found.out_of_time


def test_a_list_that_is_not_drawn_uniformly_is_recognised(tmp_path: Path) -> None:
    """Sums and differences are drawn equally often, but there are more sums."""
    both = train(
        "addition", out=tmp_path, options={"digits": 1, "operators": "+-"}, steps=2, batch=4, d_model=16, d_ff=16
    )
    assert not subject_of(both).even
    search = module._Search(Variants(subject_of(both)), 0.1, 1e9, 0, SILENT)
    assert not search.listable


def test_a_set_at_the_margin_is_dropped_no_more_often_than_stated() -> None:
    for total, rate, doubt in itertools.product((8, 32, 512, 4096), (0.01, 0.0105, 0.3), (1e-3, 1e-11)):
        most = most_errors(total, rate, doubt)
        assert binom.sf(most, total, rate) <= doubt
        assert most == 0 or binom.sf(most - 1, total, rate) > doubt


def test_the_exact_interval_has_its_stated_error_probability() -> None:
    for errors, total in ((0, 1000), (3, 1000), (50, 200)):
        rate = exact_interval(errors, total, 0.99).high
        assert binom.cdf(errors, total, rate) == pytest.approx(0.005, rel=1e-6)
    assert exact_interval(5, 5, 0.8).high == 1.0
    assert exact_interval(0, 0).high == 1.0


def test_set_sizes_are_bit_counts() -> None:
    sizes = sizes_of_all_sets(10, torch.device("cpu"))
    assert sizes.tolist() == [number.bit_count() for number in range(1024)]


def test_an_impossible_search_is_refused_with_a_message(adder, capsys: pytest.CaptureFixture[str]) -> None:
    subject = subject_of(adder)
    big = Variants.__new__(Variants)  # of a subject that names five heads at each of six sites
    five = tuple(Head(site, number) for site in subject.sites for number in range(5))
    big.subject = Subject(subject.model, name="big", heads=five, examples=subject.examples)
    with pytest.raises(HeadwayError, match="big has 30 heads, too many to search all sets of them; at most 26 can"):
        check_searchable(big, Margin(0.01))
    with pytest.raises(HeadwayError, match="search of all sets is by accuracy"):
        check_searchable(Variants(subject), Margin(0.01, 0.1))
    assert main(["heads", "pretrained:adder", "--ablation", "resample", "--budget", "5", "--quiet"]) == 2
    assert "with resample add --budget 0" in capsys.readouterr().err
    assert main(["heads", "pretrained:adder", "--budget", "-1", "--quiet"]) == 2
    assert "budget is -1.0; it must be a number of seconds" in capsys.readouterr().err
