"""A piece of work, from its trials to their records, wherever it runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.trials.board import Board
from headway.trials.claims import hold_lock
from headway.trials.execute import run_piece
from headway.trials.plan import config_of, trial_of
from headway.trials.ray import run_files, write_run
from headway.trials.trial import Piece, Resources, Study, Terms, Trial, from_line, metrics_of, to_line
from small import small_trial

TINY = small_trial()
STUDIES = (Study("evaluate", {"examples": 50}),)


def trial(seed: int) -> Trial:
    return trial_of(config_of({**TINY, "seed": seed}), {"seed": seed})


def shared(out: Path) -> Terms:
    return Terms(str(out), shared=True)


def test_trials_of_one_shape_as_a_population(tmp_path: Path) -> None:
    """This is normal on a GPU; on a CPU it gives the same up to rounding."""
    both = (trial(0), trial(1))
    results = run_piece(Piece(both, (), both, "populations/both"), shared(tmp_path / "together"))
    assert [result.error for result in results] == ["", ""]
    (alone,) = run_piece(Piece(both[1:]), shared(tmp_path / "alone"))
    together, apart = results[1].metrics, alone.metrics
    assert together is not None
    assert apart is not None
    assert together["final_loss"] == pytest.approx(apart["final_loss"], rel=1e-4)
    assert not list((tmp_path / "together").glob("populations/*"))
    both[0].folder(tmp_path / "together").verify()


def test_the_driver_writes_what_a_node_sends_and_nothing_outside(tmp_path: Path) -> None:
    one = trial(0)
    (result,) = run_piece(Piece((one,), STUDIES), shared(tmp_path / "node"))
    files = run_files(one.folder(tmp_path / "node"))
    write_run(one, tmp_path / "driver", files)
    assert metrics_of(one.folder(tmp_path / "driver"), one.config, STUDIES) == result.metrics
    for name in ("../outside", "/etc/outside", "a/b", "..", "", "x\0y", "..\\outside"):
        with pytest.raises(HeadwayError, match="not a plain file name"):
            write_run(one, tmp_path / "evil", {**files, name: b"evil"})
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "outside").exists()


def test_a_half_written_study_is_repeated_and_a_record_of_other_weights_is_rejected(tmp_path: Path) -> None:
    one = trial(0)
    piece, terms, folder = Piece((one,), STUDIES), shared(tmp_path), one.folder(tmp_path)
    (result,) = run_piece(piece, terms)
    assert metrics_of(folder, one.config, STUDIES) == result.metrics
    (folder.path / "evaluation-sample.json").unlink()
    assert metrics_of(folder, one.config, STUDIES) is None
    assert run_piece(piece, terms)[0].metrics == result.metrics
    record = json.loads((folder.path / "trial.json").read_text())
    record["studies"]["evaluate"]["metrics"]["exact_match"] = 1.0
    (folder.path / "trial.json").write_text(json.dumps(record))
    assert metrics_of(folder, one.config, STUDIES) is None, "an altered record"
    assert run_piece(piece, terms)[0].metrics == result.metrics


def test_two_processes_never_work_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.trials.execute.WAIT", 0.1)
    one = trial(0)
    (tmp_path / "claims").mkdir()
    with hold_lock(tmp_path / "claims" / f"{one.address}.lock"):
        (result,) = run_piece(Piece((one,)), shared(tmp_path))
    assert "another process holds the lock" in result.error
    assert not (tmp_path / "runs").exists()


def test_other_files_in_a_trials_place_are_set_aside(tmp_path: Path) -> None:
    one, terms = trial(0), shared(tmp_path)
    path = one.folder(tmp_path).path
    path.parent.mkdir()
    path.write_text("a file")
    (result,) = run_piece(Piece((one,)), terms)
    assert result.error == ""
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").mkdir()
    (again,) = run_piece(Piece((one,)), terms)
    assert again.metrics == result.metrics
    assert len(list((tmp_path / "broken").iterdir())) == 2


def test_a_folder_that_is_not_shared_is_never_set_aside(tmp_path: Path) -> None:
    one, terms = trial(0), Terms(str(tmp_path))
    run_piece(Piece((one,)), terms)
    (one.folder(tmp_path).path / "model.safetensors").unlink()
    (result,) = run_piece(Piece((one,)), terms)
    assert (result.kind, result.metrics) == ("BrokenRun", None)
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}, "no claims, no folder of broken ones"


def test_a_population_of_which_some_are_done_can_be_finished(tmp_path: Path) -> None:
    some = (trial(0), trial(1), trial(2))
    piece = Piece(some, (), some, "populations/some")
    run_piece(piece, shared(tmp_path / "whole"))
    run_piece(piece, shared(tmp_path / "cut"))
    shutil.rmtree(some[1].folder(tmp_path / "cut").path)
    (result,) = run_piece(replace(piece, trials=some[1:2]), shared(tmp_path / "cut"))
    assert result.address == some[1].address
    for each in some:
        ours, theirs = (each.folder(tmp_path / home).weights for home in ("cut", "whole"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_piece_travels_as_one_line(tmp_path: Path) -> None:
    piece = Piece((trial(0),), STUDIES, (trial(0), trial(1)), "home")
    terms = Terms(str(tmp_path), "cuda", Resources(memory=2**30, pip=("a", "b")), data="x", command=("train", "é"))
    line = to_line(piece, terms)
    assert "\n" not in line
    assert from_line(line) == (piece, terms)


def test_the_board_counts_trials_and_shows_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    trials = [trial(seed) for seed in range(4)]
    with Board("a sweep", 5, "final_loss", quiet=True) as board:
        for each in trials[:3]:
            board.begin(each)
        board.end(trials[0], {"final_loss": 2.0})
        board.end(trials[1], {"final_loss": 1.0})
        board.end(trials[2], None, "it broke")
        board.end(trials[3], {"final_loss": None}, reused=True)
        line = board.line()
    assert "2 done, 1 reused, 1 failed, 0 running, 1 left" in line
    assert "best final_loss 1 (seed=1)" in line
