"""Subject files under a pattern: each finds its own files, also where all of them are links to one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from handing_in import ADAPTER, HEALTHY, KEEPS_START, write_submission

from headway.api.examining import examine_all


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_in_a_subject_file_start_at_its_folder(home: Path) -> None:
    for name, evaluation in {"anna": HEALTHY, "ben": KEEPS_START}.items():
        write_submission(home / name, evaluation)
        (home / name / "subject.py").write_text(ADAPTER)
    before = list(sys.path)
    found = examine_all(["*/subject.py:build"])
    assert [each.refused for each in found] == [None, None]
    assert [each.subject for each in found] == ["anna/subject.py:build", "ben/subject.py:build"]
    assert [each.causes for each in found] == [[], ["greedy"]]
    assert (Path(os.getcwd()), sys.path) == (home, before)


def test_a_file_that_all_submissions_link_to_finds_the_modules_beside_the_link(home: Path) -> None:
    (home / "shared.py").write_text(ADAPTER)
    for name, evaluation in {"anna": HEALTHY, "ben": KEEPS_START}.items():
        write_submission(home / "handed in" / name, evaluation)
        (home / "handed in" / name / "subject.py").symlink_to(home / "shared.py")
    found = examine_all(["handed in/*/subject.py:build"])
    assert [each.refused for each in found] == [None, None]
    assert [each.causes for each in found] == [[], ["greedy"]]


def test_a_submission_never_gets_the_modules_of_another(home: Path) -> None:
    for name in ("anna", "ben"):
        write_submission(home / name, HEALTHY)
        (home / name / "subject.py").write_text(ADAPTER)
    (home / "ben" / "evaluate.py").unlink()
    anna, ben = examine_all(["*/subject.py:build"])
    assert anna.healthy
    assert "No module named 'evaluate'" in str(ben.refused)
