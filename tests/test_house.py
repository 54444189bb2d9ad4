"""The rules that a reader can rely on: one name for one thing, functions that fit on a screen, and packages that
know nothing about each other's classes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import headway

ROOT = Path(headway.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MOST_LINES, MOST_PARAMETERS, MOST_UNTYPED = 60, 10, 120
KERNELS = "kernels/few_keys_triton.py"
"""Triton passes every pointer and stride of a kernel as a parameter."""
OTHERS = {"attach/dispatch.py", "attach/multihead.py", "attach/projections.py", "attach/recording.py",
          "windows/switching.py"}  # fmt: skip
"""Files with functions that replace a user's or a library's function and take any arguments."""


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.relative_to(ROOT).as_posix(), node


def test_every_class_name_is_unique() -> None:
    homes = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{file}:{node.name}": lines
        for file, node in functions()
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES
    }
    assert long == {}


def test_functions_have_few_parameters() -> None:
    many = {
        f"{file}:{node.name}": count
        for file, node in functions()
        if file != KERNELS
        and (count := len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])) > MOST_PARAMETERS
    }
    assert many == {}


def test_keywords_are_typed() -> None:
    untyped = [
        f"{file}:{node.name}"
        for file, node in functions()
        if file not in OTHERS
        and node.args.kwarg is not None
        and ast.unparse(node.args.kwarg.annotation or node) == "Any"
    ]
    assert untyped == []


def test_nothing_switches_on_a_class_of_another_package() -> None:
    rooms = {
        "models": re.compile(r"(isinstance|issubclass|type)\(.*\b(EncoderDecoder|Decoder|Classifier)\b"),
        "tasks": re.compile(r"(isinstance|issubclass|type)\(.*\b(Addition|Sortedness)\b"),
        "attach": re.compile(r"\bForeign\b"),
    }
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in FILES
        for line in path.read_text().splitlines()
        for room, pattern in rooms.items()
        if path.relative_to(ROOT).parts[0] != room and pattern.search(line)
    ]
    assert found == []


def test_few_tables_are_untyped() -> None:
    untyped = [
        line
        for path in FILES
        for line in path.read_text().splitlines()
        if re.search(r"dict\[str, (Any|object)\]", line)
    ]
    assert len(untyped) <= MOST_UNTYPED
