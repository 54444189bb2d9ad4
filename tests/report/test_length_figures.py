"""Figures of a study of length, including a withheld one."""

from __future__ import annotations

import json
from pathlib import Path

from headway.report.lengths import curves_figure

ROOT = Path(__file__).parents[2]


def test_a_withheld_study_has_no_reach_in_its_title(tmp_path: Path) -> None:
    found = json.loads((ROOT / "results" / "lengths-plain" / "lengths.json").read_text())
    for row in found["reach"]:
        if row["positions"] == "learned":
            row["by_seed"] = dict.fromkeys(row["by_seed"])
            row["median"] = row["worst"] = None
    curves = next(path for path in curves_figure(found, tmp_path) if path.suffix == ".svg").read_text()
    assert "withheld: a check failed" in curves
