"""docs/heads-and-memory.md is run as it is printed: from a model to a smaller cache."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "heads-and-memory.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
COMMANDS = [line.split() for line in re.findall(r"^    headway (.*)$", DOCUMENT, re.MULTILINE)]
SAID = " ".join(DOCUMENT.split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_model_to_a_smaller_cache_in_ten_lines() -> None:
    code = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(COMMANDS) == 2
    assert len(COMMANDS) + len(code) <= 10


@pytest.mark.slow
def test_the_commands_print_what_the_document_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heads, prune = COMMANDS
    assert main([*heads, "--quiet", "--json", "--device", "cpu"]) == 0
    studied = json.loads(capsys.readouterr().out)
    for finding in studied["findings"][:2]:
        first = " ".join(finding.split()).removesuffix(
            " Found by narrowing them one by one (greedy); a larger set may exist."
        )
        assert first in SAID
    assert main([*prune, "--quiet", "--json", "--device", "cpu"]) == 0
    saved = json.loads(capsys.readouterr().out)
    for finding in saved["findings"]:
        assert finding.startswith("loss at") or " ".join(finding.split()) in SAID
    exec(BLOCKS[0], {})
    assert capsys.readouterr().out.strip() in SAID


def test_the_lines_run_on_a_budget_written_by_hand(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The quick half: the budget of the document is saved with the model, whose lines then run as printed."""
    names: dict[str, object] = {}
    exec(BLOCKS[1], names)
    assert f"It prints `{capsys.readouterr().out.strip()}`" in SAID
    names["budget"].write(here / "budget.json")  # pyright: ignore[reportAttributeAccessIssue]
    words = ["prune", "recipes/recall/rotary", "--windows", "budget.json", "--out", "runs/narrow", "--quiet", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0] in SAID
    exec(BLOCKS[0], {})
    assert f"It prints `{capsys.readouterr().out.strip()}`" in SAID
