"""The report as one HTML file: numbers, pictures and, where there is one, the trained adder itself.

What is here besides this file is built from `web/` by `make page`, and committed.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.report.page.content import completed, content_of
from headway.report.page.found import Found, find, find_comparison
from headway.report.page.markdown import TITLE, markdown_of
from headway.report.page.reading import bytes_of, finite
from headway.runs import disk

HERE = Path(__file__).parent
HEIGHT = 760
"""of a part in a notebook, in pixels"""
EMPTY: dict[str, Any] = {
    "title": "Headway",
    "only": None,
    "headlines": [],
    "findings": [],
    "model": None,
    "heads": None,
    "studies": [],
    "maps": None,
    "examples": [],
    "seeds": [],
    "lengths": [],
    "comparisons": [],
    "certificates": [],
    "made": {"facts": {}, "commands": [], "runs": []},
    "missing": [],
    "files": [],
    "left_out": [],
}
SHELL = """<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' blob:;
 worker-src blob:; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="page"><noscript>This page draws itself with JavaScript, which is switched off here.</noscript></div>
<script type="application/json" id="content">{content}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(folders: list[Path], out: Path) -> dict[str, Any]:
    """One page of everything that is in these folders, and its words as Markdown beside it; says where, how large, and
    what it found."""
    words = _checked(out)
    return _written(find(folders), out, words)


def write_comparison_page(comparison: Path, out: Path) -> dict[str, Any]:
    """The page of one comparison alone."""
    return _written(find_comparison(comparison), out, _checked(out))


def _written(found: Found, out: Path, words: Path) -> dict[str, Any]:
    content = content_of(found)
    page = page_of(content).encode(errors="replace")
    disk.write_bytes(out, page)
    disk.write_bytes(words, markdown_of(content, figures_beside(found, out)).encode(errors="replace"))
    return {
        "report": _shown(out),
        "markdown": _shown(words),
        "bytes": len(page),
        "findings": [finding["text"] for finding in content["findings"] if not finding["withheld"]],
        "missing": [{**each, "command": _shown(each["command"])} for each in content["missing"]],
    }


def _shown(name: str | Path) -> str:
    """A name as a screen can show it, where the disk's is no text."""
    return str(name).encode(errors="replace").decode()


def _checked(out: Path) -> Path:
    """Where the words go; refused where they would take the place of something that is not a report's."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise HeadwayError(f"the page is an HTML file, {out} is not named like one; end --out in .html")
    words = out.with_suffix(".md")
    if words.exists() and not bytes_of(words).startswith(TITLE.encode()):
        raise HeadwayError(f"{words}, where the words of the page would go, is no report's; choose another --out")
    return words


def figures_beside(found: Found, out: Path) -> list[str]:
    """The pictures that lie in the report's own folder or below it, as Markdown names them."""
    home = out.resolve().parent
    pictures = [path.resolve() for path in found.files if path.suffix == ".svg"]
    return [path.relative_to(home).as_posix() for path in pictures if home in path.parents]


class Inline:
    """A part of the page inside a notebook: the same bundle, shown in a frame of its own."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = {**EMPTY, "only": "try", **content}
        if self.content["heads"] is not None:
            self.content["heads"] = completed(self.content["heads"])

    def _repr_html_(self) -> str:
        page = html.escape(page_of(self.content), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:{HEIGHT}px;border:0" title="Headway"></iframe>'


def page_of(content: dict[str, Any]) -> str:
    # in JSON these letters occur inside strings alone; so written they end no script and begin no comment
    inside = json.dumps(finite(content), allow_nan=False)
    for letter in "<>&":
        inside = inside.replace(letter, f"\\u{ord(letter):04x}")
    script, style = ((HERE / name).read_text(encoding="ascii") for name in ("page.js", "page.css"))
    parts = {
        "title": html.escape(content["title"][:200]),
        "style": style,
        "content": inside,
        "script": script.replace("</script", "<\\/script"),
    }
    return re.sub(r"\{(title|style|content|script)\}", lambda found: parts[found[1]], SHELL)


__all__ = ["Found", "Inline", "content_of", "find", "page_of", "write_comparison_page", "write_page"]
