"""Writes docs/tutorial.ipynb from docs/tutorial.md: each Python block becomes a code cell, the text between
blocks a cell of text. The page is the source; a test compares the notebook with it.

    python recipes/tutorial_notebook.py
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def code_blocks(text: str) -> list[str]:
    return BLOCK.findall(text)


def make_notebook(text: str) -> NotebookNode:
    """Returns the notebook of a page; cells are numbered, so that the same page always gives the same file."""
    cells = []
    for number, part in enumerate(BLOCK.split(text)):  # text and code in turn
        if part.strip():
            make = v4.new_code_cell if number % 2 else v4.new_markdown_cell
            cells.append(make(part.strip(), id=f"cell-{number}"))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def notebook_text() -> str:
    return nbformat.writes(make_notebook((DOCS / "tutorial.md").read_text())) + "\n"


if __name__ == "__main__":
    (DOCS / "tutorial.ipynb").write_text(notebook_text())
