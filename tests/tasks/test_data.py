"""Problems in files are read back as written, and errors name file, item and reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.api import train_seeds
from headway.errors import HeadwayError
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.tasks import Addition, Sortedness, Task, create_task
from headway.tasks.data import drop_held_out, read_split, write_data
from headway.tasks.random import TRAINING, Dice
from headway.training.defaults import plan

COUNTS = {"train": 300, "val": 50, "test": 80}
TASKS = [Addition(), Addition(operators="+-", first="least", natural=True), Sortedness()]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_what_is_written_is_read_back(task: Task, tmp_path: Path) -> None:
    write_data(task, tmp_path, COUNTS, seed=0)
    for split, count in COUNTS.items():
        assert read_split(task, tmp_path, split).count == count


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_no_problem_is_in_two_files_and_the_test_file_is_all_held_out(task: Task, tmp_path: Path) -> None:
    write_data(task, tmp_path, COUNTS, seed=0)
    seen: set[tuple[int, ...]] = set()
    for split, count in COUNTS.items():
        stored = read_split(task, tmp_path, split)
        rows = {tuple(row) for problems in stored.by_length.values() for row in problems.source.tolist()}
        assert len(rows) == count
        assert not rows & seen
        seen |= rows
        for problems in stored.by_length.values():
            assert bool(task.held_out(problems).all()) == (split == "test")
            assert bool(task.held_out(problems).any()) == (split == "test")


def test_the_file_format_is_the_documented_one(tmp_path: Path) -> None:
    write_data(Addition(), tmp_path / "a", {"train": 1}, seed=0)
    item = json.loads((tmp_path / "a" / "train.json").read_text())[0]
    assert set(item) == {"input", "target"}
    assert len(item["input"]) == 7
    assert item["input"][3] == 10
    assert len(item["target"]) == 4
    write_data(Sortedness(), tmp_path / "s", {"train": 1}, seed=0)
    item = json.loads((tmp_path / "s" / "train.json").read_text())[0]
    assert set(item) == {"sequence", "is_sorted", "length"}
    assert item["length"] == len(item["sequence"])


SUM = {"input": [1, 2, 3, 10, 4, 5, 6], "target": [0, 5, 7, 9]}
SEQUENCE = {"sequence": [1, 5, 5], "is_sorted": 1, "length": 3}
BROKEN: list[tuple[str, Any, str]] = [
    ("addition", {**SUM, "target": [0, 5, 8, 0]}, r"item 1: the answer \[0, 5, 8, 0\] is wrong; 123 \+ 456 = 0579"),
    ("addition", {**SUM, "target": [5, 7, 9]}, "item 1: target has 3 tokens instead of 4"),
    ("addition", {**SUM, "input": [1, 2, 3, 4, 5, 6]}, "item 1: input has 6 tokens"),
    ("addition", {**SUM, "input": [1, 2, 3, 11, 4, 5, 6]}, "item 1: input has 11 where the sign belongs; plus is 10"),
    ("addition", {**SUM, "input": [1, 2, 12, 10, 4, 5, 6]}, "item 1: input has the digit 12"),
    ("addition", {**SUM, "input": "123+456"}, "item 1: input is '123.456'; it must be a list of whole numbers"),
    ("addition", {**SUM, "input": [1.0, 2, 3, 10, 4, 5, 6]}, "item 1: input is .* whole numbers"),
    ("addition", {"target": [0, 5, 7, 9]}, "item 1: has no 'input'"),
    ("addition", 7, "item 1: has no 'input'"),
    ("sortedness", {**SEQUENCE, "is_sorted": 0}, r"item 1: the answer \[0\] is wrong; 1 5 5: sorted"),
    ("sortedness", {**SEQUENCE, "is_sorted": 2}, "item 1: is_sorted is 2"),
    ("sortedness", {**SEQUENCE, "length": 4}, "item 1: length is 4, but the sequence has 3"),
    ("sortedness", {**SEQUENCE, "sequence": [1, 5, 100]}, "item 1: sequence has 100; values run from 0 to 99"),
    ("sortedness", {**SEQUENCE, "sequence": [1], "length": 1}, "item 1: sequence has 1 elements"),
]


@pytest.mark.parametrize(("name", "item", "reason"), BROKEN, ids=lambda v: v if isinstance(v, str) else "")
def test_a_wrong_item_is_refused_with_file_item_and_reason(name: str, item: Any, reason: str, tmp_path: Path) -> None:
    good = SUM if name == "addition" else SEQUENCE
    (tmp_path / "train.json").write_text(json.dumps([good, item]))
    with pytest.raises(HeadwayError, match=r"train\.json, " + reason):
        read_split(create_task(name), tmp_path, "train")


@pytest.mark.parametrize(("content", "reason"), [("{", "not valid"), ("{}", "must be a list"), ("[]", "at least one")])
def test_a_wrong_file_is_refused(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(HeadwayError, match=f"train.json .*{reason}"):
        read_split(Addition(), tmp_path, "train")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"there is no .*val\.json"):
        read_split(Addition(), tmp_path, "val")


@pytest.fixture
def reversal(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Returns a user's task that defines nothing about files."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "recipes")
    return create_task("reversal:Reversal", {"longest": 4})


def test_a_users_task_has_files_too(reversal: Task, tmp_path: Path) -> None:
    counts = {**COUNTS, "train": 2_000}
    files = write_data(reversal, tmp_path, counts, seed=0)
    assert [file.name for file in files] == ["train.json", "val.json", "test.json"]
    for item in json.loads(files[0].read_text()):
        assert item == {"input": item["input"], "target": item["input"][::-1]}
    for split, count in counts.items():
        assert read_split(reversal, tmp_path, split).count == count
    assert read_split(reversal, tmp_path, "train").lengths() == (2, 4)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"input": [1, 2], "target": [1, 2]}, r"the answer \[1, 2\] is wrong; 1 2 → 2 1"),
        ({"input": [1, 2], "target": [2, 1, 0]}, "target has 3 tokens instead of 2"),
        ({"input": [1, 12], "target": [12, 1]}, "input has the token 12; tokens run from 0 to 10"),
        ({"input": [1, 2], "target": [2, -1]}, "target has the token -1"),
        ({"input": [], "target": []}, "input has 0 tokens; no problem of reversal has this length"),
    ],
)
def test_items_of_a_users_task_are_checked(reversal: Task, item: Any, reason: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps([{"input": [1, 2], "target": [2, 1]}, item]))
    with pytest.raises(HeadwayError, match=r"train\.json, item 1: " + reason):
        read_split(reversal, tmp_path, "train")


def test_items_of_a_task_without_solve_are_not_checked(
    reversal: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.json").write_text(json.dumps([{"input": [1, 2], "target": [7, 1]}]))
    monkeypatch.setattr(type(reversal), "solve", Task.solve)
    assert read_split(reversal, tmp_path, "train").by_length[2].answer.tolist() == [[7, 1]]


def test_sums_of_several_lengths_are_read_back(tmp_path: Path) -> None:
    task = Addition(digits=4, shortest=2)
    write_data(task, tmp_path, {"train": 2_000}, seed=0)
    assert read_split(task, tmp_path, "train").lengths() == (2, 4)


def test_training_takes_only_what_the_file_holds(tmp_path: Path) -> None:
    task = Sortedness()
    write_data(task, tmp_path, {"train": 40}, seed=0)
    stored = read_split(task, tmp_path, "train")
    held = {tuple(row) for problems in stored.by_length.values() for row in problems.source.tolist()}
    taken: set[tuple[int, ...]] = set()
    for step in range(60):
        length = stored.length_at(step)
        taken |= {tuple(row) for row in stored.training(Dice.of(TRAINING, 0, step, 32, "cpu"), length).source.tolist()}
    assert taken == held


def test_mirrored_sums_and_pairs_stay_in_one_file(tmp_path: Path) -> None:
    for task in (Addition(digits=2), Sortedness()):
        folder = tmp_path / task.name
        write_data(task, folder, {"train": 2000, "val": 300}, seed=0)
        known = [
            {
                i
                for problems in read_split(task, folder, split).by_length.values()
                for i in task.identity(problems).tolist()
            }
            for split in ("train", "val")
        ]
        assert not known[0] & known[1]


def test_held_out_problems_in_a_file_are_not_trained_on(tmp_path: Path) -> None:
    task = Addition()
    items = [
        {"input": p.source[0].tolist(), "target": p.answer[0].tolist()}
        for p in (task.testing(s, 1) for s in range(200))
    ]
    (tmp_path / "train.json").write_text(json.dumps(items))
    stored = read_split(task, tmp_path, "train")
    kept, left_out = drop_held_out(task, stored)
    assert kept.count + left_out == 200
    assert 5 < left_out < 45
    assert not task.held_out(kept.by_length[3]).any()


def test_the_lengths_in_the_file_are_the_training_lengths(tmp_path: Path) -> None:
    items = [{"sequence": list(range(n)), "is_sorted": 1, "length": n} for n in range(30, 41)]
    (tmp_path / "train.json").write_text(json.dumps(items))
    stored = read_split(Sortedness(), tmp_path, "train")
    config = plan("sortedness", Overrides(), 0, data="abc", lengths=stored.lengths())
    assert config.model.trained == 40


def test_files_are_not_overwritten_nor_half_written(tmp_path: Path) -> None:
    write_data(Addition(), tmp_path / "a", {"train": 5}, seed=0)
    before = (tmp_path / "a" / "train.json").read_bytes()
    with pytest.raises(HeadwayError, match=r"train\.json already exists"):
        write_data(Addition(), tmp_path / "a", {"train": 6}, seed=1)
    assert (tmp_path / "a" / "train.json").read_bytes() == before
    with pytest.raises(HeadwayError, match="hardly more than"):
        write_data(Addition(digits=1), tmp_path / "b", {"train": 50, "val": 500}, seed=0)
    assert not (tmp_path / "b").exists()


def test_runs_on_other_data_are_other_runs(tmp_path: Path) -> None:
    configs = []
    for seed in (0, 1):
        write_data(Addition(), tmp_path / str(seed), COUNTS, seed)
        small: Any = {"d_model": 16, "heads": 2, "d_ff": 32, "batch": 4, "steps": 3}
        out = tmp_path / f"run-{seed}"
        train_seeds("addition", **small, out=out, data=tmp_path / str(seed), quiet=True)
        configs.append(RunFolder(out).config())
    assert configs[0].digest != configs[1].digest
    assert configs[0].training.hard == 0
