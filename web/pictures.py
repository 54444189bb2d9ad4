"""Takes the pictures of the documents from a real page, such as that of `make lab`.

    .venv/bin/python web/pictures.py lab/report.html [--out docs]

`page.png` is the first screen of a laptop; every `page-SECTION.png` a section in the light theme, `-dark` in the dark
one, and `page-phone.png` the first screens of a phone. Needs Debian's chromium.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SECTIONS = ("answers", "try", "heads", "try-length", "length", "made")
LAPTOP, PHONE = (1280, 800), (360, 740)


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes the pictures of the documents from a page.")
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for dark in (False, True):
            end = "-dark.png" if dark else ".png"
            page = open_page(browser, asked.report, LAPTOP, dark)
            if not dark:
                page.screenshot(path=asked.out / "page.png")
            for name in SECTIONS:
                section = page.locator(f"section#{name}")
                if section.count():
                    section.screenshot(path=asked.out / f"page-{name}{end}")
            page = open_page(browser, asked.report, PHONE, dark)
            page.screenshot(
                path=asked.out / f"page-phone{end}", full_page=True, clip={"x": 0, "y": 0, "width": 360, "height": 2200}
            )
        browser.close()


def open_page(browser: Browser, report: Path, size: tuple[int, int], dark: bool) -> Page:
    """Opens the page and waits until its models have answered."""
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(offline=True, viewport=viewport, color_scheme="dark" if dark else "light")  # pyright: ignore[reportArgumentType]
    page = context.new_page()
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    page.add_style_tag(content="header { position: static !important; }")  # it would lie across the sections
    page.wait_for_timeout(3_000)  # the accuracy on fresh sums is counted by a worker
    if size == LAPTOP and page.locator("#try-length").count():  # where each model breaks is counted once it is seen
        page.locator("#try-length progress").scroll_into_view_if_needed()
        page.wait_for_selector("#try-length progress", state="detached", timeout=300_000)
        page.evaluate("scrollTo(0, 0)")
    return page


if __name__ == "__main__":
    main()
