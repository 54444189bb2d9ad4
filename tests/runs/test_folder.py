"""A run folder is never half-written, and truncated or altered files are refused by name."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.compare.index import list_runs
from headway.errors import BrokenRun, HeadwayError
from headway.runs import disk
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder, runs_in
from headway.runs.seal import read_sealed, seal
from headway.subjects.own import find_runs, open_run
from headway.training.defaults import plan
from headway.training.loop import train_run
from small import small_model

CONFIG = plan("addition", Overrides(**small_model(decoder_layers=1, batch=4, steps=3)), seed=0)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    train_run(CONFIG, tmp_path / "run", device=torch.device("cpu"))
    return RunFolder(tmp_path / "run")


def test_a_config_survives_the_disk(run: RunFolder) -> None:
    assert run.config() == CONFIG
    assert RunConfig.from_json(json.loads(json.dumps(CONFIG.to_json()))).digest == CONFIG.digest


def test_every_setting_changes_the_identity() -> None:
    others = [
        plan("addition", Overrides(steps=3), seed=0),
        plan("addition", Overrides(steps=3), seed=1),
        plan("addition", Overrides(steps=3), seed=0, options={"digits": 2}),
        plan("addition", Overrides(steps=3, positions="none"), seed=0),
        plan("addition", Overrides(steps=3), seed=0, data="abc"),
    ]
    assert len({config.digest for config in others}) == len(others)


@pytest.mark.parametrize("file", ["config.json", "training.json", "model.safetensors", "log.jsonl"])
@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped", "removed"])
def test_a_damaged_file_is_refused_by_name_and_left_alone(run: RunFolder, file: str, damage: str) -> None:
    path = run.path / file
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        at = len(content) - 5 if file == "model.safetensors" else content.index(b"1", len(content) // 4)
        content[at] ^= 1  # a 1 becomes a 0
    path.write_bytes({"truncated": content[: len(content) // 2], "emptied": b"", "flipped": content}.get(damage, b""))
    if damage == "removed":
        path.unlink()
    before = {p.name: p.read_bytes() for p in run.path.iterdir() if p.is_file()}
    with pytest.raises(HeadwayError) as error:
        open_run(run)
    expected = "unfinished run" if (file, damage) == ("training.json", "removed") else file
    assert expected in str(error.value)
    assert {p.name: p.read_bytes() for p in run.path.iterdir() if p.is_file()} == before


def test_a_config_with_an_unknown_entry_is_refused() -> None:
    raw = CONFIG.to_json()
    raw["model"]["wings"] = 2
    with pytest.raises(HeadwayError, match="unknown entry 'wings' in ModelConfig"):
        RunConfig.from_json(raw)


def test_a_run_stays_valid_when_configs_gain_entries(run: RunFolder) -> None:
    """An entry added after the run was made has its default and does not make the run broken."""
    raw = json.loads((run.path / "config.json").read_text())
    del raw["data"]
    disk.write_json(run.path / "config.json", raw)
    with pytest.raises(BrokenRun, match=r"config\.json is truncated or altered"):
        open_run(run)
    ended = run.training()
    record = {**asdict(ended), "config_sha256": disk.sha256(run.path / "config.json")}
    disk.write_json(run.path / "training.json", seal(record))
    assert open_run(run).config == CONFIG


@settings(max_examples=150)
@given(st.data())
def test_no_mutated_config_crashes_the_reader(run: RunFolder, data: st.DataObject) -> None:
    content = bytearray(json.dumps(CONFIG.to_json()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = run.path / "config.json"
    path.write_bytes(content)
    try:
        read = run.config()
    except HeadwayError:
        return
    assert isinstance(read, RunConfig)


def test_a_kill_before_the_first_file_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".config.json.123.part").write_bytes(b"{")
    train_run(CONFIG, out, device=torch.device("cpu"))
    assert not list(out.glob(".*.part"))


def test_a_kill_between_the_first_two_files_resumes(tmp_path: Path) -> None:
    disk.write_json(tmp_path / "run" / "config.json", CONFIG.to_json())
    train_run(CONFIG, tmp_path / "run", device=torch.device("cpu"), resume=True)
    assert (tmp_path / "run" / "environment.json").exists()


@pytest.mark.parametrize(
    ("entry", "value"), [("heads", "4"), ("heads", True), ("positions", 5), ("kind", "oracle"), ("start", 1.5)]
)
def test_an_ill_typed_entry_is_named(entry: str, value: object) -> None:
    raw = CONFIG.to_json()
    raw["model"][entry] = value
    with pytest.raises(HeadwayError, match=f"{entry} of ModelConfig is {value!r}"):
        RunConfig.from_json(raw)


def test_naming_a_default_gives_the_same_run() -> None:
    assert plan("addition", Overrides(), 0) == plan("addition", Overrides(heads=4), 0, {"digits": 3, "base": 10})


def test_writing_replaces_a_file_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.json"
    disk.write_json(path, {"old": True})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(HeadwayError, match="no space is left"):
        disk.write_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["kept.json"]


def test_seed_2_comes_before_seed_10(tmp_path: Path) -> None:
    for seed in (10, 2, 0):
        disk.write_json(tmp_path / f"seed-{seed}" / "config.json", {})
    assert [folder.path.name for folder in runs_in(tmp_path)] == ["seed-0", "seed-2", "seed-10"]


def test_a_folder_that_is_not_a_run_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="not a run folder and holds none"):
        runs_in(tmp_path)
    with pytest.raises(HeadwayError, match="there is no folder"):
        find_runs(tmp_path / "nowhere")
    with pytest.raises(HeadwayError, match="unknown pretrained model 'adde'"):
        find_runs("pretrained:adde")


def test_the_index_is_only_a_cache(run: RunFolder) -> None:
    root = run.path.parent
    first = list_runs(root)
    assert [(row["run"], row["state"], row["steps"]) for row in first] == [("run", "complete", 3)]
    assert list_runs(root) == first
    (root / "runs.sqlite").write_bytes(b"not a database at all, by any means" * 100)
    assert list_runs(root) == first
    (root / "runs.sqlite").unlink()
    assert list_runs(root) == first


def test_the_index_follows_the_folders(run: RunFolder, tmp_path: Path) -> None:
    root = run.path.parent
    list_runs(root)
    run.record("evaluation", {"examples": 4, "exact_match": 0.25})
    assert list_runs(root)[0]["exact_match"] == 0.25
    (run.path / "config.json").write_text("{")
    assert list_runs(root)[0]["state"] == "broken"
    (run.path / "config.json").unlink()
    assert list_runs(root) == []


def test_a_hugging_face_model_is_not_a_run(tmp_path: Path) -> None:
    """It has a config.json too; a run that has barely started, or is broken, still counts as a run."""
    recipes = Path(__file__).parents[2] / "recipes"
    assert not RunFolder.is_run(recipes / "induction")
    assert list_runs(recipes) == []
    texts = {
        "begun": json.dumps(CONFIG.to_json()),
        "cut short": '{"task": "add',
        "empty": "",
        "theirs": '{"vocab_size": 3}',
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert [row["run"] for row in list_runs(tmp_path)] == ["begun", "cut short", "empty"]
    disk.write_json(tmp_path / "theirs" / "environment.json", {})  # a run whose config was replaced
    assert [row["state"] for row in list_runs(tmp_path, rebuild=True)] == ["unfinished", "broken", "broken", "broken"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"a": 2}', None])
def test_a_sealed_file_is_read_or_recomputed(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "kept.json"
    disk.write_json(path, seal({"a": 1}))
    assert read_sealed(path) == {"a": 1}
    path.unlink() if damage is None else path.write_bytes(damage)
    assert read_sealed(path) == {}
