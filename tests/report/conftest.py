"""A folder like that of a lab, its page, and a browser that opens it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from visiting import CHROMIUM, FLAGS, PATIENCE, ROOT, Visit

from headway.cli import main
from headway.report import figures
from headway.subjects.own import open_one


@pytest.fixture(scope="module", autouse=True)
def _pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "can_draw", lambda: True)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the folder of a lab: an adder with its heads, a certified classifier, a study of length."""
    home = tmp_path_factory.mktemp("page") / "study"
    shipped = open_one("pretrained:adder").path.parent
    shutil.copytree(shipped / "adder", home / "adder")
    shutil.copytree(shipped / "certified-sorter", home / "certified-sorter")
    heads = json.loads((ROOT / "results" / "heads" / "heads.json").read_text())
    heads["findings"] = ["Together, 13 of 24 heads can go."]
    (home / "adder" / "heads.json").write_text(json.dumps(heads))
    shutil.copy(ROOT / "results" / "heads" / "maps.json", home / "adder")
    many = json.loads((ROOT / "results" / "heads-thousand" / "heads.json").read_text())
    (home / "heads.json").write_text(json.dumps({**many, "members": many["members"][:20]}))
    (home / "lengths").mkdir()
    shutil.copy(ROOT / "results" / "lengths-plain" / "lengths.json", home / "lengths")
    shutil.copy(ROOT / "results" / "lengths-plain" / "lengths-curves.svg", home / "lengths")
    return home


@pytest.fixture(scope="session")
def report(folder: Path) -> Path:
    assert main(["report", str(folder), "--json"]) == 0
    return folder / "report.html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def visit(browser: Any, report: Path) -> Iterator[Any]:
    visited = Visit(browser, report, viewport={"width": 1200, "height": 900})
    yield visited.page
    visited.close()
