"""Pictures of a length study: accuracy against length, and what each encoding signals."""

from __future__ import annotations

import importlib.util
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.report.figures import BLUE, GREEN, GREY, ORANGE, panels, save_figure
from headway.runs import disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROBES = {  # colour, line, width: lines that lie on each other stay visible
    "default": ("#56B4E9", "-", 3.8),
    "one-inversion": (ORANGE, "-", 1.3),
    "descending": (GREEN, (0, (3, 2)), 1.6),
    "ties": ("#CC79A7", "-.", 1.3),
    "carry-heavy": (ORANGE, "-", 1.3),
    "carry-chain": (GREEN, (0, (3, 2)), 1.6),
}
HEADS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00", "#F0E442", GREY)
ACROSS = 4
CHANCE = 0.5

Json = dict[str, Any]


def lengths_figures(study: Path, out: Path) -> list[Path]:
    """Curves, tables, biases and likeness; without matplotlib there are none, the numbers are in lengths.json."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    found = disk.read_json(study)
    written = [*_board(found, out), *_curves(found, out)]
    tables = [s for s in found["signals"] if s["after"]["table"] is not None]
    biases = [s for s in found["signals"] if s["after"]["bias"] is not None]
    alike = [s for s in found["signals"] if s["after"]["likeness"] is not None and s["after"]["bias"] is None]
    written += _tables(tables, out) if tables else []
    written += _grid(biases, _bias, out / "lengths-biases") if biases else []
    return written + (_grid(alike, _likeness, out / "lengths-likeness") if alike else [])


def entry_of(row: Json) -> tuple[str, str, str | None]:
    return row["positions"], row["index"], row["pooling"]


def title_of(entry: tuple[str, str, str | None]) -> str:
    positions, index, _ = entry
    named = "+".join(part for part in index.split("+") if not part.startswith("range="))
    return positions if index == "sequential" else f"{positions}, {named}"


def _board(found: Json, out: Path) -> list[Path]:
    """All entries side by side: how far each seed reaches, on the probes that any seed has any reach on."""
    reaches = {probe: [row for row in found["reach"] if row["probe"] == probe] for probe in _probes(found)}
    shown = [probe for probe, rows in reaches.items() if any(any(row["by_seed"].values()) for row in rows)]
    shown = shown or list(reaches)[:1]
    entries = sorted((entry_of(row) for row in reaches[shown[0]]), key=lambda entry: _rank(found, entry, shown))
    shortest, longest = found["train_lengths"]
    nothing, none_learned = shortest / 2, shortest / 8  # where a reach of 0, and no claim at all, are drawn
    figure, axes = panels(len(shown), height=0.27 * len(entries) + 1.3, width=4.6)
    for panel, probe in zip(axes, shown, strict=True):
        colour = PROBES.get(probe, (GREY, "-", 1.3))[0]
        for line, entry in enumerate(reversed(entries)):
            row = next(row for row in reaches[probe] if entry_of(row) == entry)
            by_seed = list(row["by_seed"].values())
            at = [none_learned if value is None else value or nothing for value in by_seed]
            spread = [line + 0.6 / len(at) * (n - (len(at) - 1) / 2) for n in range(len(at))]
            panel.scatter(at, spread, s=13, color=[GREY if v is None else colour for v in by_seed], zorder=3)
        panel.axvspan(shortest, longest, color=GREY, alpha=0.2, linewidth=0)
        lengths = [length for length in sorted({row["length"] for row in found["rows"]}) if length >= longest]
        panel.set_xscale("log", base=2)
        ticks = lengths if len(lengths) <= 5 else lengths[::2]
        panel.set_xticks(
            [none_learned, nothing, *ticks], ["did not\nlearn", "none", *(f"{n:,}" for n in ticks)], fontsize=8
        )
        panel.minorticks_off()
        names = [title_of(entry) for entry in reversed(entries)] if probe == shown[0] else []
        panel.set_yticks(range(len(entries)), names or [""] * len(entries), fontsize=8)
        panel.grid(axis="y", linewidth=0.4, alpha=0.5)
        panel.set_ylim(-0.7, len(entries) - 0.3)
        panel.set_title(f"reach on {probe}, each seed a dot", fontsize=9)
    return save_figure(figure, out / "lengths-board")


def _probes(found: Json) -> list[str]:
    return list(dict.fromkeys(row["probe"] for row in found["reach"]))


def _rank(found: Json, entry: tuple[str, str, str | None], probes: list[str]) -> list[int]:
    """Furthest first: by the worst seed on the first probe, then by the sum of all."""
    mine = {row["probe"]: list(row["by_seed"].values()) for row in found["reach"] if entry_of(row) == entry}
    worst = min(-1 if value is None else value for value in mine[probes[0]])
    return [-worst, -sum(value or 0 for probe in probes for value in mine[probe])]


def _curves(found: Json, out: Path) -> list[Path]:
    entries = list(dict.fromkeys(entry_of(row) for row in found["rows"]))
    across = min(ACROSS, len(entries))
    down = math.ceil(len(entries) / across)
    figure, axes = panels(across, height=3.1 * down + 0.5, rows=down, width=3.7)
    flat = list(axes.flat) if down > 1 else list(axes)
    for panel, entry in zip(flat, entries, strict=False):
        _curve(panel, found, entry)
    for panel in flat[len(entries) :]:
        panel.axis("off")
    for panel in flat[::across]:
        panel.set_ylabel("right", fontsize=9)
    for panel in flat[max(0, len(entries) - across) : len(entries)]:
        panel.set_xlabel("length", fontsize=9)
    handles, names = flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 2 * across), frameon=False)
    return save_figure(figure, out / "lengths-curves")


def _curve(axes: Axes, found: Json, entry: tuple[str, str, str | None]) -> None:
    """One encoding: the median over seeds of each probe, and how far the seeds lie apart."""
    rows = [row for row in found["rows"] if entry_of(row) == entry]
    runs = [run for run in found["converged"] if entry_of(run) == entry]
    learned = {run["seed"] for run in runs if run["converged"]}
    shown = [row for row in rows if row["seed"] in learned] or rows
    for probe in dict.fromkeys(row["probe"] for row in rows):
        colour, style, width = PROBES.get(probe, (GREY, "-", 1.3))
        by_length: dict[int, list[float]] = {}
        for row in shown:
            if row["probe"] == probe:
                by_length.setdefault(row["length"], []).append(row["accuracy"])
        lengths = sorted(by_length)
        middle = [statistics.median(by_length[length]) for length in lengths]
        axes.plot(lengths, middle, color=colour, linestyle=style, linewidth=width, label=probe)
        low, high = ([edge(by_length[length]) for length in lengths] for edge in (min, max))
        axes.fill_between(lengths, low, high, color=colour, alpha=0.12, linewidth=0)
    shortest, longest = found["train_lengths"]
    axes.axvspan(shortest, longest, color=GREY, alpha=0.2, linewidth=0, label="trained on")
    by_chance = found["task"] == "sortedness"
    if by_chance:
        axes.axhline(CHANCE, color=GREY, linestyle="--", linewidth=0.8)
    lengths = sorted({row["length"] for row in rows})
    axes.set_xscale("log", base=2)
    ticks = lengths if len(lengths) <= 6 else lengths[::2]
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlim(shortest * 0.9, lengths[-1] * 1.1)
    axes.set_ylim(0.38 if by_chance else -0.05, 1.03 if by_chance else 1.06)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_title(f"{title_of(entry)}\n{_verdict(found, entry, len(learned), len(runs))}", fontsize=9)


def _verdict(found: Json, entry: tuple[str, str, str | None], learned: int, seeds: int) -> str:
    if not learned:
        return f"did not learn in range ({seeds} seed{'s' if seeds > 1 else ''})"
    probe = found["rows"][0]["probe"]
    reach = next(row for row in found["reach"] if entry_of(row) == entry and row["probe"] == probe)
    known = [value for value in reach["by_seed"].values() if value is not None]
    if not known:
        return "withheld: a check forbids to tell"
    span = f"{min(known):,}" if min(known) == max(known) else f"{min(known):,} to {max(known):,}"
    some = "" if learned == seeds else f", {learned} of {seeds} learned"
    return f"reach {span}{some}"


def _tables(shown: list[Json], out: Path) -> list[Path]:
    """What is added at each place, before training and after; the line is where training ended."""
    figure, axes = panels(2, height=2.6 * len(shown) + 0.4, rows=len(shown), width=5.4)
    rows = axes if len(shown) > 1 else [axes]
    for pair, signal in zip(rows, shown, strict=True):
        tables = [signal[moment]["table"] for moment in ("before", "after")]
        most = max(abs(value or 0.0) for table in tables if table for line in table for value in line)
        image = None
        for panel, moment in zip(pair, ("before", "after"), strict=True):
            rows = signal[moment]["table"] or [[0.0] * len(signal["after"]["table"][0])] * signal["tokens"]
            table = [[value or 0.0 for value in line] for line in zip(*rows, strict=True)]  # d_model token
            image = panel.imshow(table, aspect="auto", cmap="PuOr", vmin=-most, vmax=most, interpolation="nearest")
            in_order = signal["index"] == "sequential"
            if in_order:  # other indices bring any number up in training
                panel.axvline(signal["trained"] - 0.5, color="black", linewidth=1)
            panel.set_title(f"{title_of(entry_of(signal))}, {moment} training", fontsize=9)
            panel.set_xlabel("place (trained to the line)" if in_order else "number", fontsize=8)
            panel.set_ylabel("dimension", fontsize=8)
        assert image is not None
        figure.colorbar(image, ax=pair[1], shrink=0.9)
    return save_figure(figure, out / "lengths-tables")


def _grid(shown: list[Json], draw: Any, path: Path) -> list[Path]:
    across = min(ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    figure, axes = panels(across, height=2.7 * down + 0.4, rows=down, width=3.7)
    flat = list(axes.flat) if down > 1 else list(axes)
    for panel, signal in zip(flat, shown, strict=False):
        draw(panel, signal)
        panel.set_title(title_of(entry_of(signal)), fontsize=9)
        panel.tick_params(labelsize=8)
    for panel in flat[len(shown) :]:
        panel.axis("off")
    handles, names = flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False, fontsize=8)
    return save_figure(figure, path)


def _bias(axes: Axes, signal: Json) -> None:
    """What each head adds to its scores at each distance."""
    middle = signal["tokens"] // 2
    for head, (before, after) in enumerate(zip(signal["before"]["bias"], signal["after"]["bias"], strict=True)):
        colour = HEADS[head % len(HEADS)]
        for line, style, width in ((before, ":", 0.9), (after, "-", 1.4)):
            distances = [place - middle for place in range(len(line))]
            values = [math.nan if value is None else value for value in line]
            label = f"head {head}" if style == "-" else ("before training" if head == 0 else None)
            axes.plot(distances, values, style, color=colour if style == "-" else GREY, linewidth=width, label=label)
    if signal["index"] == "sequential":
        axes.axvspan(-signal["trained"] + 1, signal["trained"] - 1, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xlabel("key's place less the query's", fontsize=8)
    axes.set_ylabel("added to the score", fontsize=8)


def _likeness(axes: Axes, signal: Json) -> None:
    """How alike two places are, by how far apart they lie."""
    for moment, style, colour in (("before", ":", GREY), ("after", "-", BLUE)):
        values = [math.nan if value is None else value for value in signal[moment]["likeness"] or []]
        axes.plot(range(len(values)), values, style, color=colour, label=f"{moment} training")
    if signal["index"] == "sequential":
        axes.axvspan(0, signal["trained"] - 1, color=GREY, alpha=0.15, linewidth=0, label="distances trained on")
    axes.set_xlabel("distance", fontsize=8)
    axes.set_ylabel("likeness", fontsize=8)
