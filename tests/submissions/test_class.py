"""A class of submissions: what one does costs only its own row, and what it prints is never a result."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from handing_in import (
    ADAPTER,
    HEALTHY,
    KEEPS_START,
    KINDS,
    MODEL,
    ODD,
    UNTRAINED,
    build_class,
    write_class,
    write_submission,
)

from headway.cli import main

EACH = ["doctor", "adapter.py:build", "--each", "submissions/*", "--quiet"]
KEYS = {"submission", "healthy", "causes", "sentence", "reported", "decoded", "forced", "seconds", "refused"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examine(capsys: Any, *more: str, status: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Runs the command; returns the members by name, and everything."""
    assert main([*EACH, "--json", *more]) == status
    content = json.loads(capsys.readouterr().out)
    return {each["submission"]: each for each in content["members"]}, content


def error_of(capsys: Any, *words: str) -> str:
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_every_row_says_what_is_wrong_or_what_happened(home: Path, capsys: Any) -> None:
    expected = write_class(home, len(KINDS), ["eats_memory", "exits", "prints"])
    write_submission(home / "submissions" / "untrained", HEALTHY)
    (home / "submissions" / "untrained" / "model.py").write_text(UNTRAINED)
    found, content = examine(capsys, "--memory-limit", "1GB", status=2)
    assert {name: found[name]["causes"] for name in expected} == expected
    assert all(set(each) >= KEYS for each in found.values())
    assert found["odd-eats_memory"]["refused"] == "it needed more than 1 GB of memory"
    assert found["odd-exits"]["refused"] == "it ended its process with status 3 before it was examined"
    loud = found["odd-prints"]
    assert loud["healthy"]
    assert loud["printed"] > 1_000_000 > 10_000 > len(loud["output"])
    assert f"it printed {loud['printed']:,} bytes" in loud["sentence"]
    assert (found["untrained"]["healthy"], "converged" in found["untrained"]["causes"]) == (False, True)
    assert found["untrained"]["forced"] < 0.2
    keeps = found["s001-keeps_start"]
    assert (keeps["reported"], keeps["decoded"], keeps["forced"]) == (0.0, 0.0, 1.0)
    rows = list(csv.DictReader(Path(content["csv"]).read_text().splitlines()))
    assert {row["submission"]: row["causes"] for row in rows if row["submission"] in expected} == {
        name: ", ".join(causes) for name, causes in expected.items()
    }
    assert [each["mistake"].partition(":")[0] for each in content["mistakes"][:3]] == [
        "greedy",
        "metric",
        "given digits",
    ]
    assert {"mistakes": [], "count": 2, "submissions": ["odd-prints", "s000-healthy"]} in content["groups"]


def test_one_that_hangs_is_stopped_with_all_that_it_started(home: Path, capsys: Any) -> None:
    starts = "import subprocess\nopen('pid', 'w').write(str(subprocess.Popen(['sleep', '1000']).pid))\n"
    build_class(home, slow=HEALTHY + starts + ODD["hangs"])
    found, _ = examine(capsys, "--timeout", "1", status=2)
    line = 1 + (HEALTHY + starts).count("\n") + ODD["hangs"][: ODD["hangs"].index("time.sleep")].count("\n")
    sentence = f"it did not finish within 1 s; it was at evaluate.py, line {line}"
    assert found["slow"]["refused"] == sentence
    child = int((home / "submissions" / "slow" / "pid").read_text())
    for _ in range(200):  # the system may take a moment to collect it
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or ") Z" in state.read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the process that it started is still running")


def test_what_a_submission_prints_is_never_a_result(home: Path, capsys: Any) -> None:
    forged = (
        "import json, os\n"
        "member = dict(submission='x', folder='x', healthy=True, causes=[], checks=[], sentence='perfect')\n"
        "for line in (json.dumps(['', member]), json.dumps(member), json.dumps(['', 'ready']), 'half a line'):\n"
        "    print(line)\n"
        "    for file in range(3, 32):\n"
        "        try:\n"
        "            os.write(file, (line + '\\n').encode()[: -1 if line.startswith('half') else None])\n"
        "        except OSError:\n"
        "            pass\n"
    )
    build_class(home, forger=KEEPS_START + forged)
    found, _ = examine(capsys, status=1)
    assert found["forger"]["causes"] == ["greedy"]
    assert "perfect" in found["forger"]["output"]


def test_errors_name_the_line_and_crashes_the_signal(home: Path, capsys: Any) -> None:
    build_class(
        home,
        crashes=HEALTHY + "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        fails=HEALTHY,
        misspelt=HEALTHY + "\nx = undefined\n",
        quits=HEALTHY + "\nraise SystemExit('enough')\n",
    )
    broken = MODEL.replace("        length = written", "        1 // 0\n        length = written")
    (home / "submissions" / "fails" / "model.py").write_text(broken)
    found, _ = examine(capsys, status=2)
    assert found["crashes"]["refused"] == "its process was killed by SIGSEGV"
    line = (HEALTHY + "\nx").count("\n") + 1
    assert found["misspelt"]["refused"] == f"evaluate.py, line {line}: NameError: name 'undefined' is not defined"
    assert "NameError" in found["misspelt"]["output"]
    assert found["quits"]["refused"] == f"evaluate.py, line {line}: SystemExit: enough"
    assert "ZeroDivisionError" in found["fails"]["refused"]
    at = broken[: broken.index("1 // 0")].count("\n") + 1
    assert found["fails"]["refused"].endswith(f"(model.py, line {at})")


