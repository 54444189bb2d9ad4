"""Commands give the output of commit e8d7800: the same numbers, the same keys, and weights of the same bytes.

Keys may have been added, never lost. Sentences may be worded better: only their numbers are compared.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import headway
from golden.record import HERE, SCENES, SLOW

PROSE = {"about", "cautions", "examples", "findings", "meaning", "reason", "remedy", "sentence", "what"}
"""Keys of text for people."""
NOISE = {"largest_logit_difference", "moved", "opened"}
"""Keys of numbers that are zero up to rounding; below `ROUNDED` they carry no information."""
ROUNDED = 1e-4
TIED = "heads induction"
"""A scene whose unused heads all cost nothing, so that rounding decides which is removed first."""
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")

Scenes = Callable[[str], dict[str, Any]]


def differences(golden: Any, today: Any, place: str = "") -> Iterator[str]:
    """Lists what a golden output has and today's has not, each with its location."""
    key = place.rpartition(".")[2].partition("[")[0]
    match golden, today:
        case dict(), dict():
            for name, value in golden.items():
                if name not in today:
                    yield f"{place}.{name} is missing"
                else:
                    yield from differences(value, today[name], f"{place}.{name}")
        case (str(), str()) | ([str(), *_], list()) if key in PROSE:
            numbers = numbers_in(today)  # consumed on the way, so that the order counts
            if not all(any(is_same(each, found, ROUNDED) for found in numbers) for each in numbers_in(golden)):
                yield f"{place}: the numbers of {golden!r} are not all, in this order, in {today!r}"
        case list(), list() if len(golden) == len(today):
            for number, (value, other) in enumerate(zip(golden, today, strict=True)):
                yield from differences(value, other, f"{place}[{number}]")
        case bool(), bool():
            if golden != today:
                yield f"{place}: {golden} became {today}"
        case int() | float(), int() | float() if not isinstance(golden, bool) and not isinstance(today, bool):
            if not is_same(golden, today, ROUNDED if key in NOISE else 0):
                yield f"{place}: {golden} became {today}"
        case _ if golden != today or type(golden) is not type(today):
            yield f"{place}: {golden!r} became {today!r}"


def numbers_in(text: str | Sequence[Any]) -> Iterator[float]:
    """Extracts the numbers of a sentence, or of a list, in order: 1,000 is one number, L0H2 has two."""
    found = NUMBER.findall(text if isinstance(text, str) else " ; ".join(map(str, text)))
    return (float(number.replace(",", "")) for number in found)


def is_same(golden: float, today: float, noise: float = 0) -> bool:
    """Tells whether two numbers are equal up to the rounding of losses near 1 in single precision."""
    if isinstance(golden, int) and isinstance(today, int):
        return golden == today
    return math.isclose(golden, today, rel_tol=1e-5, abs_tol=1e-6) or max(abs(golden), abs(today)) < noise


def golden_of(scene: str) -> dict[str, Any]:
    return json.loads((HERE / f"{scene}.json").read_text())


@pytest.fixture(scope="module")
def today_of(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """Returns today's output of a scene; all quick scenes run in one process, where no shapes are checked."""
    out = tmp_path_factory.mktemp("golden")

    def run(scene: str) -> dict[str, Any]:
        file = out / f"{scene}.json"
        if not file.exists():
            scenes = [scene] if scene in SLOW else [name for name in SCENES if name not in SLOW]
            script = [sys.executable, str(HERE / "record.py"), "--out", str(out), *scenes]
            tested = str(Path(headway.__file__).parents[1])
            ended = subprocess.run(script, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": tested})
            assert ended.returncode == 0, ended.stderr[-5000:]
        return json.loads(file.read_text())

    return run


@pytest.mark.parametrize("scene", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCENES])
def test_commands_give_the_recorded_output(scene: str, today_of: Scenes) -> None:
    golden, today = golden_of(scene)["commands"], today_of(scene)["commands"]
    assert [each["command"] for each in golden] == list(SCENES[scene]), "record the scene anew"
    found = []
    for before, after in zip(golden, today, strict=True):
        if before["command"].startswith(TIED):
            del before["output"]["curves"]
        found += differences(before, after, before["command"])
    assert not found, "\n".join(found)


def test_training_gives_the_same_bytes(today_of: Scenes) -> None:
    golden, today = golden_of("training"), today_of("training")
    assert today["weights"].keys() == golden["weights"].keys()
    for path, before in golden["weights"].items():
        after = today["weights"][path]
        if today["machine"] == golden["machine"]:
            assert after["sha256"] == before["sha256"], path
        assert after["norms"] == pytest.approx(before["norms"], rel=5e-4), path  # other CPUs differ by 5e-5


GOLDEN = {
    "examples": 600,
    "heads": [{"head": "L0H1", "drop": 0.25, "verdict": "critical"}],
    "optimal": True,
    "interval": None,
    "moved": 2e-6,
    "findings": ["Together, 13 of 24 heads can go: 0.998 right (n = 1,000)."],
}
CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, True),
    "another key": ({"units": "heads"}, True),
    "rounding": ({"heads": [{"head": "L0H1", "drop": 0.2500001, "verdict": "critical"}]}, True),
    "noise": ({"moved": 0.0}, True),
    "more than noise": ({"moved": 2e-3}, False),
    "better words": ({"findings": ["13 of all 24 heads go together.", "Accuracy 0.998 (n = 1000, 95%)."]}, True),
    "another number in a sentence": (
        {"findings": ["Together, 13 of 24 heads can go: 0.997 right (n = 1,000)."]},
        False,
    ),
    "a number less in a sentence": ({"findings": ["Together, 13 of 24 heads can go (n = 1,000)."]}, False),
    "a count": ({"examples": 601}, False),
    "a number": ({"heads": [{"head": "L0H1", "drop": 0.2501, "verdict": "critical"}]}, False),
    "a word": ({"heads": [{"head": "L0H1", "drop": 0.25, "verdict": "redundant"}]}, False),
    "a key less": ({"heads": [{"head": "L0H1", "drop": 0.25}]}, False),
    "a row more": ({"heads": [*GOLDEN["heads"], *GOLDEN["heads"]]}, False),
    "no for yes": ({"optimal": False}, False),
    "a number for yes": ({"optimal": 1}, False),
    "something for nothing": ({"interval": [0.1, 0.2]}, False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_numbers_is_detected_and_one_of_wording_is_not(change: str) -> None:
    changed, same = CHANGES[change]
    assert (not list(differences(GOLDEN, {**GOLDEN, **changed}))) is same
