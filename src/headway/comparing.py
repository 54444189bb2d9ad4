"""`headway compare`: many runs in one table, and the table as files, a picture and a page."""

from __future__ import annotations

from pathlib import Path

from headway.compare.comparing import Comparison, compare
from headway.report.comparing import compare_figure
from headway.report.page import write_comparison_page
from headway.runs import disk

__all__ = ["Comparison", "compare", "write_comparison"]


def write_comparison(comparison: Comparison, out: Path) -> dict[str, str]:
    """Writes compare.json, compare.csv (a line a group), compare-runs.csv (a line a run), the picture and report.html;
    says where the page is."""
    disk.write_json(out / "compare.json", comparison.to_json())
    disk.write_bytes(out / "compare.csv", comparison.to_csv().encode(errors="replace"))
    disk.write_bytes(out / "compare-runs.csv", comparison.runs_csv().encode(errors="replace"))
    compare_figure(out / "compare.json", out)
    return {"report": write_comparison_page(out / "compare.json", out / "report.html")["report"]}
