"""Groups of runs have the statistics of their runs, and sentences state the caveats."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import exact, make_run
from scipy import stats

from headway.cli import main
from headway.compare import RunComparison, compare
from headway.compare.groups import Group
from headway.compare.spread import measure_spread
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.report.page import write_comparison


def mentions(found: RunComparison, words: str) -> bool:
    return any(words in sentence for sentence in found.sentences())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes runs of two encodings with three seeds each; one encoding is better in every run."""
    for seed in range(3):
        errors = {"rope": 100 + 10 * seed, "fire": seed}
        for name, wrong in errors.items():
            make_run(tmp_path / "runs" / name / f"seed-{seed}", name, seed, evaluation=exact(wrong), loss=wrong / 1000)
    return tmp_path / "runs"


def test_each_group_has_a_row_with_the_statistics_of_its_runs(folder: Path) -> None:
    found = compare(folder, "positions")
    rows = found.to_json()["rows"]
    assert [(row["positions"], row["runs"], row["complete"], row["seeds"]) for row in rows] == [
        ("fire", 3, 3, 3),
        ("rope", 3, 3, 3),
    ]
    assert found.metrics == ("exact_match", "final_loss")
    rope = rows[1]["metrics"]
    assert [rope["exact_match"][key] for key in ("median", "worst", "best")] == [0.89, 0.88, 0.9]
    assert (rope["final_loss"]["worst"], rope["final_loss"]["best"]) == (0.12, 0.1)  # the lower the better
    assert mentions(found, "exact_match: best by the median fire 0.9990 (3 runs, 0.9980 to 1), then rope 0.8900")
    assert mentions(found, "every run of fire is better than every other")
    assert not mentions(found, "not the only thing")


@settings(max_examples=200)
@given(st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=2, max_size=8))
def test_spreads_match_the_textbook_formulas(values: list[float]) -> None:
    found = measure_spread("exact_match", [{"exact_match": value, "seed": n} for n, value in enumerate(values)])
    assert (found.median, found.mean) == (statistics.median(values), pytest.approx(statistics.fmean(values)))
    assert (found.least, found.most, found.worst, found.best) == (min(values), max(values), min(values), max(values))
    if min(values) == max(values):
        assert found.interval is None
    else:
        low, high = stats.t.interval(0.95, len(values) - 1, statistics.fmean(values), stats.sem(values))
        assert found.interval == pytest.approx([max(0, low), min(1, high)], abs=1e-9)


@settings(max_examples=30)
@given(st.integers(1, 40), st.data())
def test_a_share_of_runs_has_wilsons_interval(n: int, data: st.DataObject) -> None:
    """Wilson's interval holds the shares whose score test does not reject the observed count."""
    right = data.draw(st.integers(0, n))
    z = statistics.NormalDist().inv_cdf(0.975)
    for end in wilson(right, n).to_json():
        if 0 < end < 1:
            assert abs(right / n - end) == pytest.approx(z * (end * (1 - end) / n) ** 0.5, abs=1e-6)


def test_a_boolean_metric_is_a_share_of_runs() -> None:
    found = measure_spread("perfect", [{"perfect": n < 3, "seed": n} for n in range(4)])
    assert (found.mean, found.n) == (0.75, 4)
    assert found.interval == wilson(3, 4).to_json()


def test_the_median_of_reach_is_a_length_that_was_tested(tmp_path: Path) -> None:
    for seed, reach in enumerate((64, 128)):
        make_run(tmp_path / f"seed-{seed}", seed=seed, reach={"default": reach, "ties": 512})
    found = compare(tmp_path, "positions", ["reach", "reach.ties"])
    assert found.groups[0].spreads["reach"].median == 64
    assert mentions(found, "reach.ties of rope is the longest tested length: it may be longer")
    assert not mentions(found, "reach of rope is the longest")


def test_runs_that_did_not_learn_are_not_silently_left_out(tmp_path: Path) -> None:
    for seed in range(4):
        make_run(tmp_path / f"seed-{seed}", seed=seed, reach={"default": 256}, converged=seed > 0)
    found = compare(tmp_path, "positions", ["reach"])
    spreads = found.groups[0].spreads["reach"]
    assert (spreads.n, spreads.missing, spreads.unlearned, spreads.worst) == (3, 1, 1, None)
    assert mentions(found, "1 of 4 complete runs of rope did not learn in range and have no reach")


def test_other_differences_between_groups_are_reported(folder: Path) -> None:
    make_run(folder / "t5" / "seed-0", "t5", 0, evaluation=exact(5), steps=300, options={"longest": 32})
    too = "positions is not the only thing that differs: steps and longest too (steps 100 in fire and rope; 300 in t5)"
    assert mentions(compare(folder, "positions"), too)
    two = "positions and steps_asked are not the only things that differ: longest too"
    assert mentions(compare(folder, ["positions", "steps_asked"]), two)
    assert not mentions(compare(folder, ["positions", "steps_asked", "option.longest"]), "not the only thing")
    assert not mentions(compare(folder, "positions", where="not positions=t5"), "not the only thing")


def test_settings_that_vary_within_every_group_are_reported(tmp_path: Path) -> None:
    for batch in (32, 64):
        for name in ("rope", "fire"):
            make_run(tmp_path / f"{name}-{batch}", name, batch=batch)
    assert mentions(compare(tmp_path, "positions"), "Within each group batch varies, in the same way")
    make_run(tmp_path / "rope-again", "rope", 1, batch=32)
    assert mentions(compare(tmp_path, "positions"), "positions is not the only thing that differs: batch too")


