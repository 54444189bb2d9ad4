"""Every fault test records its fault and the outcome; `make proof` writes them into a table."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HEAD = ("| fault | what came of it | test | also in `make test` |", "|---|---|---|---|")
BEGIN, END = "<!-- faults: written by make proof -->", "<!-- end of faults -->"


@pytest.fixture
def record_outcome(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """Records the outcome of a fault, for the table in docs/reliability.md."""
    marker = request.node.get_closest_marker("fault")
    assert marker is not None, "a fault test is marked with the fault"
    record_property("fault", marker.args[0])
    record_property("quick", request.node.get_closest_marker("slow") is None)
    return lambda outcome: record_property("outcome", outcome)


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Mounts a small disk, whose size the test file sets."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={request.module.DISK}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    target = os.environ.get("HEADWAY_RELIABILITY")
    if not target:
        return
    rows = []
    for state in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(state, []):
            properties = dict(getattr(report, "user_properties", []))
            if "fault" in properties and (report.when == "call" or state != "passed"):
                outcome = properties.get("outcome", "not seen")
                daily = "yes" if properties["quick"] else ""
                rows.append((properties["fault"], f"| {properties['fault']} | {outcome} | {state} | {daily} |"))
    path = Path(target)
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    there, _, after = rest.partition(END)
    seen = {fault for fault, _ in rows}
    for line in there.splitlines()[3:]:  # of faults that this run had nothing to do with
        fault = line.strip("| ").partition(" | ")[0]
        rows += [] if fault in seen else [(fault, line)]
    table = [BEGIN, *HEAD, *(row for _, row in sorted(rows)), END]
    path.write_text(before + "\n".join(table) + after, encoding="utf-8")
    terminalreporter.write_line(f"{len(rows)} faults are in {path}")
