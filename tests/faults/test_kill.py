"""SIGKILL at random moments of a real training process, and Ctrl-C: nothing is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli import main

TRAIN = [
    "train", "addition", "--steps", "90", "--batch", "32", "--d-model", "32", "--d-ff", "64", "--layers", "1",
    "--decoder-layers", "1", "--checkpoint-every", "3", "--quiet",
]  # fmt: skip
WORDS = [sys.executable, "-m", "headway.cli", *TRAIN]


def start(out: Path) -> subprocess.Popen[str]:
    """Starts a process that can be interrupted even if the tests run in the background, where Ctrl-C is ignored."""
    return subprocess.Popen(
        [*WORDS, "--out", str(out), "--resume"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_new_checkpoint(process: subprocess.Popen[str], out: Path) -> bool:
    """Tells whether a checkpoint was written while the process ran."""
    pointer = out / "checkpoint" / "latest.json"
    before = pointer.read_bytes() if pointer.exists() else b""
    while process.poll() is None:
        if pointer.exists() and pointer.read_bytes() != before:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=pytest.mark.fault("SIGKILL of a training run, twice")),
        pytest.param(6, marks=[pytest.mark.slow, pytest.mark.fault("SIGKILL of a training run, again and again")]),
    ],
)
def test_a_run_killed_again_and_again_ends_with_the_bytes_of_one_never_killed(
    tmp_path: Path, record_outcome: Callable[[str], None], kills: int
) -> None:
    assert main([*TRAIN, "--out", str(tmp_path / "whole")]) == 0
    whole = (tmp_path / "whole" / "model.safetensors").read_bytes()
    chance, out, killed = random.Random(), tmp_path / "killed", 0
    while killed < kills:
        process = start(out)
        if wait_for_new_checkpoint(process, out):
            time.sleep(chance.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:
            break
        killed += 1
    assert killed >= 2
    process = start(out)
    _, shown = process.communicate()
    assert process.returncode == 0, shown
    assert (out / "model.safetensors").read_bytes() == whole
    assert not (out / "checkpoint").exists()
    assert not list(out.glob(".*.part"))
    record_outcome(f"killed {killed} times, the same bytes as one never killed")


@pytest.mark.fault("SIGKILL of a population in training, twice")
@pytest.mark.slow
def test_a_population_killed_and_resumed_ends_with_the_bytes_of_one_never_killed(
    tmp_path: Path, record_outcome: Callable[[str], None]
) -> None:
    words = [*WORDS, "--population", "3"]
    subprocess.run([*words, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    out, again = tmp_path / "killed", [*words, "--out", str(tmp_path / "killed"), "--resume"]

    def reached() -> list[bytes]:
        return [path.read_bytes() for path in out.glob("seed-*/checkpoint/latest.json")]

    for _ in range(2):
        before = reached()
        process = subprocess.Popen(again, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and reached() in ([], before):
            time.sleep(0.01)
        time.sleep(random.Random().uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    subprocess.run(again, check=True, capture_output=True)
    for seed in range(3):
        ours, theirs = (tmp_path / home / f"seed-{seed}" / "model.safetensors" for home in ("killed", "whole"))
        assert ours.read_bytes() == theirs.read_bytes()
    record_outcome("3 of 3 members with the same bytes as ones never killed")


@pytest.mark.fault("Ctrl-C in training")
def test_ctrl_c_ends_in_one_line_that_says_how_to_go_on(tmp_path: Path, record_outcome: Callable[[str], None]) -> None:
    process = start(tmp_path / "run")
    assert wait_for_new_checkpoint(process, tmp_path / "run")
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=600)
    assert process.returncode == 130
    assert shown.count("\n") == 1
    assert "the last checkpoint is kept; continue with: headway train addition" in shown
    assert shown.rstrip().endswith("--resume")
    assert (tmp_path / "run" / "checkpoint" / "latest.json").exists()
    record_outcome("one line that says how to go on; the last checkpoint is kept")
