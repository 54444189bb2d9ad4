"""The report as one HTML file: numbers, pictures and, where there is one, the trained adder itself.

What is here besides this file is built from `web/` by `make page`, and committed.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from headway.report.page.content import Found, content_of, find
from headway.report.page.markdown import markdown_of
from headway.runs import disk

HERE = Path(__file__).parent
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
    content = content_of(find(folders))
    page = page_of(content)
    disk.write_bytes(out, page.encode())
    disk.write_bytes(out.with_suffix(".md"), markdown_of(content).encode())
    return {
        "report": str(out),
        "bytes": len(page.encode()),
        "findings": [finding["text"] for finding in content["findings"] if not finding["withheld"]],
        "missing": content["missing"],
    }


def page_of(content: dict[str, Any]) -> str:
    # in JSON these letters occur inside strings alone; so written they end no script and begin no comment
    inside = json.dumps(content).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    script, style = ((HERE / name).read_text(encoding="ascii") for name in ("page.js", "page.css"))
    return (
        SHELL.replace("{title}", html.escape(content["title"][:200]))
        .replace("{style}", style)
        .replace("{content}", inside)
        .replace("{script}", script.replace("</script", "<\\/script"))
    )


__all__ = ["Found", "content_of", "find", "page_of", "write_page"]
