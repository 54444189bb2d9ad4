"""Truncated, zero-length and bit-flipped files; a full disk; a folder that may not be written to."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sweeping import ONE, TRIALS, check_whole, done, start, sweep, sweep_file, table

DISK = "320k"
"""Enough space for about two trials."""
FILES = ("config.json", "log.jsonl", "model.safetensors", "training.json", "trial.json", "evaluation-sample.json")


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def emptied(content: bytes) -> bytes:
    return b""


def flipped(content: bytes) -> bytes:
    """Flips one bit that matters: in JSON a bit of a space or a newline would change nothing."""
    places = [place for place, byte in enumerate(content) if byte not in b" \n"]
    place = random.Random(len(content)).choice(places)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGES = {"truncated": truncated, "zero-length": emptied, "bit-flipped": flipped}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a sweep to its end."""
    home = tmp_path_factory.mktemp("whole")
    sweep(sweep_file(home, steps=10), home / "out", *ONE)
    return home


def damage_and_rerun(tmp_path: Path, whole: Path, damage: Callable[[bytes], bytes], files: tuple[str, ...]) -> int:
    """Damages one file in each of several trials, of a different kind each, and runs the command again."""
    shutil.copytree(whole / "out", out := tmp_path / "out")
    addresses = sorted(done(out))
    for address, name in zip(addresses, files, strict=False):
        path = out / "runs" / address / name
        path.write_bytes(damage(path.read_bytes()))
    kept = {address: record for address, record in done(whole / "out").items() if address in addresses[len(files) :]}
    found = sweep(whole / "faults.toml", out, *ONE)
    assert (found["done"], found["reused"], found["failed"]) == (len(files), TRIALS - len(files), [])
    check_whole(out, kept)
    assert table(out) == table(whole / "out")
    return len(files)


@pytest.mark.fault("files of six trials truncated, zero-length and bit-flipped, two each")
def test_broken_files_are_found_and_made_again(
    tmp_path: Path, whole: Path, record_outcome: Callable[[str], None]
) -> None:
    shutil.copytree(whole / "out", out := tmp_path / "out")
    addresses = sorted(done(out))
    for address, name, damage in zip(addresses, FILES, [*DAMAGES.values()] * 2, strict=False):
        path = out / "runs" / address / name
        path.write_bytes(damage(path.read_bytes()))
    found = sweep(whole / "faults.toml", out, *ONE)
    assert (found["done"], found["reused"]) == (6, TRIALS - 6)
    check_whole(out, {})
    assert table(out) == table(whole / "out")
    aside = len(list((out / "broken").iterdir()))
    record_outcome(f"6 found and made again ({aside} folders set aside), {TRIALS - 6} reused, same table")


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.fault("every kind of file of a run folder damaged, in every way")
def test_every_file_in_every_way(
    tmp_path: Path, whole: Path, damage: str, record_outcome: Callable[[str], None]
) -> None:
    count = damage_and_rerun(tmp_path, whole, DAMAGES[damage], FILES)
    record_outcome(f"{damage}: {count} of {count} kinds found and made again, the others reused, same table")


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.fault("checkpoints, claims, owners and failures damaged after a kill")
def test_files_left_by_a_killed_sweep_may_be_damaged_too(
    tmp_path: Path, damage: str, record_outcome: Callable[[str], None]
) -> None:
    file, out = sweep_file(tmp_path, steps=400), tmp_path / "out"
    process = start(file, out)
    while not (list(out.glob("runs/*/checkpoint/latest.json")) and done(out)):
        assert process.poll() is None
    process.kill()
    process.communicate()
    kept, count = done(out), 0
    for path in [*out.glob("runs/*/checkpoint/*"), *out.glob("claims/**/*"), *out.glob("sweep.json")]:
        if path.is_file():
            content = path.read_bytes()
            path.write_bytes(DAMAGES[damage](content) if content else b"\xff")
            count += 1
    (out / "failures").mkdir(exist_ok=True)
    (out / "failures" / "broken.json").write_bytes(b"{")
    found = sweep(file, out)
    assert found["done"] + found["reused"] == TRIALS
    check_whole(out, kept, owners=False)  # one that now seems to be of another machine is given its time
    record_outcome(f"{damage}: {count} files damaged, {len(kept)} trials that were done kept, all {TRIALS} in the end")


@pytest.mark.fault("the disk is full in the middle of a sweep")
def test_a_full_disk_ends_the_sweep_in_one_line(
    tmp_path: Path, whole: Path, small_disk: Path, record_outcome: Callable[[str], None]
) -> None:
    out = small_disk / "out"
    process = start(whole / "faults.toml", out, *ONE)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 2
    assert said.count("\n") == 1, said
    assert "no space is left on the disk" in said
    kept = done(out)
    assert 0 < len(kept) < TRIALS
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    found = sweep(whole / "faults.toml", out, *ONE)
    assert found["reused"] >= len(kept)
    check_whole(out, kept)
    assert table(out) == table(whole / "out")
    record_outcome(f"one line; {len(kept)} of {TRIALS} trials done and kept; with room again the rest, same table")


@pytest.mark.fault("the folder becomes read-only")
@pytest.mark.slow
def test_a_read_only_folder_gives_one_line(
    tmp_path: Path, whole: Path, small_disk: Path, record_outcome: Callable[[str], None]
) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    shutil.copytree(whole / "out", out := small_disk / "out")
    lost = sorted(done(out))[0]
    shutil.rmtree(out / "runs" / lost)
    kept = done(out)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    process = start(whole / "faults.toml", out, *ONE)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 2
    assert said.count("\n") == 1, said
    assert "read-only" in said.lower() or "no permission" in said, said
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    found = sweep(whole / "faults.toml", out, *ONE)
    assert (found["done"], found["reused"]) == (1, TRIALS - 1)
    check_whole(out, kept)
    assert table(out) == table(whole / "out")
    record_outcome(
        f"one line, nothing changed; writable again, the missing trial is made, {TRIALS - 1} reused, same table"
    )
