"""Progress without a terminal: an occasional line with a realistic remaining time."""

from __future__ import annotations

import pytest

from headway import progress
from headway.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_short_work_is_silent(clock: list[float], capsys) -> None:
    with Progress("short") as watch:
        for done in range(11):
            clock[0] = done * 0.1
            watch(done, 10)
    assert capsys.readouterr().err == ""


def test_long_work_prints_now_and_then_and_at_the_end(clock: list[float], capsys) -> None:
    with Progress("long") as watch:
        for done in range(101):
            clock[0] = done * 1.0
            watch(done, 100, "loss 0.5")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "long: 16 of 100  loss 0.5  84 s left"
    assert lines[-1] == "long: 100 of 100  loss 0.5  0 s left"
    assert len(lines) == 7


def test_after_a_resume_the_time_left_counts_only_what_was_done_here(clock: list[float], capsys) -> None:
    with Progress("resumed") as watch:
        for done in range(80, 100):
            clock[0] = (done - 80) * 2.0
            watch(done, 100)
    assert "resumed: 88 of 100    24 s left" in capsys.readouterr().err


def test_quiet_is_quiet(clock: list[float], capsys) -> None:
    with Progress("quiet", quiet=True) as watch:
        clock[0] = 100.0
        watch(5, 10)
    assert capsys.readouterr().err == ""
