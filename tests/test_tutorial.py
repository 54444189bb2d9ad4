"""The tutorial: its page and its notebook run from top to bottom, and what the text says of the results is so.

The notebook runs in a kernel of its own, as a reader's does: a cell that needs something from outside it fails.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
PAGE, NOTEBOOK, RECIPE = ROOT / "docs/tutorial.md", ROOT / "docs/tutorial.ipynb", ROOT / "recipes/tutorial_notebook.py"


def load_recipe() -> Any:
    spec = importlib.util.spec_from_file_location("tutorial_notebook", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_page() -> dict[str, Any]:
    """Runs the blocks of the page in order, in one namespace, and returns it."""
    names: dict[str, Any] = {}
    for block in load_recipe().code_blocks(PAGE.read_text()):
        exec(block, names)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_TUTORIAL_OUT", str(tmp_path / "runs"))
    return tmp_path


def check_statements(names: dict[str, Any]) -> None:
    """Asserts what the text says, apart from what only a full training shows."""
    assert (names["found"].errors, names["found"].greedy.mismatches, names["found"].held_out.errors) == (0, 0, 0)
    assert names["share"].low < names["perfect"] / len(names["errors"])
    alone, together = names["study"].alone, names["study"].together
    assert alone.effect.accuracy < 0.99 <= together.effect.accuracy  # cheap one at a time, not together
    assert names["proof"]["certified"]
    assert names["proof"]["wrong"] == 0
    assert not names["examination"].healthy
    assert names["examination"].causes == ["metric"]
    assert "tokens" in names["examination"].checks["metric"].evidence["counts"]
    assert names["own"].alone.effect.accuracy < names["own"].together.effect.accuracy


def test_the_notebook_is_made_from_the_page() -> None:
    assert NOTEBOOK.read_text() == load_recipe().notebook_text()


def test_the_page_runs_in_a_short_form(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_TUTORIAL", "short")
    check_statements(run_page())


@pytest.mark.filterwarnings("default")  # of Jupyter's own libraries
def test_the_notebook_runs_in_a_short_form(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_TUTORIAL", "short")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    printed = "".join(
        output.text for cell in notebook.cells for output in cell.get("outputs", ()) if output.get("name") == "stdout"
    )
    assert "0 of 20,000 wrong" in printed
    assert "may conclusions be drawn? False ['metric']" in printed
    assert "True 15,150 contexts, 0 wrong" in printed


@pytest.mark.slow
def test_the_page_runs_in_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_TUTORIAL", raising=False)
    names = run_page()
    check_statements(names)
    table = {row["positions"]: row["accuracy"] for row in names["lengths"].to_json()["table"]}
    assert table["sinusoidal"]["64"] < 0.6 < 0.9 < table["kerple"]["64"]
