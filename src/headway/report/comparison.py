"""The picture of a comparison: each run a dot, the median of its group a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headway.report.figures import BLUE, ORANGE, needs_matplotlib, panels, save_figure
from headway.report.studies import ComparisonFile, GroupJson, group_values, read_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Dot = TypeVar("Dot", float, tuple[float, str])
MOST_GROUPS = 60
MOST_DOTS = 300
"""of a group; of more, so many are drawn that lie evenly among all"""
WIDE_RANGE, WIDE_REACH = 100, 8
"""between the least and the most, from which on an axis is logarithmic"""


@needs_matplotlib
def comparison_figure(comparison: Path, out: Path) -> list[Path]:
    """Draws a panel a metric."""
    study = read_study(comparison, ComparisonFile)
    measured = [metric for metric in study["metrics"] if any(row["metrics"][metric]["n"] for row in study["rows"])]
    if not measured:
        return []
    shown = study["rows"][:MOST_GROUPS]
    figure, axes = panels(len(measured), height=0.34 * len(shown) + 1.4, width=4.6)
    for panel, metric in zip(axes, measured, strict=True):
        _draw_metric(panel, study, shown, metric)
        panel.set_yticks(range(len(shown)), [""] * len(shown))
    names = [title_of(study, row) for row in shown]
    axes[0].set_yticks(range(len(shown)), [name if len(name) <= 40 else name[:39] + "…" for name in names], fontsize=8)
    if len(study["rows"]) > MOST_GROUPS:
        axes[0].set_ylabel(f"the first {MOST_GROUPS} of {len(study['rows']):,} groups", fontsize=8)
    return save_figure(figure, out / "compare")


def title_of(study: ComparisonFile, group: GroupJson) -> str:
    """A group by its values."""
    values = ["–" if value is None else str(value) for value in group_values(study, group)]
    return ", ".join(values).replace("$", r"\$")


def thin_out(dots: Sequence[Dot]) -> list[Dot]:
    """All of them in order, or so many that lie evenly among them."""
    ordered = sorted(dots)
    if len(ordered) <= MOST_DOTS:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (MOST_DOTS - 1))] for place in range(MOST_DOTS)]


def _draw_metric(axes: Axes, study: ComparisonFile, groups: list[GroupJson], metric: str) -> None:
    by_group: list[list[float]] = [[] for _ in study["rows"]]
    for run in study["runs"]:
        if run["state"] == "complete" and isinstance(value := run.get(metric), int | float):
            by_group[run["group"]].append(float(value))
    for line, group in enumerate(groups):
        values = thin_out(by_group[line])
        jitter = [line + 0.5 * ((n * 0.618034) % 1 - 0.5) for n in range(len(values))]
        axes.scatter(values, jitter, s=14, color=BLUE, alpha=0.75, linewidths=0, zorder=3)
        middle = group["metrics"][metric]["median"]
        if middle is not None:
            axes.plot([middle, middle], [line - 0.36, line + 0.36], color=ORANGE, linewidth=2.2, zorder=2)
    every = [value for values in by_group for value in values]
    least, lengths = min((value for value in every if value > 0), default=1.0), metric.startswith("reach")
    if min(every) >= 0 and max(every) > (WIDE_REACH if lengths else WIDE_RANGE) * least:
        axes.set_xscale("symlog", base=2 if lengths else 10, linthresh=least)
        if lengths:
            ticks = sorted(set(every))
            axes.set_xticks(ticks if len(ticks) <= 7 else ticks[:: len(ticks) // 7 + 1])
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.minorticks_off()
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(f"{metric}: each run a dot, the median a line", fontsize=9)
