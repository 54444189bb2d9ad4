"""Adds to the site what the documents link to outside docs/: README.md as the first page, results/ and recipes/.

Links are written for a reader of the repository; here they are rewritten for the site. One that leads to nothing on the
site, such as a folder, becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN = ("README.md", "results/*.md", "results/*.svg", "recipes/**/*.py", "recipes/*.toml")
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def address_of(path: str) -> str:
    """Returns where a file of the repository lies on the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def source_of(address: str) -> str:
    """Returns the file of the repository that lies at an address of the site."""
    if address == "index.md":
        return "README.md"
    return address if address.startswith(("results/", "recipes/")) else f"docs/{address}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(path for pattern in SHOWN for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, address_of(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = os.path.dirname(source_of(page.file.src_uri))

    def rewrite(found: re.Match[str]) -> str:
        text, link = found.groups()
        path, _, anchor = link.partition("#")
        if not path or re.match(r"\w+:", link):
            return found[0]
        source = os.path.normpath(os.path.join(here, path))
        target = address_of(source)
        if files.get_file_from_path(target) is None:
            return text if (ROOT / source).exists() else found[0]  # a dead link stays, and fails the strict build
        relative = os.path.relpath(target, os.path.dirname(page.file.src_uri) or ".")
        return f"[{text}]({relative}{'#' * bool(anchor)}{anchor})"

    return LINK.sub(rewrite, markdown)
