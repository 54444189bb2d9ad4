"""The picture of a budget: a model's key-value groups, in which those that see the whole context glow, and beside it
what the windows save and cost at each length. Drawn light and dark; sizes say the same as colours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from headway.report.figures import needs_matplotlib, panels, save_figure
from headway.runs import disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Palette:
    """The colours of a figure; amber and blue are told apart by colour-blind readers, too."""

    paper: str
    ink: str
    faint: str
    full: str
    narrow: str
    glow: float


LIGHT = Palette("#ffffff", "#1b1b1b", "#d9dde3", "#E69F00", "#0072B2", 0.10)
DARK = Palette("#12151b", "#e8e8e8", "#2d333d", "#FFC94D", "#56B4E9", 0.13)
HALOS = (5.5, 3.6, 2.3)  # areas, beside that of the dot
DOT, SMALLEST = 150.0, 22.0
MOST_LABELS = 24


class BudgetJson(TypedDict):
    sink: int
    windows: dict[str, list[int | None]]


class LengthJson(TypedDict):
    what: str
    length: int
    cache_share: float
    full: float
    windows: float


class WindowsFile(TypedDict):
    """What a figure reads of `windows.json`."""

    budget: BudgetJson
    cache_share: float
    length: int
    by_length: list[LengthJson]


@needs_matplotlib
def windows_figure(file: Path, out: Path) -> list[Path]:
    """Draws `windows.svg` and `.png`, and the same in dark."""
    study: WindowsFile = disk.read_json(file)
    written = []
    for palette, name in ((LIGHT, "windows"), (DARK, "windows-dark")):
        recall = [row for row in study["by_length"] if row["what"] != "loss"]
        losses = [row for row in study["by_length"] if row["what"] == "loss"]
        shown = [rows for rows in (recall, losses) if rows]
        layers = len(study["budget"]["windows"])
        figure, axes = panels(1 + len(shown), height=max(3.4, 1.6 + 0.24 * layers), width=4.6)
        figure.patch.set_facecolor(palette.paper)
        for each in axes:
            _dress(each, palette)
        _draw_groups(axes[0], study, palette)
        for each, rows in zip(axes[1:], shown, strict=True):
            _draw_lengths(each, rows, palette)
        written += save_figure(figure, out / name)
    return written


def _dress(axes: Axes, palette: Palette) -> None:
    axes.set_facecolor(palette.paper)
    axes.tick_params(colors=palette.ink, labelsize=9)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(palette.ink)
    for spine in axes.spines.values():
        spine.set_color(palette.faint)


def _draw_groups(axes: Axes, study: WindowsFile, palette: Palette) -> None:
    """Draws a dot for each group: amber and glowing where it sees everything, blue and smaller the less it sees."""
    budget = study["budget"]
    sites, widest = list(budget["windows"]), max(map(len, budget["windows"].values()))
    narrow = [window for windows in budget["windows"].values() for window in windows if window is not None]
    scale = min(1.0, 12 / max(len(sites), widest))
    for row, site in enumerate(sites):
        for group, window in enumerate(budget["windows"][site]):
            if window is None:
                for halo in HALOS:
                    axes.scatter(group, row, s=DOT * scale * halo, color=palette.full, alpha=palette.glow, linewidths=0)
                axes.scatter(group, row, s=DOT * scale, color=palette.full, linewidths=0, zorder=3)
            else:
                share = math.log1p(window) / math.log1p(max(narrow))
                size = (SMALLEST + 0.4 * (DOT - SMALLEST) * share * (window > min(narrow))) * scale
                axes.scatter(group, row, s=size, color=palette.narrow, linewidths=0, zorder=3)
    step = max(1, len(sites) // MOST_LABELS)
    axes.set_yticks(range(0, len(sites), step), [_layer(site) for site in sites[::step]])
    axes.set_xticks(range(0, widest, max(1, widest // MOST_LABELS)))
    axes.set(xlim=(-0.7, widest - 0.3), ylim=(len(sites) - 0.3, -0.7), xlabel="key-value group")
    axes.set_aspect("equal" if max(len(sites), widest) < 3 * min(len(sites), widest) else "auto")
    _explain(axes, study, sorted(set(narrow)), palette)


def _explain(axes: Axes, study: WindowsFile, narrow: list[int], palette: Palette) -> None:
    full = sum(window is None for windows in study["budget"]["windows"].values() for window in windows)
    count = sum(map(len, study["budget"]["windows"].values()))
    share = f"{study['cache_share']:.0%} of the cache at {study['length']:,} tokens"
    axes.set_title(f"{full} of {count} groups see everything;\n{share}", fontsize=10)
    seen = ", ".join(f"{window:,}" for window in narrow) if len(narrow) <= 4 else f"{narrow[0]:,} to {narrow[-1]:,}"
    axes.scatter([], [], s=70, color=palette.full, label="sees everything")
    if narrow:
        axes.scatter([], [], s=25, color=palette.narrow, label=f"sees {study['budget']['sink']} first, last {seen}")
    below = -0.55 / axes.figure.get_figheight()  # so many inches, whatever the height
    legend = axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, below), ncols=2)
    for text in legend.get_texts():
        text.set_color(palette.ink)


def _layer(site: str) -> str:
    parts = site.split(".")
    return f"L{parts[1]}" if len(parts) == 3 and parts[1].isdecimal() else site


def _draw_lengths(axes: Axes, rows: list[LengthJson], palette: Palette) -> None:
    """Draws a measurement against the length: of the model as it is, and with windows."""
    names = list(dict.fromkeys(row["what"] for row in rows))
    for name, marker in zip(names, "os^Dv", strict=False):
        mine = sorted((row for row in rows if row["what"] == name), key=lambda row: row["length"])
        lengths = [row["length"] for row in mine]
        what = "" if len(names) == 1 else f"{name}, "
        full, windows = ([row[key] for row in mine] for key in ("full", "windows"))
        axes.plot(lengths, full, "--", marker=marker, color=palette.full, label=f"{what}as it is")
        axes.plot(lengths, windows, marker=marker, color=palette.narrow, label=f"{what}with windows")
    lengths = sorted({row["length"] for row in rows})
    shares = {row["length"]: row["cache_share"] for row in rows}
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}\n{shares[length]:.0%}" for length in lengths])
    axes.minorticks_off()
    loss = names == ["loss"]
    axes.set(xlabel="tokens, and share of the cache", ylabel="loss, nats a token" if loss else "share right")
    axes.set_title("Loss on the text" if loss else "Recall", fontsize=10)
    if not loss:
        axes.set_ylim(0, 1.04)
    legend = axes.legend(frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_color(palette.ink)
