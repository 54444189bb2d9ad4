"""Claims have one owner at a time, and are only taken over from dead owners."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.trials.claims import Claims, hold_lock, machine_id, start_time


def test_a_claim_has_one_owner(tmp_path: Path) -> None:
    with Claims(tmp_path) as one, Claims(tmp_path) as other:
        assert one.take("a")
        assert not other.take("a")
        assert other.take("b")
        one.drop("a")
        assert other.take("a")
    assert not list(tmp_path.glob("*.claim"))
    assert not list(tmp_path.glob("owners/*.json"))


def owner(folder: Path, name: str, **entries: Any) -> None:
    """Makes another owner with a claim on `a`."""
    (folder / "owners").mkdir(parents=True, exist_ok=True)
    (folder / "owners" / f"{name}.json").write_text(json.dumps({"place": machine_id(), "beat": 0, **entries}))
    (folder / "a.claim").write_text(name)


def wait_for(what: Callable[[], object]) -> None:
    """Waits until a condition holds; the machine may be busy."""
    until = time.monotonic() + 300
    while not what():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)


def test_a_process_that_is_gone_is_dead_at_once(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    owner(tmp_path, "gone", pid=int(gone.stdout), born="1")
    with Claims(tmp_path) as ours:
        assert ours.take("a")


def test_an_owner_whose_process_id_was_reused_is_dead(tmp_path: Path) -> None:
    owner(tmp_path, "before", pid=os.getpid(), born=str(int(start_time(os.getpid())) - 1))
    with Claims(tmp_path) as ours:
        assert ours.take("a")


def test_an_owner_on_another_machine_is_dead_only_when_its_heartbeat_stops(tmp_path: Path) -> None:
    owner(tmp_path, "far", place="another machine", pid=1, born="1")
    with Claims(tmp_path, patience=0.4) as ours:
        until = time.monotonic() + 1.2
        beat = 0
        while time.monotonic() < until:  # three times as long as one that stands still is given
            owner(tmp_path, "far", place="another machine", pid=1, born="1", beat=(beat := beat + 1))
            assert not ours.take("a"), "it beat just now"
        wait_for(lambda: ours.take("a"))


def test_an_owner_that_lost_its_claims_finds_out(tmp_path: Path) -> None:
    with Claims(tmp_path, beat=0.05) as sleeper:
        assert sleeper.take("a")
        (tmp_path / "owners" / f"{sleeper.name}.json").unlink()  # as one does who takes over
        with Claims(tmp_path) as other:
            assert other.take("a")
            assert not sleeper.take("a"), "it was ours once"
            assert not sleeper.take("b"), "and nothing else is ours any more"
            assert sleeper.lost
            sleeper.drop("a")
            assert (tmp_path / "a.claim").read_text() == other.name, "a claim of another one is not ours to drop"


def test_a_heartbeat_does_not_restore_a_removed_owner(tmp_path: Path) -> None:
    with Claims(tmp_path, beat=0.05) as sleeper:
        mine = tmp_path / "owners" / f"{sleeper.name}.json"
        with hold_lock(tmp_path / ".mutex"):  # as one does who takes over, while a beat waits
            time.sleep(0.2)
            mine.unlink()
        wait_for(lambda: sleeper.lost)
        assert not mine.exists()


def test_an_unreadable_owner_gets_its_full_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared folder may fail occasionally while a file is replaced every second."""
    owner(tmp_path, "far", place="another machine", pid=1, born="1")
    with Claims(tmp_path, patience=0.3) as ours:

        def stale(path: Path) -> None:
            raise HeadwayError("stale file handle")

        monkeypatch.setattr("headway.trials.claims.disk.read_json", stale)
        assert not ours.take("a")
        wait_for(lambda: ours.take("a"))


def test_a_dead_owners_claim_on_a_finished_trial_is_removed(tmp_path: Path) -> None:
    owner(tmp_path, "gone", pid=2**22 - 1, born="1")
    with Claims(tmp_path) as ours, Claims(tmp_path) as other:
        assert other.take("b")
        for address in ("a", "b", "c"):
            ours.tidy(address)
        assert [path.stem for path in tmp_path.glob("*.claim")] == ["b"]


def test_dead_owners_are_removed(tmp_path: Path) -> None:
    owner(tmp_path, "gone", pid=2**22 - 1, born="1")
    (tmp_path / "owners" / "broken.json").write_text("{")
    owner(tmp_path, "far", place="another machine", pid=1, born="1")
    with Claims(tmp_path) as ours:
        assert {path.stem for path in (tmp_path / "owners").iterdir()} == {"far", ours.name}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"../../../etc/passwd", b"{}" * 1000])
def test_a_claim_without_an_owner_can_be_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "owners").mkdir()
    (tmp_path / "a.claim").write_bytes(content)
    with Claims(tmp_path) as ours:
        assert ours.take("a")


def race(folder: str, addresses: list[str], answers: Any, all_done: Any) -> None:
    with Claims(Path(folder)) as ours:
        answers.put([address for address in addresses if ours.take(address)])
        all_done.wait(600)  # a driver keeps its claims while it works


def test_claims_of_a_dead_owner_are_each_taken_once_in_a_race(tmp_path: Path) -> None:
    addresses = [f"trial{number}" for number in range(50)]
    owner(tmp_path, "dead", pid=2**22 - 1, born="1")
    for address in addresses:
        (tmp_path / f"{address}.claim").write_text("dead")
    context = multiprocessing.get_context("fork")
    answers, all_done = context.Queue(), context.Event()
    racers = [context.Process(target=race, args=(str(tmp_path), addresses, answers, all_done)) for _ in range(4)]
    for racer in racers:
        racer.start()
    taken = [address for _ in racers for address in answers.get(timeout=600)]
    all_done.set()
    for racer in racers:
        racer.join()
    assert sorted(taken) == sorted(addresses)


def test_a_lock_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path / "x.lock"),
        pytest.raises(HeadwayError, match="another process holds the lock"),
        hold_lock(tmp_path / "x.lock", patience=0.2),
    ):
        pass
    with hold_lock(tmp_path / "x.lock", patience=0.2):
        (tmp_path / "x.lock").unlink()
    with hold_lock(tmp_path / "x.lock", patience=0.2):
        pass
