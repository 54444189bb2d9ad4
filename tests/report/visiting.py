"""A browser that opens pages from files, without a network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 300_000
"""Milliseconds until a page counts as hanging: many, because the machine may be busy."""
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM: pages are not tested in a browser")


class Visit:
    """A page that must log nothing to the console and make no network request."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", **settings: Any) -> None:
        self.context = browser.new_context(offline=True, accept_downloads=True, **settings)
        self.context.set_default_timeout(PATIENCE)  # of navigations too
        self.page, self.errors, self.asked = self.context.new_page(), [], []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_selector("html[data-ready=yes]", state="attached")

    def close(self) -> None:
        self.context.close()
        assert self.errors == []
        assert all(url.startswith(("file://", "blob:", "data:")) for url in self.asked), self.asked


def type_sum(page: Any, a: int, b: int) -> str:
    page.get_by_label("first number").fill(str(a))
    page.get_by_label("second number").fill(str(b))
    return "".join(page.locator(".digit b").all_inner_texts())


def save_file(page: Any, button: Any) -> Path:
    """Returns the file that a click saves."""
    with page.expect_download() as waiting:
        button.click()
    page.wait_for_timeout(250)  # chromium lets a page save ten files in a second or two, and drops the next
    return Path(waiting.value.path())
