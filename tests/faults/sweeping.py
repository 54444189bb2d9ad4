"""A small real sweep for the fault tests, started as users start it, and checks of its result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from headway.cli import main
from headway.runs.folder import RunFolder

TRIALS, FEW = 8, 4
"""The number of trials of a sweep, and of one where a few are enough."""
SWEEP = """
[base]
task = "addition"
d_model = 8
heads = 2
d_ff = 16
layers = 1
decoder_layers = 1
steps = STEPS
batch = 8
seeds = SEEDS
options = {digits = 2}
[[axis]]
positions = ["learned", "sinusoidal"]
[studies.evaluate]
examples = 200
[resources]
retries = 10
"""
ONE = ("--workers", "1")
"""One worker, where parallelism does not matter: a process takes seconds to start."""
HEADWAY = [sys.executable, "-m", "headway.cli"]


def sweep_file(folder: Path, steps: int = 120, trials: int = TRIALS) -> Path:
    path = folder / "faults.toml"
    path.write_text(SWEEP.replace("STEPS", str(steps)).replace("SEEDS", str(trials // 2)))
    return path


def start(file: Path | str, out: Path, *words: str, **settings: Any) -> subprocess.Popen[str]:
    """Starts a driver process that can be interrupted even if the parent of the tests ignores Ctrl-C."""
    return subprocess.Popen(
        [*HEADWAY, "sweep", str(file), "--out", str(out), "--json", "--quiet", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **settings,
    )


def finish(process: subprocess.Popen[str], status: int = 0, seconds: float = 900) -> dict[str, Any]:
    """Returns the output of a driver that ends by itself."""
    shown, said = process.communicate(timeout=seconds)
    assert process.returncode == status, said[-3000:]
    return json.loads(shown)


def sweep(file: Path | str, out: Path, *words: str, status: int = 0) -> dict[str, Any]:
    """Returns the output of an undisturbed driver; it runs in this process, unless Ray would stay in it."""
    if "ray" in words:
        return finish(start(file, out, *words), status)
    with redirect_stdout(StringIO()) as shown:
        assert main(["sweep", str(file), "--out", str(out), "--json", "--quiet", *words]) == status
    return json.loads(shown.getvalue())


def table(out: Path) -> str:
    return (out / "table.csv").read_text()


def done(out: Path) -> dict[str, bytes]:
    """Returns the records of the finished trials, by address."""
    return {path.parent.name: path.read_bytes() for path in out.glob("runs/*/trial.json")}


def wait_for(what: Callable[[], object], process: subprocess.Popen[str], seconds: float = 600) -> None:
    """Waits until a condition holds or the process has ended."""
    until = time.monotonic() + seconds
    while process.poll() is None and not what():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Returns the running children of a process."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_whole(out: Path, before: dict[str, bytes], trials: int = TRIALS, owners: bool = True) -> None:
    """Checks that no finished trial is lost, none is there twice, and every file matches its record."""
    after = done(out)
    assert len(after) == trials
    for address, record in before.items():
        assert after[address] == record, f"{address} was done, and was made again"
    for address, record in after.items():
        folder = RunFolder(out / "runs" / address)
        folder.verify()
        for path in folder.path.glob("*.json"):
            json.loads(path.read_text())
        assert json.loads(record)["trial"] == folder.config().digest
    assert not list((out / "claims").glob("*.claim")), "a claim was left"
    assert not owners or not list((out / "claims" / "owners").glob("*.json"))
    assert not [path for path in out.rglob("*.part") if "broken" not in path.parts], "half a file was left"


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
