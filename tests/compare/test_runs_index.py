"""The index of runs matches the folders, whatever happens to them, and stays a cache."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import a_config, exact, make_run

from headway.compare import index, scan
from headway.compare.describe import KEYS, describe
from headway.compare.index import list_runs
from headway.errors import BrokenRun, HeadwayError
from headway.runs import disk
from headway.runs.folder import RunFolder

TICK = 0.012
"""Seconds after which a file system's clock has advanced."""


def describe_directly(root: Path) -> list[dict[str, Any]]:
    """Describes every folder again, without an index."""
    found = [path.parent for path in root.rglob("config.json") if path.is_file() and "checkpoint" not in path.parts]
    rows = [{"run": str(path.relative_to(root)), **describe(RunFolder(path))} for path in found]
    return sorted(rows, key=lambda row: os.fsencode(str(row["run"])))


def same(root: Path) -> bool:
    return list_runs(root) == describe_directly(root)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trusts timestamps at once, so that nothing is read again only because it is new."""
    monkeypatch.setattr(scan, "MOMENT", 0)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the runs that are read."""
    names: list[str] = []

    def watched(folder: RunFolder) -> Any:
        names.append(folder.path.name)
        return describe(folder)

    monkeypatch.setattr(scan, "describe", watched)
    return names


def test_a_row_describes_a_run_and_its_results(tmp_path: Path) -> None:
    heads = {"alone": {"count": 5}, "together": {"count": 3, "accuracy": 0.995}, "baseline": 1.0, "ablation": "zero"}
    make_run(tmp_path / "a" / "b", "fire", 3, evaluation=exact(5), heads=heads, reach={"default": 256, "Ties": 64})
    (row,) = list_runs(tmp_path)
    assert row.items() >= {
        "run": "a/b", "task": "sortedness", "positions": "fire", "index": "sequential", "kind": "classifier",
        "seed": 3, "d_model": 64, "steps": 100, "steps_asked": 100, "batch": 64, "optimizer": "muon",
        "state": "complete",
        "seconds": 1.5, "final_loss": 0.5, "parameters": 1234, "exact_match": 0.995, "examples": 1000, "errors": 5,
        "in_range": 0.99, "converged": True, "reach": 256, "reach.default": 256, "reach.ties": 64, "tested_to": 512,
        "heads_alone": 5, "heads_together": 3, "together_accuracy": 0.995, "baseline": 1.0, "option.longest": 16,
        "digest": a_config("fire", 3).digest,
    }.items()  # fmt: skip
    assert "perfect" not in row
    assert {key for key in row if "." not in key} <= set(KEYS)


def test_a_run_that_did_not_learn_has_no_reach(tmp_path: Path) -> None:
    make_run(tmp_path / "a", reach={"default": 16}, converged=False)
    (row,) = list_runs(tmp_path)
    assert row["converged"] is False
    assert not any(key.startswith("reach") for key in row)


@pytest.mark.parametrize("name", ["evaluation", "lengths", "heads", "certificate"])
@pytest.mark.parametrize("text", [b"[]", b"{", b"null", b"\x80", b"[" * 100_000, b'{"alone": 3, "reach": [1]}', None])
def test_a_broken_study_does_not_make_the_run_broken(tmp_path: Path, name: str, text: bytes | None) -> None:
    make_run(tmp_path / "a")
    path = tmp_path / "a" / f"{name}.json"
    path.mkdir() if text is None else path.write_bytes(text)
    (row,) = list_runs(tmp_path)
    assert (row["state"], row["final_loss"]) == ("complete", 0.5)
    if text != b'{"alone": 3, "reach": [1]}' or name == "certificate":
        assert name in str(row["error"])
        assert str(tmp_path) not in str(row["error"])


