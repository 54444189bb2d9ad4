"""Figures as SVG and PNG, in colours that the colour-blind can tell apart (Okabe and Ito, 2008)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.runs import disk
from headway.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
COLOURS = {"sinusoidal": BLUE, "learned": ORANGE, "none": GREEN}


def lab_figure(lab: Path, out: Path) -> list[Path]:
    """The lab in one picture: how the adder learned, and what each classifier can tell.

    Without matplotlib there is none; the numbers are in lab.json all the same.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return []
    rows = disk.read_json(lab)["runs"]
    figure, (left, right) = _panels(2)
    _learning(left, [row for row in rows if row["task"] == "addition"])
    _sortedness(right, [row for row in rows if row["task"] == "sortedness"])
    return _save(figure, out / "lab")


def _learning(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        lines = RunFolder(Path(row["run"])).log_lines()
        steps = [line["step"] for line in lines]
        axes.plot(steps, [line["exact_match"] for line in lines], color=BLUE, linewidth=1.2, alpha=0.8)
    errors = [row["errors"] for row in rows]
    verdict = "every one right" if not any(errors) else f"{max(errors):,} wrong at worst"
    axes.set_title(f"3-digit addition: all {rows[0]['examples']:,} sums checked,\n{verdict} ({_seeds(rows)})")
    axes.set_xlabel("training step")
    axes.set_ylabel("whole answers right in the batch")
    axes.set_ylim(0, 1.03)


def _sortedness(axes: Axes, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(row["positions"] for row in rows))
    for place, name in enumerate(names):
        mine = [row for row in rows if row["positions"] == name]
        for at, row in enumerate(mine):
            x = place + (at - (len(mine) - 1) / 2) * 0.12
            low, high = row["interval"]
            value = row["exact_match"]
            axes.errorbar(
                x, value, yerr=[[value - low], [high - value]], fmt="o", capsize=4, color=COLOURS.get(name, GREY)
            )
        middle = sorted(row["exact_match"] for row in mine)[len(mine) // 2]
        axes.annotate(f"{middle:.3f}", (place, middle), xytext=(0, -18), textcoords="offset points", ha="center")
    axes.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    axes.text(-0.45, 0.51, "chance", color=GREY, ha="left")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(0.4, 1.03)
    axes.set_xlabel("position encoding")
    axes.set_ylabel("right, with 95% interval")
    axes.set_title(f"Is it sorted? Lengths 8–16, as trained\n({rows[0]['examples']:,} sequences each, {_seeds(rows)})")


def _seeds(rows: list[dict[str, Any]]) -> str:
    count = len({row["seed"] for row in rows})
    return f"{count} seed{'s' if count > 1 else ''}"


def _panels(count: int) -> tuple[Figure, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(5.4 * count, 3.8), layout="constrained")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.title.set_fontsize(11)
    return figure, axes


def _save(figure: Figure, path: Path) -> list[Path]:
    import io

    from matplotlib import pyplot

    written = []
    for kind in ("svg", "png"):
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=160)
        written.append(path.with_suffix(f".{kind}"))
        disk.write_bytes(written[-1], content.getvalue())
    pyplot.close(figure)
    return written
