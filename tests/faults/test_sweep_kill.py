"""SIGKILL of workers and of the driver in the middle of a sweep; Ctrl-C; a suspended driver."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sweeping import ONE, TRIALS, check_whole, children, done, finish, runs, start, sweep, sweep_file, table, wait_for


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the table of the same sweep, undisturbed."""
    home = tmp_path_factory.mktemp("undisturbed")
    sweep(sweep_file(home), home / "out", *ONE)
    return table(home / "out")


@pytest.mark.fault("SIGKILL of a worker, again and again")
@pytest.mark.slow
def test_a_killed_worker_costs_the_trial_in_flight_at_most(
    tmp_path: Path, undisturbed: str, record_outcome: Callable[[str], None]
) -> None:
    out, killed, kept = tmp_path / "out", 0, {}
    process = start(sweep_file(tmp_path), out)
    for _ in range(4):
        count = len(done(out))
        wait_for(lambda count=count: len(done(out)) > count, process)
        time.sleep(random.Random().uniform(0, 0.3))
        for pid in children(process.pid)[:1]:
            kept = done(out)
            os.kill(pid, signal.SIGKILL)
            killed += 1
    found = finish(process)
    assert killed >= 2
    assert (found["done"], found["failed"]) == (TRIALS, [])
    check_whole(out, kept)
    assert table(out) == undisturbed
    record_outcome(f"{killed} workers killed, {TRIALS} of {TRIALS} trials done by the same command, the same table")


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, marks=pytest.mark.fault("SIGKILL of the driver")),
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.fault("SIGKILL of the driver, again and again")]),
    ],
)
def test_a_killed_driver_takes_its_workers_along_and_loses_nothing(
    tmp_path: Path, undisturbed: str, record_outcome: Callable[[str], None], kills: int
) -> None:
    file, out = sweep_file(tmp_path), tmp_path / "out"
    kept: dict[str, bytes] = {}
    killed = 0
    while killed < kills:
        process = start(file, out)
        count = len(kept)
        wait_for(lambda count=count: len(done(out)) > count, process)
        time.sleep(random.Random().uniform(0, 0.3))
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        until = time.monotonic() + 300
        while any(map(runs, workers)):
            assert time.monotonic() < until, "a worker outlived its driver"
            time.sleep(0.05)
        before, kept = kept, done(out)
        assert all(kept[address] == record for address, record in before.items())
        killed += 1
    found = sweep(file, out)
    assert found["reused"] >= len(kept)
    assert found["done"] + found["reused"] == TRIALS
    check_whole(out, kept)
    assert table(out) == undisturbed
    record_outcome(
        f"{killed} drivers killed with their workers, {len(kept)} of {TRIALS} trials done by then, all kept, same table"
    )


@pytest.mark.fault("Ctrl-C once, and twice")
@pytest.mark.slow
def test_ctrl_c_once_drains_and_twice_stops(tmp_path: Path, record_outcome: Callable[[str], None]) -> None:
    file, out = sweep_file(tmp_path, steps=900), tmp_path / "out"
    process = start(file, out)
    wait_for(lambda: done(out), process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said.count("\n") == 1
    assert "continue with: headway sweep" in said
    drained = done(out)
    assert not list(out.glob("runs/*/checkpoint")), "a trial that ran was not let come to its end"
    process = start(file, out)
    wait_for(lambda: list(out.glob("runs/*/checkpoint/latest.json")), process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130
    assert list(out.glob("runs/*/checkpoint/latest.json")), "what ran keeps its checkpoint"
    found = sweep(file, out)
    assert found["done"] + found["reused"] == TRIALS
    check_whole(out, drained)
    record_outcome(
        f"once: {len(drained)} trials, none half done; twice: stopped at once, checkpoints kept; then all {TRIALS}"
    )


@pytest.mark.fault("a driver stands still, is taken over, and wakes up")
@pytest.mark.slow
def test_a_suspended_driver_stops_when_it_wakes(
    tmp_path: Path, undisturbed: str, record_outcome: Callable[[str], None]
) -> None:
    file, out = sweep_file(tmp_path), tmp_path / "out"
    sleeper = start(file, out)
    wait_for(lambda: done(out), sleeper)
    sleeper.send_signal(signal.SIGSTOP)
    kept = done(out)
    found = sweep(file, out)
    assert found["done"] + found["reused"] == TRIALS
    sleeper.send_signal(signal.SIGCONT)
    _, said = sleeper.communicate(timeout=600)
    assert sleeper.returncode in (0, 2)  # its trials are done: it may find that out before it finds itself taken over
    assert sleeper.returncode == 0 or "another one took over its trials" in said
    check_whole(out, kept)
    assert table(out) == undisturbed
    record_outcome(
        f"the second driver finished all {TRIALS}; the first one woke up, and stopped or found all done; same table"
    )
