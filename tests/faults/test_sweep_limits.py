"""Trials that leak memory, hang or cannot start; and ten thousand well-behaved ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sweeping import ONE, check_whole, done, start, sweep, sweep_file, table, wait_for

from headway.cli import main

MISBEHAVING = '''
import time
from dataclasses import dataclass

import torch
from headway.tasks import Addition

HOARD = []


@dataclass(frozen=True)
class Sums(Addition):
    """Sums that go wrong when they are told to."""

    wrong: str = ""

    def draw(self, dice, probe, length):
        if self.wrong == "leaks":
            HOARD.append(torch.ones(20_000_000))
        if self.wrong == "sleeps":
            time.sleep(10_000)
        if self.wrong == "counts":
            sum(range(10**14))  # holds the interpreter: no signal is answered
        if self.wrong == "dies":
            import os
            os.abort()
        if self.wrong == "raises":
            raise RuntimeError("a mistake of the user's own")
        if self.wrong == "forks":
            import os
            if os.fork() == 0:
                time.sleep(10_000)
            os._exit(3)
        if self.wrong == "asks":
            input("what now?")
        if self.wrong == "exits":
            raise SystemExit(7)
        if self.wrong == "denied":
            raise PermissionError(13, "Permission denied", "/data/of/mine.bin")
        return super().draw(dice, probe, length)


def build(wrong, seeds=2, timeout=600):
    return {
        "base": {
            "task": "misbehaving:Sums", "d_model": 8, "heads": 2, "d_ff": 16, "layers": 1, "decoder_layers": 1,
            "steps": 20, "batch": 8, "options": {"digits": 2}, "seeds": seeds,
        },
        "axis": [{"option.wrong": ["", *wrong]}],
        "studies": {"evaluate": {"examples": 200}},
        "resources": {"memory": "1GB", "timeout": timeout, "retries": 1},
    }


def leaks(): return build(["leaks"])
def hangs(): return build(["sleeps", "counts"], timeout=10)
def fails(): return build(["dies", "raises", "forks", "asks", "exits", "denied"], seeds=1)
def peace(): return build([])
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Writes a Python file with a user's task and sweeps of it."""
    (tmp_path / "misbehaving.py").write_text(MISBEHAVING)
    return tmp_path / "misbehaving.py"


def failures(out: Path) -> dict[str, dict[str, str]]:
    """Returns the record of each failed trial, by what was wrong with it."""
    kept = [json.loads(path.read_text()) for path in (out / "failures").glob("*.json")]
    return {f"{each['settings']['option.wrong']} {each['settings']['seed']}": each for each in kept}


def of_the_good(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if ",done," in line]


@pytest.mark.fault("a trial leaks memory until it may have no more")
@pytest.mark.slow
def test_a_leak_ends_at_the_limit(own: Path, tmp_path: Path, record_outcome: Callable[[str], None]) -> None:
    found = sweep(f"{own}:leaks", out := tmp_path / "out", *ONE, status=1)
    assert (found["done"], len(found["failed"])) == (2, 2)
    kept = failures(out)
    assert sorted(kept) == ["leaks 0", "leaks 1"]
    assert all(each["kind"] == "OutOfMemory" and "exceeded its memory limit" in each["error"] for each in kept.values())
    check_whole(out, {}, trials=2)
    peace = tmp_path / "peace"
    sweep(f"{own}:peace", peace, *ONE)
    assert of_the_good(table(out)) == of_the_good(table(peace))
    record_outcome("failed at its limit of 1 GB, with the reason kept; the other trials as in an undisturbed sweep")


@pytest.mark.fault("a trial hangs: asleep, and in a loop that answers no signal")
@pytest.mark.slow
def test_a_trial_that_hangs_is_given_up(own: Path, tmp_path: Path, record_outcome: Callable[[str], None]) -> None:
    began = time.monotonic()
    found = sweep(f"{own}:hangs", out := tmp_path / "out", status=1)
    assert (found["done"], len(found["failed"])) == (2, 4)
    kept = failures(out)
    assert all("longer than" in each["error"] for each in kept.values()), kept
    assert all("in draw" in each["tail"] for each in kept.values()), "where it hung is in the log's tail"
    check_whole(out, {}, trials=2)
    seconds = time.monotonic() - began
    record_outcome(
        f"4 of 4 given up after their 10 seconds, with the place where they hung; 2 others done; {seconds:.0f} s in all"
    )


@pytest.mark.fault("trials that abort, exit, raise, ask a question, fork a child that outlives them")
@pytest.mark.slow
def test_a_failure_is_kept_with_the_end_of_its_log(
    own: Path, tmp_path: Path, record_outcome: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    found = sweep(f"{own}:fails", out := tmp_path / "out", status=1)
    assert (found["done"], len(found["failed"])) == (1, 6)
    kept = failures(out)
    assert "status 3" in kept["forks 0"]["error"], "a child that outlives its worker keeps nobody waiting"
    assert kept["asks 0"]["error"].startswith("EOFError")
    assert kept["exits 0"]["error"] == "SystemExit: 7"
    assert "PermissionError" in kept["denied 0"]["error"], "a file of the user's own is no reason to end the sweep"
    assert "SIGABRT" in kept["dies 0"]["error"]
    assert kept["dies 0"]["attempts"] == 2, "begun again once, as asked"
    assert kept["raises 0"]["error"] == "RuntimeError: a mistake of the user's own"
    assert "in draw" in kept["raises 0"]["tail"]
    assert kept["raises 0"]["attempts"] == 1, "what a trial raises it would raise again"
    capsys.readouterr()
    assert main(["sweep", f"{own}:fails", "--out", str(out), "--json", "--quiet", "--fail-fast", *ONE]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "failed: " in said
    record_outcome("6 failed with reason, place and log kept, the other one done; --fail-fast ends at the first")


@pytest.mark.fault("ten thousand tiny trials, the driver killed half-way")
@pytest.mark.slow
def test_ten_thousand_trials(
    tmp_path: Path, record_outcome: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, trials = sweep_file(tmp_path, steps=1, trials=10_000), tmp_path / "out", 10_000
    text = file.read_text().replace("[studies.evaluate]\nexamples = 200\n", "")
    file.write_text(text)
    process = start(file, out)
    wait_for(lambda: (out / "runs").is_dir() and len(list((out / "runs").iterdir())) > trials / 2, process, 900)
    process.kill()
    process.communicate()
    half = len(list(out.glob("runs/*/training.json")))
    process = start(file, out)
    shown, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said
    found = json.loads(shown)
    assert (found["done"] + found["reused"], found["failed"]) == (trials, [])
    assert found["reused"] >= half
    overhead = (found["seconds"] * found["slots"] - found["busy_seconds"]) / found["done"] * 1000
    assert len({row["run"] for row in found["rows"]}) == trials
    assert not done(out)  # no study, no record of one
    with capsys.disabled():
        print(
            f"\n{found['done']:,} trials of {trials:,} in {found['seconds']:.1f} s: {overhead:.1f} ms of overhead each"
        )
    record_outcome(f"{half:,} done when it was killed, all kept; {overhead:.1f} ms of overhead a trial for the rest")
