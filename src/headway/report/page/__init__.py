"""Writes the report as one HTML file: numbers, figures and, where there is one, the trained adder itself.

`page.js`, `page.css` and `shell.html` are built from `web/` by `make page`, and committed.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

from headway.compare import RunComparison
from headway.errors import HeadwayError
from headway.report.figures import comparison_figure
from headway.report.page.content import build_content, complete_heads
from headway.report.page.markdown import TITLE, render_markdown
from headway.report.page.sources import Sources, find_sources
from headway.report.studies import nullify_non_finite
from headway.runs import disk

HERE = Path(__file__).parent


def write_page(folders: list[Path], out: Path) -> dict[str, Any]:
    """Writes one page of everything in these folders, and the same text as Markdown next to it; returns the paths, the
    size and the findings."""
    _check(out)
    return _write(find_sources(folders), out)


def write_comparison(comparison: RunComparison, out: Path) -> dict[str, str]:
    """Writes compare.json, compare.csv (one line per group), compare-runs.csv (one line per run), the figure and the
    page of this comparison alone; returns the path of the page."""
    _check(page := out / "report.html")
    disk.write_json(out / "compare.json", comparison.to_json())
    disk.write_bytes(out / "compare.csv", comparison.to_csv().encode(errors="replace"))
    disk.write_bytes(out / "compare-runs.csv", comparison.runs_csv().encode(errors="replace"))
    comparison_figure(out / "compare.json", out)
    # with the files next to it, but without the runs that may be in the same folder
    names = ("compare.json", "compare.csv", "compare-runs.csv", "compare.svg")
    found = Sources([out], out.resolve(), files=[path for name in names if (path := out / name).is_file()])
    found.studies["compare"].append(out / "compare.json")
    return {"report": _write(found, page)["report"]}


def _write(sources: Sources, out: Path) -> dict[str, Any]:
    content, words = build_content(sources), out.with_suffix(".md")
    page = render_page(content).encode(errors="replace")
    home, pictures = out.resolve().parent, [path.resolve() for path in sources.files if path.suffix == ".svg"]
    below = [path.relative_to(home).as_posix() for path in pictures if home in path.parents]
    disk.write_bytes(out, page)
    disk.write_bytes(words, render_markdown(content, below).encode(errors="replace"))
    return {
        "report": _as_text(out),
        "markdown": _as_text(words),
        "bytes": len(page),
        "findings": [finding["text"] for finding in content["findings"] if not finding["withheld"]],
        "missing": [{**each, "command": _as_text(each["command"])} for each in content["missing"]],
    }


def _as_text(name: str | Path) -> str:
    """Returns a name that can be printed, where the name on disk is not valid text."""
    return str(name).encode(errors="replace").decode()


def _check(out: Path) -> None:
    """Raises where the page or its Markdown would overwrite a file that is not a report."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise HeadwayError(f"the page is an HTML file, and {out} does not end in .html; choose another name")
    words = out.with_suffix(".md")
    if words.exists() and not disk.read_bytes(words).startswith(TITLE.encode()):
        raise HeadwayError(f"{words} is not a report, and the Markdown would overwrite it; choose another name")


class Inline:
    """A part of the page inside a notebook: the same bundle, shown in its own frame."""

    def __init__(self, content: dict[str, Any]) -> None:
        empty = build_content(Sources([Path()], Path()))
        self.content = {**empty, "title": "Headway", "only": "try", "missing": [], **content}
        if self.content["heads"] is not None:
            self.content["heads"] = complete_heads(self.content["heads"])

    def _repr_html_(self) -> str:
        page = html.escape(render_page(self.content), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:760px;border:0" title="Headway"></iframe>'


def render_page(content: dict[str, Any]) -> str:
    # in JSON these letters occur only inside strings; escaped they cannot end the script or begin a comment
    inside = json.dumps(nullify_non_finite(content), allow_nan=False)
    for letter in "<>&":
        inside = inside.replace(letter, f"\\u{ord(letter):04x}")
    shell, script, style = ((HERE / name).read_text(encoding="ascii") for name in ("shell.html", "page.js", "page.css"))
    parts = {"title": html.escape(content["title"][:200]), "style": style, "content": inside}
    parts["script"] = script.replace("</script", "<\\/script")
    return re.sub(r"\{(title|style|content|script)\}", lambda found: parts[found[1]], shell)


__all__ = ["Inline", "Sources", "build_content", "find_sources", "render_page", "write_comparison", "write_page"]
