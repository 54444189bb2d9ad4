"""The commands of docs/context-length.md print what the document says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.attach.cures import NONE
from headway.cli import main
from headway.lengths.language.recall import TASKS

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "context-length.md").read_text()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_prints_what_the_document_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (line.split() for line in re.findall(r"^    headway (.*)$", DOCUMENT, re.MULTILINE)[:2])
    assert main([*first, "--quiet", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    said = " ".join(DOCUMENT.split())
    assert found["findings"]
    for sentence in found["findings"]:
        assert " ".join(sentence.split()) in said
    assert main([*second, "--quiet"]) == 0
    assert (here / "study" / "report.html").exists()


def test_the_tables_name_every_task_and_every_cure(here: Path) -> None:
    from headway.attach.cures import OF_ORDER

    named = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| .*$", DOCUMENT, re.MULTILINE)))
    cures = {cure for own in OF_ORDER.values() for cure in own} | {"log-length", "window", "sinks"}
    assert {*TASKS, *cures} - {NONE} <= set(named)
