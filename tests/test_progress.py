"""Progress without a terminal: an occasional line with a realistic remaining time."""

from __future__ import annotations

import pytest

from headway import progress
from headway.progress import Progress, Stages, about


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
    assert "resumed: 88 of 100  24 s left" in capsys.readouterr().err


def test_quiet_is_quiet(clock: list[float], capsys) -> None:
    with Progress("quiet", quiet=True) as watch:
        clock[0] = 100.0
        watch(5, 10)
    assert capsys.readouterr().err == ""


def test_no_time_is_promised_before_the_pace_is_known(clock: list[float], capsys) -> None:
    with Progress("slow start") as watch:
        watch(0, 1_000_000)
        clock[0] = 16.0  # loading, say: the pace of the work itself is not known yet
        watch(100, 1_000_000)
        for done in range(1, 11):
            clock[0] = 16.0 + 16.0 * done
            watch(done * 50_000, 1_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "slow start: 100 of 1,000,000"
    assert lines[-1] == "slow start: 500,000 of 1,000,000  176 s left"


def run_stages(clock: list[float], seconds: dict[str, float], work: Stages) -> None:
    for name, spent in seconds.items():
        with work.stage(name), Progress("counting") as watch:
            for done in range(5):
                clock[0] += spent / 4 if done else 0.0
                watch(done, 4)


def test_the_time_left_of_all_stages_scales_with_those_that_ended(clock: list[float], capsys) -> None:
    expected = {"one": 10.0, "two": 20.0, "three": 30.0}
    run_stages(clock, {"one": 30.0, "two": 80.0, "three": 90.0}, Stages("Lab", expected))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Lab 1/3, one: counting: 3 of 4  8 s left"  # nobody knows yet how long the others take
    assert "Lab 1/3, one, done in 30 s; 2 min 30 s left" in lines  # this machine takes three times as long
    assert "Lab 2/3, two: counting: 1 of 4  60 s left  2 min 10 s left in all" in lines
    assert "Lab 2/3, two, done in 1 min 20 s; 1 min 50 s left" in lines
    assert lines[-1] == "Lab 3/3, three, done in 1 min 30 s"


def test_reused_stages_say_nothing_about_the_pace(clock: list[float], capsys) -> None:
    work = Stages("Lab", {"one": 10.0, "two": 20.0})
    run_stages(clock, {"one": 0.1}, work)
    assert work.left() is None
    assert "left" not in capsys.readouterr().err
    run_stages(clock, {"two": 40.0}, work)
    assert work.left() == 0


def test_quiet_stages_are_quiet(clock: list[float], capsys) -> None:
    work = Stages("Lab", {"one": 10.0}, quiet=True)
    with work.stage("one"):
        clock[0] += 30.0
    assert capsys.readouterr().err == ""
    assert work.seconds == {"one": 30.0}


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (7.6, "8 s"), (58.0, "1 min"), (183.0, "3 min"), (247.0, "4 min 10 s")]
)
def test_seconds_as_people_say_them(seconds: float, words: str) -> None:
    assert about(seconds) == words
