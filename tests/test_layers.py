"""Imports point in one direction, and light modules import no torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import headway

ROOT = Path(headway.__file__).parent
ARCHITECTURE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
# A layer may import those before it, and itself.
LAYERS = [
    {"errors", "plugins", "output", "progress", "machine", "flags", "question"},
    {"runs"},
    {"tasks"},
    {"positions", "kernels"},
    {"models"},
    {"evaluation"},
    {"compare"},
    {"subjects"},
    {"attach"},
    {"windows"},
    {"training"},
    {"trials"},
    {"causes"},
    {"heads", "lengths", "certify"},
    {"doctor"},
    {"report"},
    {"api"},
    {"sweeps", "submissions"},
    {"lab", "bench"},
    {"commands"},
    {"cli"},
]


def layer_of(part: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if part in layer)


def imported_parts(path: Path) -> set[str]:
    """Returns the parts of headway that a file imports, anywhere in its code."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names if node.module == "headway"]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("headway.")}
    return parts


def test_imports_point_one_way() -> None:
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part.startswith("__"):
            continue
        for other in imported_parts(path):
            if other != part:
                assert layer_of(other) < layer_of(part) or {part, other} <= LAYERS[0], f"{path} imports {other}"


def test_report_imports_only_file_readers() -> None:
    for path in (ROOT / "report").rglob("*.py"):
        assert imported_parts(path) <= {"runs", "compare", "report", "errors"}, path


def test_help_runs_and_report_need_no_torch() -> None:
    light = ("cli", "commands", "runs.folder", "evaluation.intervals", "compare.index", "report.page", "report.figures")
    code = f"import sys, {', '.join(f'headway.{part}' for part in light)}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_every_public_name_exists() -> None:
    for name in headway.__all__:
        assert getattr(headway, name) is not None


def test_the_documentation_lists_every_package() -> None:
    table = re.findall(r"^\| `(\w+)/` \|(.*)$", ARCHITECTURE, re.MULTILINE)
    assert {room for room, _ in table} | {"bench"} == {path.parent.name for path in ROOT.glob("*/__init__.py")}
    for room, line in table:
        for name in re.findall(r"`(\w+\.py)`", line):
            assert (ROOT / room / name).is_file(), f"{room}/{name}"


def test_every_file_named_in_the_documentation_exists() -> None:
    prose = "\n".join(line for line in ARCHITECTURE.splitlines() if not line.startswith("|"))
    for name in re.findall(r"`([\w/]+\.py)`", prose):
        assert (ROOT / name).is_file() or (ROOT.parents[1] / name).is_file(), name
