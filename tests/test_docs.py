"""The documents: every relative link and anchor leads somewhere, the README is short, the citation is current."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")]
MOST_LINES = 90


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Returns the anchors of a document's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.is_relative_to(ROOT), link
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


def test_every_page_is_in_the_nav_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    pages = [path.name for path in ROOT.glob("docs/*.md")] + [
        f"results/{path.name}" for path in ROOT.glob("results/*.md")
    ]
    assert sorted(re.findall(r": ([\w/-]+\.md)", nav)) == sorted([*pages, "index.md"])


def test_the_site_builds_strictly_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    """A dead link or anchor fails the build; scripts, styles and images come from the site itself."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(list(ROOT.glob("docs/*.md")))
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*", page.read_text())
        assert any("stylesheet" in tag for tag in loaded)
        assert not [tag for tag in loaded if re.search(r"(?:src|href)=[\"']?(?:https?:)?//", tag)], page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text()), style
