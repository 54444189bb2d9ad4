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
SWEPT = {"d_model": "width of the model (d_model)", "tokens": "tokens of a problem"}
COLOURS = {"sinusoidal": BLUE, "learned": ORANGE, "none": GREEN}


def lab_figure(lab: Path, out: Path) -> list[Path]:
    """The lab in one picture: how the adder learned, and what each classifier can tell.

    Without matplotlib there is none; the numbers are in lab.json all the same.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return []
    rows = disk.read_json(lab)["runs"]
    figure, (left, right) = panels(2)
    _learning(left, [row for row in rows if row["task"] == "addition"])
    _sortedness(right, [row for row in rows if row["task"] == "sortedness"])
    return save_figure(figure, out / "lab")


def population_figure(row: dict[str, Any], out: Path) -> list[Path]:
    """What a model costs in a population: against its size and, where measured, the model's width and the
    problem's length. `row` is the bench's row; without matplotlib there is no picture.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return []
    costs, fits = row["costs"], row["fits"]
    plain = [c for c in costs if c["d_model"] == 128 and c["tokens"] == 11]
    others = [c for c in costs if c not in plain]
    swept = {key: sorted((c for c in others if c[key] != plain[0][key]), key=lambda c: c[key]) for key in SWEPT}
    shown = [key for key in SWEPT if swept[key]]
    figure, (size, *rest) = panels(1 + len(shown))
    _against_size(size, plain, row)
    for axes, key in zip(rest, shown, strict=True):
        members = swept[key][0]["population"]
        mine = sorted(swept[key] + [c for c in plain if c["population"] == members], key=lambda c: c[key])
        axes.plot([c[key] for c in mine], [c["milliseconds_each"] for c in mine], "o-", color=BLUE)
        waiting = fits["population"]["fixed_milliseconds"] / members
        axes.axhline(waiting, color=GREY, linestyle="--", linewidth=1, label="here the GPU waits: not in the fit")
        axes.legend(frameon=False, fontsize=8, loc="upper left")
        _doubling(axes, [c[key] for c in mine])
        axes.set_xlabel(SWEPT[key])
        axes.set_ylabel("milliseconds a model and step")
        axes.set_title(f"{members:,} models as one: cost grows as {key}^{fits[key]['power']:.2f}")
    return save_figure(figure, out)


def _against_size(axes: Axes, costs: list[dict[str, Any]], row: dict[str, Any]) -> None:
    sizes = [c["population"] for c in costs]
    fixed, each = row["fits"]["population"].values()
    axes.plot(sizes, [c["milliseconds_each"] for c in costs], "o-", color=BLUE, label="population, as one stack")
    elbow = sorted([*sizes, fixed / each])
    fit = [max(fixed / n, each) for n in elbow]
    axes.plot(elbow, fit, "--", color=GREY, label=f"fit: {fixed:.1f} / n, at least {each:.3f} ms")
    axes.axhline(row["eager_milliseconds"], color=ORANGE, label="one at a time, eager")
    axes.axhline(row["compiled_milliseconds"], color=GREEN, label="one at a time, compiled")
    _doubling(axes, sizes)
    axes.set_xlabel("models trained as one")
    axes.set_ylabel("milliseconds a model and step")
    axes.set_title("A model's cost falls until the GPU is full")
    axes.legend(frameon=False, fontsize=8)


def _doubling(axes: Axes, values: list[int]) -> None:
    """Both axes logarithmic, with the measured values as ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


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


def panels(count: int, height: float = 3.8, rows: int = 1, width: float = 5.4) -> tuple[Figure, Any]:
    """A figure with so many panels side by side, in so many rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, count, figsize=(width * count, height), layout="constrained", squeeze=False)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.title.set_fontsize(11)
    return figure, axes[0] if rows == 1 else axes


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Writes it as SVG and as PNG."""
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
