"""Draws figures as SVG and PNG, in colours that colour-blind readers can distinguish (Okabe and Ito, 2008)."""

from __future__ import annotations

import functools
import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from headway.report.studies import ComparisonFile, GroupJson, group_values, read_study
from headway.runs import disk
from headway.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
SWEPT = {"d_model": "width of the model (d_model)", "tokens": "tokens of a problem"}
COLOURS = {"sinusoidal": BLUE, "learned": ORANGE, "none": GREEN}
EACH_STEP = "milliseconds per model and step"
Given = ParamSpec("Given")
Dot = TypeVar("Dot", float, tuple[float, str])
MOST_GROUPS = 60
MOST_DOTS = 300  # per group; of more, this many evenly spaced ones are drawn
LabRow = TypedDict("LabRow", {  # noqa: UP013
    "run": str, "task": str, "positions": str, "seed": int, "examples": int, "errors": int, "exact_match": float,
    "interval": tuple[float, float],
})  # fmt: skip
"""one run of the lab"""


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def needs_matplotlib(draw: Callable[Given, list[Path]]) -> Callable[Given, list[Path]]:
    """Makes a function draw nothing where matplotlib is not installed; the numbers are in the files anyway."""

    @functools.wraps(draw)
    def draw_or_not(*given: Given.args, **named: Given.kwargs) -> list[Path]:
        return draw(*given, **named) if can_draw() else []

    return draw_or_not


