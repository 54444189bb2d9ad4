"""A whole sweep on real processes: reuse, added studies, the choice of a learning rate, the leaderboard."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from headway.api import study_lengths
from headway.cli import main
from headway.machine import choose_device
from headway.runs.folder import RunFolder
from headway.sweeps.file import read_sweep
from headway.training.loop import train_run
from headway.trials.plan import config_of
from small import small_trial

TINY = small_trial()
FILE = """
[base]
task = "addition"
d_model = 8
heads = 2
d_ff = 16
layers = 1
decoder_layers = 1
steps = 5
batch = 4
options = {digits = 2}
seeds = 2
"""
MINI = """
choose = "rate"
[base]
task = "sortedness"
track = "tuned"
steps = 20
batch = 16
d_model = 32
d_ff = 64
heads = 2
layers = 1
seeds = 1
[[axis]]
positions = ["fire", "none"]
[[axis]]
rate = [0.5, 1.0]
[studies.lengths]
lengths = [20]
"""


def called(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    (tmp_path / "a.toml").write_text(text)
    out, few = str(tmp_path / "out"), [] if "--engine" in words else ["--workers", "1"]
    assert main(["sweep", str(tmp_path / "a.toml"), "--out", out, "--json", "--quiet", *few, *words]) == status
    return json.loads(capsys.readouterr().out)


def test_finished_trials_are_reused_for_a_new_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = called(tmp_path, FILE, capsys, "--dry-run")
    assert (planned["trials"], planned["reused"], planned["left"]) == (2, 0, 2)
    assert planned["training_seconds"] > 0
    assert not (tmp_path / "out").exists(), "a dry run writes nothing"
    first = called(tmp_path, FILE, capsys)
    assert (first["trials"], first["done"], first["reused"], first["failed"]) == (2, 2, 0, [])
    assert {"seconds", "slots", "efficiency"} <= first.keys()
    weights = [path.stat().st_mtime_ns for path in sorted((tmp_path / "out").glob("runs/*/model.safetensors"))]
    more = called(tmp_path, FILE + "[studies.evaluate]\nexamples = 50\n", capsys)
    assert (more["done"], more["reused"]) == (2, 0)
    assert [row["examples"] for row in more["rows"]] == [50, 50]
    again = called(tmp_path, FILE + "[studies.evaluate]\nexamples = 50\n", capsys)
    assert (again["done"], again["reused"]) == (0, 2)
    assert again["rows"] == more["rows"]
    wanted = '[studies.evaluate]\nexamples = 60\n[compare]\nby = "positions"\nmetrics = "exact_match"\n'
    other = called(tmp_path, FILE + wanted, capsys)
    assert (other["done"], [row["examples"] for row in other["rows"]]) == (2, [60, 60])
    assert weights == [path.stat().st_mtime_ns for path in sorted((tmp_path / "out").glob("runs/*/model.safetensors"))]
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines()))
    assert [row["run"] for row in rows] == [row["run"] for row in other["rows"]]
    for row in rows:
        RunFolder(tmp_path / "out" / "runs" / row["run"]).verify()
    compared = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [(row["positions"], row["runs"], row["metrics"]["exact_match"]["n"]) for row in compared["rows"]] == [
        ("learned", 2, 2)
    ]
    assert Path(other["report"]).exists()
    one = called(tmp_path, FILE.replace("seeds = 2", "seeds = [1]") + wanted, capsys)
    assert (one["trials"], one["reused"]) == (1, 1)
    compared = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["runs"] for row in compared["rows"]] == [1], "only the trials of this sweep are compared"


def test_a_trial_is_the_run_that_train_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_THREADS", "1")  # as a trial has, where nothing else is said
    found = called(tmp_path, FILE, capsys)
    train_run(config_of({**TINY, "seed": 1}), tmp_path / "alone", device=choose_device("cpu"))
    weights = tmp_path / "out" / "runs" / found["rows"][1]["run"] / "model.safetensors"
    assert weights.read_bytes() == (tmp_path / "alone" / "model.safetensors").read_bytes()


def test_the_leaderboard_matches_headway_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = called(tmp_path, MINI, capsys)
    ours = json.loads((tmp_path / "out" / "lengths.json").read_text())
    theirs = study_lengths(
        "sortedness", positions=["fire", "none"], track="tuned", rates=[0.5, 1.0], seeds=[0], lengths=[20],
        out=tmp_path / "plain", device="cpu", steps=20, batch=16, d_model=32, d_ff=64, heads=2, layers=1,
    ).to_json()  # fmt: skip
    for key in ("rows", "reach", "findings", "train_lengths", "diagnosis", "signals", "withheld", "precision"):
        assert ours[key] == json.loads(json.dumps(theirs[key])), key
    vary = ("seconds", "run")
    assert [{k: v for k, v in row.items() if k not in vary} for row in ours["converged"]] == [
        {k: v for k, v in row.items() if k not in vary} for row in json.loads(json.dumps(theirs["converged"]))
    ]
    chosen = {(row["positions"], row["rate"]) for row in found["rows"] if row["chosen"]}
    assert chosen == {(row["positions"], row["rate"]) for row in theirs["converged"]}
    assert found["done"] == 4
    again = called(tmp_path, MINI, capsys)
    assert (again["done"], again["reused"]) == (0, 4)
    assert [row.get("in_range") for row in again["rows"]] == [row.get("in_range") for row in found["rows"]]


def test_the_recipe_is_the_published_leaderboard() -> None:
    root = Path(__file__).parents[2]
    recipe = root / "recipes" / "leaderboard.toml"
    assert len(recipe.read_text().splitlines()) <= 40
    published = json.loads((root / "results" / "lengths-tuned" / "lengths.json").read_text())
    sweep = read_sweep(str(recipe))
    trials = sweep.trials()
    entries = {(t.config.model.positions, t.config.model.index, t.config.model.pooling) for t in trials}
    assert entries == {(row["positions"], row["index"], row["pooling"]) for row in published["reach"]}
    assert {t.config.seed for t in trials} == {row["seed"] for row in published["rows"]}
    assert len(trials) == 3 * len(published["converged"])
    tested = sweep.studies[0].options["lengths"]
    assert isinstance(tested, list)
    assert {*tested, 16} == {row["length"] for row in published["rows"]}


REFUSED = {
    "[studies.dance]": "unknown study 'dance'",
    "[studies.evaluate]\nexamplez = 3": "unknown option of studies.evaluate 'examplez'; did you mean 'examples'?",
    '[studies.evaluate]\nexamples = "many"': "examples of studies.evaluate is 'many'",
    '[studies.evaluate]\nprobe = "hard"': "unknown probe 'hard'",
    "[studies.lengths]\nlengths = [1]": "a test length is at least 2",
    "[studies.lengths]\nlengths = [[3]]": "lengths of studies.lengths is [[3]]",
    "[studies.lengths]\nexamples = 5": "at least 2,000",
    '[compare]\nby = "position"': "unknown key of compare 'position'; did you mean 'positions'?",
}


@pytest.mark.parametrize("text", REFUSED)
def test_an_impossible_study_is_refused_before_training(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text(FILE + text)
    assert main(["sweep", str(tmp_path / "a.toml"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert REFUSED[text] in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


WRONG_FLAGS = {
    "--address 1.2.3.4:5": "--address and --results are for Ray",
    "--workers 0": "--workers 0: ask for 1 to 10,000",
    "--engine ray --workers 3": "--workers is for local processes",
    "--engine ray --address 127.0.0.1:1": "cannot connect to the cluster at 127.0.0.1:1",
    "--engine ray --address nonsense:port": "HOST:PORT",
}


@pytest.mark.parametrize("words", WRONG_FLAGS)
def test_incompatible_flags_are_refused(tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    assert main(["sweep", str(tmp_path / "a.toml"), "--out", str(tmp_path / "out"), "--quiet", *words.split()]) == 2
    said = capsys.readouterr().err
    assert WRONG_FLAGS[words] in said
    assert said.count("\n") == 1


def test_output_and_exceptions_of_a_function_are_handled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        'def loud(): print("hello"); return {"base": {"task": "addition"}}\n'
        'def wrong(): raise ValueError("no")\n'
        "def leaves(): raise SystemExit(7)\n"
        'def keys(): return {"axis": [{1: [2]}]}\n'
    )
    assert main(["sweep", f"{tmp_path / 'mine.py'}:loud", "--out", str(tmp_path / "o"), "--dry-run", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    for name, said in {"wrong": "raised ValueError: no", "leaves": "SystemExit: 7", "keys": "has the key 1"}.items():
        assert main(["sweep", f"{tmp_path / 'mine.py'}:{name}", "--out", str(tmp_path / "o")]) == 2
        assert said in capsys.readouterr().err


def test_a_dry_run_for_gpus_elsewhere_needs_none_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = called(tmp_path, FILE + "[resources]\ngpus = 1\n", capsys, "--dry-run", "--engine", "ray")
    assert found["left"] == 2


def test_a_file_in_the_current_folder_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert called(tmp_path, FILE.replace("seeds = 2", "seeds = 1"), capsys)["done"] == 1
    assert not (tmp_path / "ran").exists()
