"""Draws a length study of a language model: recall by length and by depth, each cure, and the loss by position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headway.report.figures import BLUE, GREY, ORANGE, panels, save_figure
from headway.report.lengths_of_subject import COLOURS, STYLES
from headway.report.studies import LanguageLengthsFile, RecallRowJson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KIND = "lengths-of-language"
NONE = "none"


def draw_language(study: LanguageLengthsFile, out: Path) -> list[Path]:
    """Draws the curves of every task and cure, the depths of the untouched model, and the loss by position."""
    written = _curves(study, out / "lengths-curves")
    written += _depths(study, out / "lengths-depths")
    return written + (_losses(study, out / "lengths-loss") if study["loss"] is not None else [])


def _curves(study: LanguageLengthsFile, out: Path) -> list[Path]:
    tasks = study["tasks"]
    figure, axes = panels(len(tasks), height=3.9, width=4.2)
    cures = list(dict.fromkeys(row["cure"] for row in study["rows"]))
    for panel, task in zip(axes, tasks, strict=True):
        for number, cure in enumerate(cures):
            rows = sorted(_rows(study, task, cure), key=lambda row: row["length"])
            if cure != NONE and rows:  # the curve of a cure begins where the untouched one was last in range
                rows = [row for row in _rows(study, task, NONE) if row["length"] == study["trained"]] + rows
            run = [row for row in rows if row["accuracy"] is not None]
            colour, style = ("black", "-") if cure == NONE else _style(number)
            lengths, heights = [row["length"] for row in run], [row["accuracy"] or 0.0 for row in run]
            label = "untouched" if cure == NONE else cure
            axes_of = panel.plot(lengths, heights, color=colour, linestyle=style, marker="o", markersize=3, label=label)
            if cure == NONE:
                axes_of[0].set_linewidth(2.2)
                ends = [[(row["interval"] or (0, 0))[end] or 0.0 for row in run] for end in (0, 1)]
                panel.fill_between(lengths, *ends, color=colour, alpha=0.15, linewidth=0)
                stopped = [row["length"] for row in rows if row["accuracy"] is None]
                panel.plot(stopped, [0.0] * len(stopped), "x", color=colour, markersize=7)
        chances = [(row["length"], row["chance"]) for row in _rows(study, task, NONE)]
        panel.plot(*zip(*sorted(chances), strict=True), color=GREY, linestyle="--", linewidth=0.9, label="chance")
        panel.axvline(study["trained"], color=GREY, linewidth=0.8, alpha=0.7)
        _length_axis(panel, study["lengths"])
        panel.set(ylim=(-0.05, 1.06), title=task)
    axes[0].set_ylabel("accuracy")
    axes[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save_figure(figure, out)


def _depths(study: LanguageLengthsFile, out: Path) -> list[Path]:
    """Draws accuracy by length and depth as a map of squares."""
    tasks = study["tasks"]
    figure, axes = panels(len(tasks), height=2.6, width=3.9)
    lengths, depths = study["lengths"], study["depths"]
    for panel, task in zip(axes, tasks, strict=True):
        rows = {row["length"]: row for row in _rows(study, task, NONE)}
        table = [[_at_depth(rows.get(length), number) for length in lengths] for number in range(len(depths))]
        panel.imshow(table, vmin=0, vmax=1, cmap="cividis", aspect="auto")
        for y, line in enumerate(table):
            for x, value in enumerate(line):
                known = value == value
                words = f"{value:.2f}" if known else "–"
                panel.text(
                    x,
                    y,
                    words,
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="black" if known and value > 0.6 else "white",
                )
        panel.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], fontsize=8)
        panel.set_yticks(range(len(depths)), [f"{depth:.2f}" for depth in depths], fontsize=8)
        panel.set(title=task, xlabel="length")
    axes[0].set_ylabel("depth of the fact")
    return save_figure(figure, out)


def _losses(study: LanguageLengthsFile, out: Path) -> list[Path]:
    losses = study["loss"]
    assert losses is not None
    figure, (axes,) = panels(1, height=3.2, width=5.6)
    middle = [(band["first"] * band["last"]) ** 0.5 for band in losses["bands"]]
    heights = [band["loss"] for band in losses["bands"]]
    axes.plot(middle, heights, color=BLUE, marker="o", markersize=3)
    ends = [[band["interval"][end] or 0.0 for band in losses["bands"]] for end in (0, 1)]
    axes.fill_between(middle, *ends, color=BLUE, alpha=0.18, linewidth=0)
    axes.axvline(study["trained"], color=GREY, linewidth=0.8, label=f"training length {study['trained']:,}")
    if losses["rises_at"] is not None:
        axes.axvline(losses["rises_at"], color=ORANGE, linestyle="--", label=f"rises from {losses['rises_at']:,}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(xlabel="position", ylabel="loss on the text (nats)")
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, out)


def _rows(study: LanguageLengthsFile, task: str, cure: str) -> list[RecallRowJson]:
    return [row for row in study["rows"] if row["task"] == task and row["cure"] == cure]


def _at_depth(row: RecallRowJson | None, depth: int) -> float:
    value = None if row is None or not row["by_depth"] else row["by_depth"][depth]["accuracy"]
    return float("nan") if value is None else value


def _style(number: int) -> tuple[str, str | tuple[int, tuple[int, ...]]]:
    return COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]


def _length_axis(axes: Axes, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    shown = lengths if len(lengths) <= 8 else lengths[:: len(lengths) // 8 + 1]
    axes.set_xticks(shown, [f"{length:,}" for length in shown], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("length")
