"""The page of a class: which mistakes it makes, who makes the same ones, and the examination of each submission."""

from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.report.page import Sources, build_content, render_page
from headway.runs import disk


def write_class_page(classroom: dict[str, Any], out: Path) -> Path:
    """Writes the content of class.json as one HTML file."""
    if out.is_dir():
        raise HeadwayError(f"{out} is a folder, and the page would be written there; choose another `out`")
    empty = build_content(Sources([Path()], Path()))
    content = {**empty, "title": "Headway: a class", "missing": [], "classroom": classroom}
    disk.write_bytes(out, render_page(content).encode(errors="replace"))
    return out
