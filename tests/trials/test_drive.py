"""The driver gives the same bytes and progress on every engine, and stops at the first failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.progress import Progress
from headway.trials.board import Board
from headway.trials.drive import Driver, train_trials
from headway.trials.local import Engine, InProcess, LocalEngine
from headway.trials.plan import config_of, pieces_of
from headway.trials.trial import Resources, Terms, Trial
from small import small_trial

TINY = small_trial(steps=40)


def trials(count: int) -> list[Trial]:
    return [Trial(config_of({**TINY, "seed": n}), {"seed": n}, f"seed-{n}") for n in range(count)]


def test_processes_give_the_same_bytes_as_this_one_and_report_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_THREADS", "1")
    heard: dict[str, list[tuple[int, int, str]]] = {}
    engines: list[Engine] = [
        InProcess(Terms(str(tmp_path / "here"), watched=True)),
        LocalEngine(Terms(str(tmp_path / "apart"), watched=True), workers=1),
    ]
    for engine in engines:
        progress = heard.setdefault(type(engine).__name__, [])
        driver = Driver(
            engine, Board("", 2, None, quiet=True), watch=lambda *words, progress=progress: progress.append(words)
        )
        try:
            driver.run(pieces_of(trials(2), ()))
        finally:
            engine.stop()
        assert len(driver.outcomes.found) == 2
        assert [(done, total) for done, total, _ in progress] == [(20, 80), (40, 80), (60, 80), (80, 80)]
        assert [words.partition(": loss")[0] for _, _, words in progress] == ["seed=0", "seed=0", "seed=1", "seed=1"]
    for each in trials(2):
        here, apart = (each.folder(tmp_path / home) for home in ("here", "apart"))
        assert here.weights.read_bytes() == apart.weights.read_bytes()
        assert {path.name for path in apart.path.iterdir()} == {path.name for path in here.path.iterdir()}
    assert {path.name for path in (tmp_path / "apart").iterdir()} == {"seed-0", "seed-1"}


def test_finished_trials_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train_trials(pieces_of(trials(2), ()), InProcess(Terms(str(tmp_path))), "", quiet=True)
    (tmp_path / "seed-0" / "checkpoint").mkdir()  # as a kill may leave it
    monkeypatch.setattr("headway.trials.local.subprocess.Popen", None)
    again = train_trials(pieces_of(trials(2), ()), LocalEngine(Terms(str(tmp_path)), 1), "", quiet=True)
    assert again == first
    assert not (tmp_path / "seed-0" / "checkpoint").exists()


def test_the_first_failure_stops_training_and_names_the_trial(tmp_path: Path) -> None:
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "notes.txt").write_text("mine")
    for engine in (InProcess(Terms(str(tmp_path))), LocalEngine(Terms(str(tmp_path)), 1)):
        with pytest.raises(HeadwayError, match="seed-1 holds other files and no run"):
            train_trials(pieces_of(trials(3), ()), engine, "", quiet=True)
    assert (tmp_path / "seed-0" / "training.json").exists()
    assert not (tmp_path / "seed-2").exists()


def test_a_process_that_dies_is_restarted_up_to_its_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headway.trials.local.WORKER", "import os; os.write(int(__import__('sys').argv[1]), b'ready\\n')"
    )
    engine = LocalEngine(Terms(str(tmp_path), resources=Resources(retries=1)), 1)
    with pytest.raises(HeadwayError, match="seed=0: its process ended with status 0"):
        train_trials(pieces_of(trials(1), ()), engine, "", quiet=True)


def test_progress_counts_only_the_remaining_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[tuple[int, int]] = []
    monkeypatch.setattr(Progress, "__call__", lambda self, done, total, words="": progress.append((done, total)))
    train_trials(pieces_of(trials(1), ()), InProcess(Terms(str(tmp_path))), "", quiet=True)
    progress.clear()
    train_trials(pieces_of(trials(2), ()), InProcess(Terms(str(tmp_path))), "", quiet=True)
    assert progress == [(20, 40), (40, 40)]
