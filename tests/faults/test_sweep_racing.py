"""Two drivers on one folder, and a clock that goes backwards under both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sweeping import FEW, ONE, TRIALS, check_whole, done, environment, finish, start, sweep, sweep_file, table

BACKWARDS = """
import time
real, real_ns, began = time.time, time.time_ns, time.monotonic()
def back():
    return 3600 * int((time.monotonic() - began) / 0.7)  # an hour back, every 0.7 seconds
time.time = lambda: real() - back()
time.time_ns = lambda: real_ns() - back() * 10**9
"""


@pytest.mark.fault("two drivers race on one folder")
@pytest.mark.slow
def test_two_drivers_share_the_work(tmp_path: Path, record_outcome: Callable[[str], None]) -> None:
    file, out = sweep_file(tmp_path, trials=FEW), tmp_path / "out"
    both = [start(file, out, *ONE), start(file, out, *ONE)]
    found = [finish(process) for process in both]
    assert sum(each["done"] for each in found) == FEW, "a trial was done twice, or not at all"
    for each in found:
        assert (each["done"] + each["reused"], each["failed"]) == (FEW, [])
    check_whole(out, {}, trials=FEW)
    alone = tmp_path / "alone"
    sweep(file, alone, *ONE)
    assert table(out) == table(alone)
    shares = " and ".join(str(each["done"]) for each in found)
    record_outcome(f"{shares} of {FEW} trials, none twice, both end with all of them, same table as one alone")


@pytest.mark.fault("the clock goes backwards, an hour at a time, and files are from the future")
@pytest.mark.slow
def test_no_clock_is_trusted(tmp_path: Path, record_outcome: Callable[[str], None]) -> None:
    file, out = sweep_file(tmp_path), tmp_path / "out"
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(BACKWARDS)
    places = os.pathsep.join(filter(None, [str(tmp_path / "clock"), os.environ.get("PYTHONPATH", "")]))
    both = [start(file, out, env=environment(PYTHONPATH=places)) for _ in range(2)]
    found = [finish(process) for process in both]
    assert sum(each["done"] for each in found) == TRIALS
    tomorrow = time.time() + 86_400
    for path in out.rglob("*"):
        os.utime(path, (tomorrow, tomorrow))
    kept = done(out)
    again = sweep(file, out)
    assert (again["reused"], again["done"]) == (TRIALS, 0)
    check_whole(out, kept)
    sweep(file, tmp_path / "alone")
    assert table(out) == table(tmp_path / "alone")
    record_outcome(f"two drivers did {TRIALS} trials, none twice; files dated tomorrow were reused; same table")