def test_differences_in_measurement_are_reported(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "rope", evaluation=exact(1, 100), reach={"default": 64}, tested_to=64)
    make_run(tmp_path / "b", "fire", evaluation=exact(1, 1000), reach={"default": 64}, tested_to=4096)
    found = compare(tmp_path, "positions")
    assert mentions(
        found, "exact_match was not measured in the same way: problems differs (1,000 in fire; 100 in rope)"
    )
    assert mentions(
        found, "reach was not measured in the same way: the longest tested length differs (4,096 in fire; 64"
    )
    assert mentions(found, "One seed per group: the spread is unknown")
    assert found.groups[0].spreads["reach"].interval is None


def test_unfinished_broken_and_unmeasured_runs_are_counted(folder: Path) -> None:
    make_run(folder / "later", "rope", 9, complete=False)
    make_run(folder / "plain", "rope", 8, loss=None)
    (folder / "bad").mkdir()
    (folder / "bad" / "config.json").write_text("{")
    found = compare(folder, "positions")
    rows = {row["positions"]: row for row in found.to_json()["rows"]}
    counts = [[rows[name][key] for key in ("runs", "complete", "unfinished", "broken")] for name in ("rope", None)]
    assert counts == [[5, 4, 1, 0], [1, 0, 0, 1]]
    assert mentions(found, "1 unfinished and 1 broken of 9 runs: they are counted")
    assert mentions(found, "exact_match is missing in 1 of 7 complete runs; 'headway evaluate' measures it")


def test_a_run_found_twice_counts_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    named = [folder / "rope", folder, str(folder) + "/../runs", tmp_path / "link", folder / "fire" / "seed-0"]
    assert len(compare(named, "positions").runs) == 6
    make_run(tmp_path / "copy", "rope", 0)
    found = compare([folder, tmp_path / "copy"], "positions")
    assert len(found.runs) == 7
    assert mentions(found, "1 of 7 complete runs have the config of another: a copy is not a second seed")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"by": "position"}, "unknown key in `by` 'position'; did you mean 'positions'?"),
        ({"by": "positions", "metrics": ["exact"]}, "unknown metric 'exact'; did you mean"),
        ({"by": "positions", "metrics": ["task"]}, "task is text, not a metric"),
        ({"by": ["seed", "seed"]}, "names a key twice"),
        ({"by": "steps", "metrics": ["steps"]}, "steps is both a grouping key and a metric"),
        ({"by": "positions", "where": "seed>99"}, "matches none of the 6 runs"),
        ({"by": "positions", "where": "sed>99"}, "unknown key in `where` 'sed'; did you mean 'seed'?"),
        ({"by": []}, "name a key that runs are grouped by"),
    ],
)
def test_what_cannot_be_compared_is_refused(folder: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(HeadwayError) as error:
        compare(folder, **asked)
    assert words in str(error.value)


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="holds no run"):
        compare(tmp_path, "positions")
    with pytest.raises(HeadwayError, match="there is no folder"):
        compare([tmp_path, tmp_path / "nowhere"], "positions")


@pytest.mark.usefixtures("pictures")
def test_a_comparison_is_written_and_read_back(folder: Path, tmp_path: Path) -> None:
    make_run(folder / "odd", "=cmd|x", 0, evaluation=exact(3))
    found = compare(folder, "positions", where="seed<9")
    written = write_comparison(found, tmp_path / "out")
    assert written == {"report": str(tmp_path / "out" / "report.html")}
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == found.to_json()
    groups = list(csv.DictReader((tmp_path / "out" / "compare.csv").read_text().splitlines()))
    assert [row["positions"] for row in groups] == ["'=cmd|x", "fire", "rope"]
    assert float(groups[2]["exact_match.median"]) == 0.89
    interval = found.groups[2].spreads["exact_match"].interval
    assert interval == [float(groups[2]["exact_match.low"]), float(groups[2]["exact_match.high"])]
    runs = list(csv.DictReader((tmp_path / "out" / "compare-runs.csv").read_text().splitlines()))
    assert len(runs) == 7
    assert {row["positions"] for row in runs} == {"'=cmd|x", "fire", "rope"}
    assert (tmp_path / "out" / "compare.svg").stat().st_size > 1000
    assert "## Comparison by positions" in (tmp_path / "out" / "report.md").read_text()


def test_the_command_prints_one_object_or_a_table(folder: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["compare", str(folder / "rope"), str(folder / "fire"), "--by", "positions,batch"]
    words += ["--metric", "steps,final_loss"]
    assert main([*words, "--json", "--out", str(tmp_path / "out")]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [(row["positions"], row["batch"]) for row in content["rows"]] == [("fire", 64), ("rope", 64)]
    assert content["metrics"] == ["steps", "final_loss"]
    assert Path(content["report"]).exists()
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "0.1100 (0.1000 to 0.1200)" in shown
    assert "final_loss: best by the median fire, batch 64 0.0010" in shown


def test_runs_are_listed_by_a_filter(folder: Path, capsys: Any) -> None:
    asked = ["list", "runs", "--root", str(folder), "--where", "positions=rope and errors>100"]
    assert main([*asked, "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["run"] for item in items] == ["rope/seed-1", "rope/seed-2"]
    assert all(value is not None for item in items for value in item.values())
    assert main([*asked, "--rebuild"]) == 0
    shown = capsys.readouterr().out
    assert "errors" in shown
    assert "digest" not in shown


def test_one_group_is_not_a_comparison(folder: Path) -> None:
    assert mentions(compare(folder, "task"), "All runs are in one group, sortedness: there is nothing to compare")
    assert Group({"d_model": 64, "until": None}, (), ()).name == "d_model 64, no until"