@pytest.mark.parametrize("value", ["text", None, True, [1], {"a": 1}, float("nan"), float("inf"), 10**400, 10**25])
def test_ill_typed_numbers_of_a_study_are_left_out(tmp_path: Path, value: Any) -> None:
    make_run(tmp_path / "a", evaluation={"exact_match": value, "examples": 3}, reach={"default": value})
    (row,) = list_runs(tmp_path)
    assert (row["state"], row["examples"]) == ("complete", 3)
    assert row.get("exact_match", 1e25) == row.get("reach", 1e25) == 1e25


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}", b"\x80", b"[" * 100_000, b'{"a":' * 5000])
def test_a_broken_config_is_a_broken_run(tmp_path: Path, text: bytes) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_bytes(text)
    (row,) = list_runs(tmp_path)
    assert row["state"] == "broken"
    assert "config.json" in str(row["error"])


def test_folders_and_deep_nesting_in_place_of_files_give_a_message(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "odd.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "folder.json").mkdir()
    for name in ("deep", "odd", "folder"):
        with pytest.raises(BrokenRun, match=rf"{name}\.json is"):
            disk.read_json(tmp_path / f"{name}.json")


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, trusting: None, described: list[str]) -> None:
    for seed in range(5):
        make_run(tmp_path / "many" / f"seed-{seed}", seed=seed)
    time.sleep(TICK)
    list_runs(tmp_path)
    list_runs(tmp_path)  # the table itself was new in the folder
    assert sorted(described) == [f"seed-{seed}" for seed in range(5)]
    time.sleep(TICK)
    RunFolder(tmp_path / "many" / "seed-3").record("evaluation", exact(10))
    rows = list_runs(tmp_path, "exact_match = 0.99")
    assert [row["run"] for row in rows] == ["many/seed-3"]
    assert described[5:] == ["seed-3"]
    stamp = (tmp_path / "runs.sqlite").stat().st_mtime_ns
    assert list_runs(tmp_path, "exact_match = 0.99") == rows
    assert (tmp_path / "runs.sqlite").stat().st_mtime_ns == stamp  # and nothing was written


def test_a_folder_written_a_moment_ago_is_read_again(tmp_path: Path, described: list[str]) -> None:
    """A folder may be written twice within one clock tick, which its timestamp does not show."""
    make_run(tmp_path / "a")
    list_runs(tmp_path)
    before = os.stat(tmp_path / "a"), os.stat(tmp_path)
    (tmp_path / "a" / "evaluation.json").write_text(json.dumps(exact(1)))
    for path, about in zip((tmp_path / "a", tmp_path), before, strict=True):
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert list_runs(tmp_path)[0]["errors"] == 1
    assert described == ["a", "a"]


def test_clocks_may_go_backwards(tmp_path: Path, trusting: None) -> None:
    run = make_run(tmp_path / "a")
    time.sleep(TICK)
    list_runs(tmp_path)
    (run.path / "evaluation.json").write_text(json.dumps(exact(1)))
    for path in (run.path, tmp_path):
        os.utime(path, ns=(10**18, 10**18))  # the year 2001
    assert list_runs(tmp_path)[0]["errors"] == 1


def test_rebuild_sees_edits_made_outside_headway(tmp_path: Path, trusting: None) -> None:
    run = make_run(tmp_path / "a", evaluation=exact(1))
    time.sleep(TICK)
    list_runs(tmp_path)
    (run.path / "evaluation.json").write_text(json.dumps(exact(2)))  # in place: no folder is written to
    assert list_runs(tmp_path)[0]["errors"] == 1
    assert list_runs(tmp_path, rebuild=True)[0]["errors"] == 2
    assert list_runs(tmp_path)[0]["errors"] == 2


NAMES = st.sampled_from(["a", "b", "a/x", "a/y", "b/x/deep", "c", "checkpoint", "a/x/inner"])
VERBS = st.sampled_from(["make", "record", "finish", "delete", "move", "break", "unrun", "mkdir", "link"])
CHANGES = st.lists(st.tuples(VERBS, NAMES, NAMES), min_size=1, max_size=9)


def by_hand(path: Path) -> None:
    """Marks the parents of a run as changed, as Headway does itself when it writes a run inside a run."""
    for above in path.parents:
        RunFolder(above).mark_changed()


def change(root: Path, what: str, path: Path, other: Path, number: int) -> None:
    is_run = RunFolder.is_run(path)
    match what:
        case "make" if not is_run and not path.is_symlink():
            RunFolder(path).begin(a_config(seed=number), {}, resume=True) if not path.exists() else make_run(
                path
            ).mark_changed()
        case "record" if is_run:
            RunFolder(path).record("evaluation", exact(number))
        case "finish" if is_run:
            (path / "log.jsonl").touch()
            RunFolder(path).finish(b"w", steps=3, seconds=1.0, parameters=2, final_loss=0.1 * number, perfect=None)
        case "delete" if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        case "move" if path.is_dir() and not other.exists() and path not in other.parents:
            other.parent.mkdir(parents=True, exist_ok=True)
            path.rename(other)
            by_hand(other)
        case "break" if is_run:
            disk.write_bytes(path / "config.json", b"{")
            RunFolder(path).mark_changed()
        case "unrun" if is_run:
            RunFolder(path).mark_changed()
            (path / "config.json").unlink()
        case "mkdir":
            if not path.exists():
                path.mkdir(parents=True)
                by_hand(path)
        case "link" if not path.exists() and not path.is_symlink() and path.parent.is_dir():
            path.symlink_to(root, target_is_directory=True)


@settings(max_examples=40)
@given(CHANGES)
def test_after_any_changes_the_index_matches_the_folders(
    tmp_path_factory: pytest.TempPathFactory, trusting: None, changes: list[tuple[str, str, str]]
) -> None:
    root = tmp_path_factory.mktemp("runs")
    list_runs(root)
    for number, (what, path, other) in enumerate(changes):
        change(root, what, root / path, root / other, number)
        time.sleep(TICK)
        assert same(root), (what, path, other)
    shutil.rmtree(root)


def test_symlink_loops_terminate(tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "b")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "linked").symlink_to(tmp_path / "a", target_is_directory=True)
    assert [row["run"] for row in list_runs(tmp_path)] == ["a/b"]
    assert [row["run"] for row in list_runs(tmp_path / "linked")] == ["b"]