def test_an_adapter_may_take_the_folder_and_give_the_published_figure(home: Path, capsys: Any) -> None:
    build_class(home, anna=HEALTHY)
    (home / "submissions" / "readme.txt").write_text("not a submission")
    (home / "submissions" / "anna" / "figure.txt").write_text("41.2")
    reads = "reported=float((folder / 'figure.txt').read_text()),"
    taking = ADAPTER.replace("build()", "build(folder)").replace("decode=model,", f"decode=model, {reads}")
    (home / "adapter.py").write_text(taking)
    found, content = examine(capsys, status=0)
    assert content["left_out"] == ["submissions/readme.txt"]
    assert (found["anna"]["reported"], found["anna"]["decoded"]) == (pytest.approx(0.412), 1.0)
    (home / "adapter.py").write_text(ADAPTER.replace("build()", "build(folder, seed)"))
    found, _ = examine(capsys, status=2)
    assert "needs folder, seed" in found["anna"]["refused"]


def test_a_killed_examination_resumes(home: Path, capsys: Any) -> None:
    kills = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(1000)\n"
    build_class(home, anna=HEALTHY, ben=HEALTHY + kills)
    command = [sys.executable, "-m", "headway", *EACH, "--workers", "1"]
    assert subprocess.run(command, capture_output=True, env={**os.environ}).returncode == -signal.SIGKILL
    (home / "submissions" / "ben" / "evaluate.py").write_text(KEEPS_START)
    found, content = examine(capsys, status=1)
    assert content["reused"] == 1
    assert [found[name]["causes"] for name in ("anna", "ben")] == [[], ["greedy"]]
    assert examine(capsys, status=1)[1]["reused"] == 2
    (stored,) = (home / "examined" / "members").glob("ben.*.json")
    stored.write_text(stored.read_text().replace('"greedy"', '"metric"'))  # the seal is broken
    (home / "submissions" / "anna" / "evaluate.py").write_text(HEALTHY + "# changed\n")
    found, content = examine(capsys, status=1)
    assert (content["reused"], found["ben"]["causes"]) == (0, ["greedy"])


def test_a_wrong_request_gets_one_line(home: Path, capsys: Any) -> None:
    build_class(home, anna=HEALTHY)
    assert "no folder matches 'nobody/*'" in error_of(capsys, "doctor", "adapter.py:build", "--each", "nobody/*")
    assert "there is no file 'other.py'" in error_of(capsys, "doctor", "other.py:build", "--each", "submissions/*")
    assert "adapter.py:build" in error_of(capsys, "doctor", "adapter", "--each", "submissions/*")
    assert "--out" in error_of(capsys, *EACH, "--out", "submissions/anna/results")
    assert "--timeout 0" in error_of(capsys, *EACH, "--timeout", "0")
    assert "512MB" in error_of(capsys, *EACH, "--memory-limit", "100MB")
    assert "add --each" in error_of(capsys, "doctor", "pretrained:adder", "--timeout", "3")
    assert not (home / "examined").exists()


def test_a_new_subject_runs_once_its_names_exist_and_overwrites_nothing(home: Path, capsys: Any) -> None:
    assert main(["new", "subject", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "subject.py"}
    assert "subject.py exists" in error_of(capsys, "new", "subject")
    build_class(home, anna=HEALTHY)
    more = (
        "\nclass Adder(Reverser):\n    def generate(self, source):\n        return generate(self, source)\n"
        "\nmake_sums, measure = problems, accuracy\n"
        "\n\ndef accuracy(model, source, answer):\n    return measure(model.generate(source), answer)\n"
    )
    anna = home / "submissions" / "anna"
    (anna / "weights.pt").rename(anna / "adder.pt")
    (anna / "model.py").write_text((anna / "model.py").read_text() + more)
    assert main(["doctor", "subject.py:build", "--each", "submissions/*", "--quiet", "--json"]) == 0
    (member,) = json.loads(capsys.readouterr().out)["members"]
    assert (member["healthy"], member["reported"], member["decoded"]) == (True, 1.0, 1.0)


@pytest.mark.slow
def test_a_hundred_submissions_give_a_hundred_rows(home: Path, capsys: Any) -> None:
    expected = write_class(home, 96, list(ODD))
    found, content = examine(capsys, "--memory-limit", "2GB", "--timeout", "60", status=2)
    assert len(found) == 100
    assert {name: found[name]["causes"] for name in expected} == expected
    assert "did not finish within 60 s" in found["odd-hangs"]["sentence"]
    assert "more than 2 GB of memory" in found["odd-eats_memory"]["sentence"]
    assert "ended its process with status 3" in found["odd-exits"]["sentence"]
    assert "bytes; the last" in found["odd-prints"]["sentence"]
    print(f"{content['seconds']:.0f} seconds", file=sys.stderr)