@needs_matplotlib
def lab_figure(lab: Path, out: Path) -> list[Path]:
    """Draws the lab in one figure: how the adder learned, and how accurate each classifier is."""
    rows: list[LabRow] = disk.read_json(lab)["runs"]
    sums, sorts = ([row for row in rows if row["task"] == task] for task in ("addition", "sortedness"))
    figure, (left, right) = panels(2)
    for row in sums:
        lines = RunFolder(Path(row["run"])).log_lines()
        correct = [line.get("exact_match", 0.0) for line in lines]
        left.plot([line["step"] for line in lines], correct, color=BLUE, linewidth=1.2, alpha=0.8)
    errors = [row["errors"] for row in sums]
    verdict = "all right" if not any(errors) else f"{max(errors):,} wrong at worst"
    left.set(xlabel="training step", ylabel="exact match in the batch", ylim=(0, 1.03))
    left.set_title(f"3-digit addition: all {sums[0]['examples']:,} sums checked,\n{verdict} ({_seeds(sums)})")
    names = list(dict.fromkeys(row["positions"] for row in sorts))
    for place, name in enumerate(names):
        mine = [row for row in sorts if row["positions"] == name]
        for at, row in enumerate(mine):
            x, value, (low, high) = place + (at - (len(mine) - 1) / 2) * 0.12, row["exact_match"], row["interval"]
            error = [[value - low], [high - value]]
            right.errorbar(x, value, yerr=error, fmt="o", capsize=4, color=COLOURS.get(name, GREY))
        middle = sorted(row["exact_match"] for row in mine)[len(mine) // 2]
        right.annotate(f"{middle:.3f}", (place, middle), xytext=(0, -18), textcoords="offset points", ha="center")
    right.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    right.text(-0.45, 0.51, "chance", color=GREY, ha="left")
    right.set_xticks(range(len(names)), names)
    right.set(xlim=(-0.5, len(names) - 0.5), ylim=(0.4, 1.03))
    right.set(xlabel="position encoding", ylabel="accuracy, with 95% interval")
    tested = f"{sorts[0]['examples']:,} sequences each, {_seeds(sorts)}"
    right.set_title(f"Is it sorted? Lengths 8–16, as trained\n({tested})")
    return save_figure(figure, out / "lab")


@needs_matplotlib
def population_figure(row: dict[str, Any], out: Path) -> list[Path]:
    """Draws the cost of a model in a population against the population's size and, where measured, against the width
    of the model and the length of the problem. `row` is the row of the bench."""
    costs, fits = row["costs"], row["fits"]
    plain = [c for c in costs if c["d_model"] == 128 and c["tokens"] == 11]
    others = [c for c in costs if c not in plain]
    swept = {key: sorted((c for c in others if c[key] != plain[0][key]), key=lambda c: c[key]) for key in SWEPT}
    shown = [key for key in SWEPT if swept[key]]
    figure, (size, *rest) = panels(1 + len(shown))
    sizes, (fixed, each) = [c["population"] for c in plain], fits["population"].values()
    size.plot(sizes, [c["milliseconds_each"] for c in plain], "o-", color=BLUE, label="population, as one stack")
    elbow = sorted([*sizes, fixed / each])
    fit = [max(fixed / n, each) for n in elbow]
    size.plot(elbow, fit, "--", color=GREY, label=f"fit: {fixed:.1f} / n, at least {each:.3f} ms")
    size.axhline(row["eager_milliseconds"], color=ORANGE, label="one at a time, eager")
    size.axhline(row["compiled_milliseconds"], color=GREEN, label="one at a time, compiled")
    _scale_by_doubling(size, sizes)
    size.set(xlabel="models trained as one", ylabel=EACH_STEP, title="A model's cost falls until the GPU is full")
    size.legend(frameon=False, fontsize=8)
    for axes, key in zip(rest, shown, strict=True):
        members = swept[key][0]["population"]
        mine = sorted(swept[key] + [c for c in plain if c["population"] == members], key=lambda c: c[key])
        axes.plot([c[key] for c in mine], [c["milliseconds_each"] for c in mine], "o-", color=BLUE)
        waiting = fits["population"]["fixed_milliseconds"] / members
        axes.axhline(waiting, color=GREY, linestyle="--", linewidth=1, label="here the GPU is idle: not in the fit")
        axes.legend(frameon=False, fontsize=8, loc="upper left")
        _scale_by_doubling(axes, [c[key] for c in mine])
        axes.set(xlabel=SWEPT[key], ylabel=EACH_STEP)
        axes.set_title(f"{members:,} models as one: cost grows as {key}^{fits[key]['power']:.2f}")
    return save_figure(figure, out)


def _scale_by_doubling(axes: Axes, values: list[int]) -> None:
    """Makes both axes logarithmic, with the measured values as ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set(xscale="log", yscale="log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _seeds(rows: list[LabRow]) -> str:
    count = len({row["seed"] for row in rows})
    return f"{count} seed{'s' if count > 1 else ''}"


@needs_matplotlib
def comparison_figure(comparison: Path, out: Path) -> list[Path]:
    """Draws one panel for each metric of a comparison."""
    study = read_study(comparison, ComparisonFile)
    measured = [metric for metric in study["metrics"] if any(row["metrics"][metric]["n"] for row in study["rows"])]
    if not measured:
        return []
    shown = study["rows"][:MOST_GROUPS]
    figure, axes = panels(len(measured), height=0.34 * len(shown) + 1.4, width=4.6)
    for panel, metric in zip(axes, measured, strict=True):
        _draw_metric(panel, study, shown, metric)
        panel.set_yticks(range(len(shown)), [""] * len(shown))
    values = [["–" if value is None else str(value) for value in group_values(study, row)] for row in shown]
    names = [", ".join(each).replace("$", r"\$") for each in values]
    axes[0].set_yticks(range(len(shown)), [name if len(name) <= 40 else name[:39] + "…" for name in names], fontsize=8)
    if len(study["rows"]) > MOST_GROUPS:
        axes[0].set_ylabel(f"the first {MOST_GROUPS} of {len(study['rows']):,} groups", fontsize=8)
    return save_figure(figure, out / "compare")


def thin_out(dots: Sequence[Dot]) -> list[Dot]:
    """Sorts the dots, and keeps only evenly spaced ones where there are too many."""
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
    if min(every) >= 0 and max(every) > (8 if lengths else 100) * least:  # wide enough for a logarithmic axis
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


def panels(count: int, height: float = 3.8, rows: int = 1, width: float = 5.4) -> tuple[Figure, list[Any]]:
    """Makes a figure with `count` panels side by side, in `rows` rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, count, figsize=(width * count, height), layout="constrained", squeeze=False)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.title.set_fontsize(11)
    return figure, list(axes.flat)


def grid(count: int, across: int, height: float, width: float, extra: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Makes a figure with `count` panels of this height and width, at most `across` in a row."""
    across = min(across, count)
    down = math.ceil(count / across)
    figure, axes = panels(across, height=height * down + extra, rows=down, width=width)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Writes a figure as SVG and as PNG."""
    from matplotlib import pyplot

    written = [path.with_suffix(f".{kind}") for kind in ("svg", "png")]
    figure.draw_without_rendering()  # lays it out once, for both
    figure.set_layout_engine("none")
    for file in written:
        content = io.BytesIO()
        figure.savefig(content, format=file.suffix[1:], dpi=160)
        disk.write_bytes(file, content.getvalue())
    pyplot.close(figure)
    return written
