"""A budget says how much each group keeps; it survives its file, and a wrong one is refused in one sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.windows.budget import Budget

windows = st.lists(st.none() | st.integers(1, 40), min_size=1, max_size=4).map(tuple)
sites = st.dictionaries(st.integers(0, 9).map("decoder.{}.self".format), windows, min_size=1, max_size=3)
Windows = dict[str, tuple[int | None, ...]]


@given(st.integers(0, 5), sites, st.integers(1, 60))
def test_the_share_counts_every_token_that_a_query_can_still_see(sink: int, windows: Windows, length: int) -> None:
    budget = Budget(sink, windows)
    seen = [
        window is None or place < sink or length - 1 - place < window
        for _, _, window in budget
        for place in range(length)
    ]
    assert budget.cache_share(length) == pytest.approx(sum(seen) / len(seen))


@given(st.integers(0, 5), sites)
def test_a_budget_survives_its_file(sink: int, windows: Windows) -> None:
    budget = Budget(sink, windows)
    assert Budget.from_json(json.loads(json.dumps(budget.to_json()))) == budget


def test_a_folder_holds_it_as_budget_json(tmp_path: Path) -> None:
    budget = Budget(4, {"decoder.0.self": (None, 16)})
    budget.write(tmp_path)
    assert (tmp_path / "budget.json").exists()
    assert Budget.read(tmp_path) == Budget.read(tmp_path / "budget.json") == budget


def test_a_study_of_windows_ends_in_a_budget(tmp_path: Path) -> None:
    budget = Budget(4, {"decoder.0.self": (None, 16)})
    study = {"schema": "headway.heads/1", "heads": [], "budget": budget.to_json()}
    (tmp_path / "heads.json").write_text(json.dumps(study))
    assert Budget.read(tmp_path) == Budget.read(tmp_path / "heads.json") == budget
    (tmp_path / "heads.json").write_text(json.dumps({**study, "budget": None}))
    with pytest.raises(HeadwayError, match="study without a budget"):
        Budget.read(tmp_path)


def test_levels_are_places_in_a_ladder() -> None:
    levels = {"decoder.0.self": (True, False), "decoder.1.self": (False, False)}
    budget = Budget.of_levels(4, (16, None), levels)
    assert budget == Budget(4, {"decoder.0.self": (None, 16), "decoder.1.self": (16, 16)})
    assert (budget.ladder, budget.groups, budget.full) == ((16, None), 4, 1)
    narrow = Budget.uniform(4, 16, {"decoder.0.self": 2, "decoder.1.self": 2})
    assert budget.replace_window("decoder.0.self", 0, 16) == narrow


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([], "headway.budget/1"),
        ({"schema": "headway.heads/1"}, "headway.budget/1"),
        ({"schema": "headway.budget/1", "sink": 4}, "'windows'"),
        ({"schema": "headway.budget/1", "sink": True, "windows": {"a": [1]}}, "sink is True"),
        ({"schema": "headway.budget/1", "sink": -1, "windows": {"a": [1]}}, "sink is -1"),
        ({"schema": "headway.budget/1", "sink": 4, "windows": {}}, "no site"),
        ({"schema": "headway.budget/1", "sink": 4, "windows": {"decoder.0.self": []}}, "decoder.0.self"),
        ({"schema": "headway.budget/1", "sink": 4, "windows": {"decoder.0.self": [8, 0]}}, "group 1 of decoder.0.self"),
        ({"schema": "headway.budget/1", "sink": 4, "windows": {"decoder.0.self": [1.5]}}, "1.5"),
    ],
)
def test_a_wrong_budget_is_refused_in_one_sentence(content: Any, named: str) -> None:
    with pytest.raises(HeadwayError, match=re.escape(named)) as refused:
        Budget.from_json(content, "b.json")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("levels", [{"decoder.0.self": (2,)}, {"decoder.0.self": (-1,)}])
def test_a_level_beyond_the_ladder_is_refused(levels: Mapping[str, tuple[int, ...]]) -> None:
    with pytest.raises(HeadwayError, match="ladder"):
        Budget.of_levels(4, (16, None), levels)


def test_a_missing_file_and_a_broken_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"budget\.json does not exist"):
        Budget.read(tmp_path)
    (tmp_path / "budget.json").write_text('{"schema": ')
    with pytest.raises(HeadwayError, match="not JSON"):
        Budget.read(tmp_path)


def test_a_budget_needs_no_torch() -> None:
    code = "import sys, headway.windows.budget; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
