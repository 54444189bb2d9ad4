"""The report as one HTML file: numbers, pictures and, where there is one, the trained adder itself.

What is here besides this file is built from `web/` by `make page`, and committed.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

from headway.compare import RunComparison
from headway.errors import HeadwayError
from headway.report.figures import comparison_figure
from headway.report.page.content import complete_heads, content_of
from headway.report.page.markdown import TITLE, markdown_of
from headway.report.page.sources import Sources, find_sources
from headway.report.studies import finite
from headway.runs import disk

HERE = Path(__file__).parent


def write_page(folders: list[Path], out: Path) -> dict[str, Any]:
    """Writes one page of everything that is in these folders, and its words as Markdown beside it; says where, how
    large, and what it found."""
    _check(out)
    return _write(find_sources(folders), out)


def write_comparison(comparison: RunComparison, out: Path) -> dict[str, str]:
    """Writes compare.json, compare.csv (a line a group), compare-runs.csv (a line a run), the picture and the page of
    this comparison alone; says where the page is."""
    _check(page := out / "report.html")
    disk.write_json(out / "compare.json", comparison.to_json())
    disk.write_bytes(out / "compare.csv", comparison.to_csv().encode(errors="replace"))
    disk.write_bytes(out / "compare-runs.csv", comparison.runs_csv().encode(errors="replace"))
    comparison_figure(out / "compare.json", out)
    # with the files beside it, and nothing of the runs that may lie in the same folder
    names = ("compare.json", "compare.csv", "compare-runs.csv", "compare.svg")
    found = Sources([out], out.resolve(), files=[path for name in names if (path := out / name).is_file()])
    found.studies["compare"].append(out / "compare.json")
    return {"report": _write(found, page)["report"]}


def _write(sources: Sources, out: Path) -> dict[str, Any]:
    content, words = content_of(sources), out.with_suffix(".md")
    page = page_of(content).encode(errors="replace")
    home, pictures = out.resolve().parent, [path.resolve() for path in sources.files if path.suffix == ".svg"]
    below = [path.relative_to(home).as_posix() for path in pictures if home in path.parents]
    disk.write_bytes(out, page)
    disk.write_bytes(words, markdown_of(content, below).encode(errors="replace"))
    return {
        "report": _as_text(out),
        "markdown": _as_text(words),
        "bytes": len(page),
        "findings": [finding["text"] for finding in content["findings"] if not finding["withheld"]],
        "missing": [{**each, "command": _as_text(each["command"])} for each in content["missing"]],
    }


def _as_text(name: str | Path) -> str:
    """A name as a screen can show it, where the disk's is no text."""
    return str(name).encode(errors="replace").decode()


def _check(out: Path) -> None:
    """Refuses where the page or its words would take the place of something that is not a report's."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise HeadwayError(f"the page is an HTML file, {out} is not named like one; end --out in .html")
    words = out.with_suffix(".md")
    if words.exists() and not disk.read_bytes(words).startswith(TITLE.encode()):
        raise HeadwayError(f"{words} is not a report, and the words of the page would replace it; choose another name")


class Inline:
    """A part of the page inside a notebook: the same bundle, shown in a frame of its own."""

    def __init__(self, content: dict[str, Any]) -> None:
        empty = content_of(Sources([Path()], Path()))
        self.content = {**empty, "title": "Headway", "only": "try", "missing": [], **content}
        if self.content["heads"] is not None:
            self.content["heads"] = complete_heads(self.content["heads"])

    def _repr_html_(self) -> str:
        page = html.escape(page_of(self.content), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:760px;border:0" title="Headway"></iframe>'


def page_of(content: dict[str, Any]) -> str:
    # in JSON these letters occur inside strings alone; so written they end no script and begin no comment
    inside = json.dumps(finite(content), allow_nan=False)
    for letter in "<>&":
        inside = inside.replace(letter, f"\\u{ord(letter):04x}")
    shell, script, style = ((HERE / name).read_text(encoding="ascii") for name in ("shell.html", "page.js", "page.css"))
    parts = {"title": html.escape(content["title"][:200]), "style": style, "content": inside}
    parts["script"] = script.replace("</script", "<\\/script")
    return re.sub(r"\{(title|style|content|script)\}", lambda found: parts[found[1]], shell)


__all__ = ["Inline", "Sources", "content_of", "find_sources", "page_of", "write_comparison", "write_page"]
