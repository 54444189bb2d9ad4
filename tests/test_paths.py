"""The paths of three commands in docs/architecture.md: each function is called by the one before it, as listed."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

import pytest

from headway.cli import main
from headway.lengths import extrapolation

ROOT = Path(__file__).parents[1]
DOCUMENT, INDUCTION = ROOT / "docs" / "architecture.md", ROOT / "recipes" / "induction"
MOST_HOPS = 10


class Reached(BaseException):
    """The last function of a path was called; nothing that follows is of interest."""


def paths() -> dict[str, list[str]]:
    """Returns the numbered functions below each command."""
    section = DOCUMENT.read_text().split("## Follow a command")[1].split("\n## ")[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        if command := re.fullmatch(r"\*\*`headway (.+)`\*\*", line):
            found[command[1]] = []
        elif hop := re.match(r"\d+\. `([\w.]+)`", line):
            found[list(found)[-1]].append(hop[1])
    return found


def code_of(name: str) -> CodeType:
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(["headway", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return inspect.unwrap(found).__code__  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    raise AssertionError(f"there is no {name}")


def callers(frame: FrameType | None) -> list[CodeType]:
    found = []
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back
    return found


def follow(command: list[str], hops: list[str]) -> list[str]:
    """Returns the listed functions on the stack, outermost first, when the last of them is called."""
    codes = {code_of(name): name for name in hops}
    last, seen = code_of(hops[-1]), []

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is last:
            seen[:] = [codes[code] for code in reversed(callers(frame)) if code in codes]
            if seen == hops:
                raise Reached

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        main(command)
    except Reached:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


def test_no_path_is_long_or_returns_to_a_package() -> None:
    assert set(paths()) == {"heads pretrained:adder", "lengths sortedness", "heads FOLDER --examples prompts.jsonl"}
    for hops in paths().values():
        rooms = [hop.split(".")[0] for hop in hops]
        assert len(hops) <= MOST_HOPS
        assert all(room == rooms[place - 1] or room not in rooms[:place] for place, room in enumerate(rooms))


@pytest.mark.parametrize("command", paths())
def test_a_command_follows_the_listed_path(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extrapolation, "cores", lambda: 1)  # here, not in a process of its own
    real = {"FOLDER": str(INDUCTION), "prompts.jsonl": str(INDUCTION / "prompts.jsonl")}
    words = [real.get(word, word) for word in command.split()]
    small = {
        "heads pretrained:adder": ["--examples", "2000", "--budget", "0"],
        "heads FOLDER --examples prompts.jsonl": ["--max-drop", "0.1", "--out", "study"],
        "lengths sortedness": [
            "--positions",
            "none",
            "--steps",
            "2",
            "--batch",
            "4",
            "--d-model",
            "16",
            "--heads",
            "2",
        ],
    }
    assert follow([*words, "--quiet", *small.get(command, [])], paths()[command]) == paths()[command]
