"""A real full disk: a small tmpfs, where this user may mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli import main

DISK = "1m"


@pytest.mark.fault("the disk is full in training")
def test_a_full_disk_gives_one_line_and_no_half_file(
    small_disk: Path, capsys, record_outcome: Callable[[str], None]
) -> None:
    """The weights alone are four megabytes."""
    assert main(["train", "addition", "--steps", "2", "--batch", "4", "--out", str(small_disk / "run"), "--quiet"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "no space is left on the disk" in shown
    assert not list(small_disk.rglob("*.safetensors"))
    assert not list(small_disk.rglob("*.part"))
    assert (small_disk / "run" / "config.json").exists()
    record_outcome("one line, no half file, what was there before is whole")


@pytest.mark.fault("the disk was full in training, and has room again")
def test_a_run_on_a_disk_that_was_full_goes_on_once_there_is_room(
    small_disk: Path, capsys, record_outcome: Callable[[str], None]
) -> None:
    words = ["train", "addition", "--steps", "3", "--batch", "4", "--out", str(small_disk / "run"), "--quiet"]
    assert main(words) == 2
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert main([*words, "--resume"]) == 0
    assert (small_disk / "run" / "model.safetensors").exists()
    record_outcome("the same command goes on with --resume")