def test_a_new_run_inside_a_run_is_noticed(tmp_path: Path, trusting: None) -> None:
    make_run(tmp_path / "outer")
    time.sleep(TICK)
    list_runs(tmp_path)
    RunFolder(tmp_path / "outer" / "inner").begin(a_config(seed=1), {}, resume=False)
    assert [row["run"] for row in list_runs(tmp_path)] == ["outer", "outer/inner"]
    time.sleep(TICK)
    list_runs(tmp_path)
    RunFolder(tmp_path / "outer" / "inner").record("evaluation", exact(7))
    assert list_runs(tmp_path, "errors=7")[0]["run"] == "outer/inner"


def test_no_index_is_written_into_a_run_folder(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    assert [row["run"] for row in list_runs(tmp_path / "a")] == ["."]
    assert not (tmp_path / "a" / "runs.sqlite").exists()


def test_no_index_is_written_into_a_folder_without_runs(tmp_path: Path) -> None:
    (tmp_path / "some" / "folder").mkdir(parents=True)
    assert list_runs(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["some"]
    make_run(tmp_path / "some" / "folder" / "run")
    assert [row["run"] for row in list_runs(tmp_path)] == ["some/folder/run"]


def test_names_that_are_not_valid_unicode_are_listed(tmp_path: Path) -> None:
    make_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")), options={"first": "\ud800"})
    (row,) = list_runs(tmp_path)
    assert row["run"] == "caf?"
    assert row["option.first"] == "?"
    assert list_runs(tmp_path) == [row]


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE folders",
        "DROP TABLE runs",
        "ALTER TABLE runs DROP COLUMN reach",
        "PRAGMA user_version = 99",
        "PRAGMA user_version = 0",
        "DROP TABLE runs; CREATE VIEW runs AS SELECT 1",
        "DROP TABLE runs; CREATE TABLE runs (path TEXT PRIMARY KEY, stamp REAL, row TEXT)",
    ],
)
def test_an_index_with_another_schema_is_rebuilt(tmp_path: Path, damage: str) -> None:
    make_run(tmp_path / "a", reach={"default": 64})
    first = list_runs(tmp_path)
    table = sqlite3.connect(tmp_path / "runs.sqlite")
    table.executescript(damage)
    table.close()
    assert list_runs(tmp_path, "reach>=64") == first
    assert list_runs(tmp_path) == first


@pytest.mark.parametrize("there", ["folder", "garbage", "truncated", "empty"])
def test_a_file_that_is_not_an_index_does_no_harm(tmp_path: Path, there: str) -> None:
    make_run(tmp_path / "a", reach={"default": 64})
    first, path = list_runs(tmp_path), tmp_path / "runs.sqlite"
    content = path.read_bytes()
    path.unlink()
    if there == "folder":
        path.mkdir()
    else:
        path.write_bytes(
            {"garbage": b"no table " * 900, "truncated": content[: len(content) // 2], "empty": b""}[there]
        )
    assert list_runs(tmp_path) == first
    assert list_runs(tmp_path, "reach>=64") == first


def test_a_locked_index_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "PATIENCE", 0.05)
    run = make_run(tmp_path / "a")
    list_runs(tmp_path)
    other = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    run.record("evaluation", exact(3))
    assert list_runs(tmp_path)[0]["errors"] == 3
    other.execute("ROLLBACK")
    other.close()
    assert list_runs(tmp_path)[0]["errors"] == 3


def test_a_read_only_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a")
    list_runs(tmp_path)
    make_run(tmp_path / "b", seed=1)
    connect = sqlite3.connect

    def only_reading(place: Any, **rest: Any) -> sqlite3.Connection:
        if str(place).endswith("runs.sqlite"):
            return connect(f"file:{place}?mode=ro", uri=True, **rest)
        return connect(place, **rest)

    monkeypatch.setattr(sqlite3, "connect", only_reading)
    assert [row["run"] for row in list_runs(tmp_path)] == ["a", "b"]


def test_concurrent_processes_do_not_interfere(tmp_path: Path) -> None:
    for seed in range(30):
        make_run(tmp_path / f"seed-{seed}", seed=seed)
    code = (
        "import sys; from pathlib import Path; from headway.compare.index import list_runs\n"
        "print(sorted({len(list_runs(Path(sys.argv[1]), 'seed>=0')) for _ in range(15)}))"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for number in range(30):
        RunFolder(tmp_path / f"seed-{number}").record("evaluation", exact(number))
    for other in others:
        out, err = other.communicate(timeout=600)
        assert (out.decode().strip(), err.decode()) == ("[30]", "")
    assert same(tmp_path)


def test_more_keys_than_the_index_can_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_KEYS", 60)
    make_run(tmp_path / "a", options={f"option_{n}": n for n in range(40)})
    with pytest.raises(HeadwayError, match="more than 60 different keys"):
        list_runs(tmp_path)


TIMED = """
import json, sys, time
from pathlib import Path
from headway.compare.index import list_runs

def timed(where):
    began = time.perf_counter()
    found = list_runs(Path(sys.argv[1]), where)
    return time.perf_counter() - began, found

first, _ = timed("state=broken")
time.sleep(1.1)
timed("state=broken")  # what was new a moment ago is looked at again
asked = [timed("positions=rope and reach>256") for _ in range(5)]
print(json.dumps([first, [seconds for seconds, _ in asked], [row["seed"] for row in asked[-1][1]]]))
"""
"""runs in its own process, where no shapes are checked"""


@pytest.mark.slow
def test_a_query_over_100_000_runs_finds_them_all(tmp_path: Path) -> None:
    root, every = tmp_path / "runs", ["rope", "alibi", "t5", "kerple", "fire", "none", "learned", "sinusoidal"]
    plain = json.dumps(a_config("POSITIONS", 7_654_321).to_json())
    made = make_run(tmp_path / "one", reach={"default": 0})
    ended, lengths = ((made.path / f"{name}.json").read_text() for name in ("training", "lengths"))
    root.mkdir()
    for number in range(100_000):
        home = f"{root}/run-{number}"
        os.mkdir(home)
        config = plain.replace("POSITIONS", every[number % 8]).replace("7654321", str(number))
        reach = lengths.replace('"default": 0', f'"default": {2 ** (number // 8 % 6 + 5)}')
        for name, text in (("config", config), *((("training", ended), ("lengths", reach)) if number % 3 else ())):
            with open(f"{home}/{name}.json", "w") as file:
                file.write(text)
    told = subprocess.run([sys.executable, "-c", TIMED, str(root)], capture_output=True, text=True, check=True)
    first, taken, found = json.loads(told.stdout)
    wanted = [n for n in range(100_000) if n % 8 == 0 and n % 3 and 2 ** (n // 8 % 6 + 5) > 256]
    assert sorted(found) == wanted
    print(f"\nread for the first time: {first:.1f} s")
    print(f"positions=rope and reach>256: {len(found):,} of 100,000 runs in {', '.join(f'{s:.3f}' for s in taken)} s")
    shutil.rmtree(root)
