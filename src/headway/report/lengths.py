"""Draws a length study: accuracy against length, and the signal of each encoding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headway.compare.leaderboard import Entry as BoardEntry
from headway.compare.leaderboard import board_of_rows
from headway.report.figures import BLUE, GREEN, GREY, ORANGE, grid, needs_matplotlib, panels, save_figure
from headway.report.lengths_of_language import KIND as LANGUAGE
from headway.report.lengths_of_language import draw_language
from headway.report.lengths_of_subject import KIND, draw_subject
from headway.report.studies import EntryJson, LengthsFile, ReachJson, Real, SignalJson, fill_defaults
from headway.runs import disk
from headway.runs.shapes import schema_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROBES = {  # colour, line, width: overlapping lines stay visible
    "default": ("#56B4E9", "-", 3.8),
    "one-inversion": (ORANGE, "-", 1.3),
    "descending": (GREEN, (0, (3, 2)), 1.6),
    "ties": ("#CC79A7", "-.", 1.3),
    "carry-heavy": (ORANGE, "-", 1.3),
    "carry-chain": (GREEN, (0, (3, 2)), 1.6),
}
PLAIN = (GREY, "-", 1.3)  # for a user's probe
HEADS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00", "#F0E442", GREY)
ACROSS = 4
Entry = tuple[str, str, str | None]  # positions, index and pooling


@needs_matplotlib
def lengths_figures(study: Path, out: Path) -> list[Path]:
    """Draws the reach, the curves, and the tables, biases and likeness of each encoding; or a user's model's curve."""
    content = disk.read_json(study)
    kind = schema_of(study, content, in_run=False)
    if kind == KIND:
        return draw_subject(content, out)
    if kind == LANGUAGE:
        return draw_language(content, out)
    found = complete_lengths(fill_defaults(content, LengthsFile))
    written = [*_board(found, out), *curves_figure(found, out)]
    tables, biases, alike = (
        [signal for signal in found["signals"] if signal["after"].get(key) is not None]
        for key in ("table", "bias", "likeness")
    )
    alike = [signal for signal in alike if signal["after"].get("bias") is None]
    written += _tables(tables, out) if tables else []
    written += _grid(biases, _draw_bias, out / "lengths-biases") if biases else []
    return written + (_grid(alike, _draw_likeness, out / "lengths-likeness") if alike else [])


def complete_lengths(study: LengthsFile) -> LengthsFile:
    """Applies today's rules to a file of an older version: reach and findings follow from the counts in its rows."""
    whole = all("examples" in row and row["examples"] > 0 for row in study["rows"]) and all(
        "in_range" in run and "interval" in run for run in study["converged"]
    )
    if "level" in study or not whole or not study["converged"] or not study["rows"]:
        return study
    reasons = {
        BoardEntry(*entry_of(each)): f"{each['check']}: {each['reason']}"  # pyright: ignore[reportArgumentType]
        for each in study["withheld"]
        if "positions" in each and "index" in each
    }
    diagnosis = [each for each in study["diagnosis"] if "seed" in each]
    board = board_of_rows(study["rows"], study["converged"], diagnosis, study["train_lengths"][1], reasons)
    rows: list[ReachJson] = board.reach_rows()  # pyright: ignore[reportAssignmentType]
    return {**study, "reach": rows, "findings": board.findings(), "level": board.level()}


def entry_of(row: EntryJson) -> Entry:
    return row["positions"], row["index"], row.get("pooling")


def title_of(entry: Entry) -> str:
    positions, index, _ = entry
    named = "+".join(part for part in index.split("+") if not part.startswith("range="))
    return positions if index == "sequential" else f"{positions}, {named}"


def _board(found: LengthsFile, out: Path) -> list[Path]:
    """Draws the reach of each seed of all entries, on the probes where any seed has a reach."""
    reaches: dict[str, dict[Entry, list[int | None]]] = {}
    failing: dict[Entry, list[str]] = {}
    for row in found["reach"]:
        reaches.setdefault(row["probe"], {})[entry_of(row)] = list(row["by_seed"].values())
        failing[entry_of(row)] = row.get("fails_in_range") or []
    shown = [probe for probe in reaches if any(map(any, reaches[probe].values()))] or list(reaches)[:1]

    def rank(entry: Entry) -> list[int]:
        """Ranks those that hold on every probe in range first and those that did not learn last; then by the worst seed
        on the first probe, then by the sum of all."""
        worst = min(-1 if value is None else value for value in reaches[shown[0]][entry])
        unlearned = all(value is None for value in reaches[shown[0]][entry])
        return [
            unlearned,
            len(failing[entry]),
            -worst,
            -sum(value or 0 for probe in shown for value in reaches[probe][entry]),
        ]

    def name_of(entry: Entry) -> str:
        failed = ", ".join(failing[entry])
        return f"{title_of(entry)} (not held in range: {failed})" if failed else title_of(entry)

    entries = sorted(reaches[shown[0]], key=rank)[::-1]  # from the bottom up
    shortest, longest = found["train_lengths"]
    nothing, none_learned = shortest / 2, shortest / 8  # where a reach of 0, and a seed that did not learn, are drawn
    lengths = [length for length in sorted({row["length"] for row in found["rows"]}) if length >= longest]
    ticks = lengths if len(lengths) <= 5 else lengths[::2]
    labels = ["did not\nlearn", "none", *(f"{n:,}" for n in ticks)]
    figure, axes = panels(len(shown), height=0.27 * len(entries) + 1.3, width=4.6)
    for panel, probe in zip(axes, shown, strict=True):
        colour = PROBES.get(probe, PLAIN)[0]
        for line, entry in enumerate(entries):
            by_seed, seeds = reaches[probe][entry], len(reaches[probe][entry])
            at = [none_learned if value is None else value or nothing for value in by_seed]
            spread = [line + 0.6 / seeds * (n - (seeds - 1) / 2) for n in range(seeds)]
            colours = [GREY if value is None else colour for value in by_seed]
            filled = "none" if failing[entry] else colours  # open circles: no reach without a restriction
            panel.scatter(at, spread, s=13, facecolors=filled, edgecolors=colours, zorder=3)
        panel.axvspan(shortest, longest, color=GREY, alpha=0.2, linewidth=0)
        panel.set_xscale("log", base=2)
        panel.set_xticks([none_learned, nothing, *ticks], labels, fontsize=8)
        panel.minorticks_off()
        names = [name_of(entry) if probe == shown[0] else "" for entry in entries]
        panel.set_yticks(range(len(entries)), names, fontsize=8)
        panel.grid(axis="y", linewidth=0.4, alpha=0.5)
        panel.set_ylim(-0.7, len(entries) - 0.3)
        panel.set_title(f"reach (probe {probe}), by seed", fontsize=9)
    return save_figure(figure, out / "lengths-board")


def curves_figure(found: LengthsFile, out: Path) -> list[Path]:
    """Draws accuracy against length in one panel for each encoding."""
    entries = list(dict.fromkeys(entry_of(row) for row in found["rows"]))
    across = min(ACROSS, len(entries))
    figure, axes = grid(len(entries), across, height=3.1, width=3.7, extra=0.5)
    for panel, entry in zip(axes, entries, strict=True):
        _draw_curve(panel, found, entry)
    for panel in axes[::across]:
        panel.set_ylabel("accuracy", fontsize=9)
    for panel in axes[-across:]:
        panel.set_xlabel("length", fontsize=9)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 2 * across), frameon=False)
    return save_figure(figure, out / "lengths-curves")


def _draw_curve(axes: Axes, found: LengthsFile, entry: Entry) -> None:
    """Draws one encoding: for each probe the median over seeds, and the range of the seeds."""
    rows = [row for row in found["rows"] if entry_of(row) == entry]
    runs = [run for run in found["converged"] if entry_of(run) == entry]
    learned = {run["seed"] for run in runs if run["converged"]}
    shown = [row for row in rows if row["seed"] in learned] or rows
    for probe in dict.fromkeys(row["probe"] for row in rows):
        colour, style, width = PROBES.get(probe, PLAIN)
        by_length: dict[int, list[float]] = {}
        for row in shown:
            if row["probe"] == probe:
                by_length.setdefault(row["length"], []).append(row["accuracy"])
        lengths = sorted(by_length)
        low, middle, high = ([of(by_length[length]) for length in lengths] for of in (min, statistics.median, max))
        axes.plot(lengths, middle, color=colour, linestyle=style, linewidth=width, label=probe)
        axes.fill_between(lengths, low, high, color=colour, alpha=0.12, linewidth=0)
    shortest, longest = found["train_lengths"]
    axes.axvspan(shortest, longest, color=GREY, alpha=0.2, linewidth=0, label="trained on")
    by_chance = found["task"] == "sortedness"
    if by_chance:
        axes.axhline(0.5, color=GREY, linestyle="--", linewidth=0.8)
    lengths = sorted({row["length"] for row in rows})
    axes.set_xscale("log", base=2)
    ticks = lengths if len(lengths) <= 6 else lengths[::2]
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set(xlim=(shortest * 0.9, lengths[-1] * 1.1), ylim=(0.38, 1.03) if by_chance else (-0.05, 1.06))
    axes.tick_params(axis="y", labelsize=8)
    axes.set_title(f"{title_of(entry)}\n{_verdict(found, entry, len(learned), len(runs))}", fontsize=9)


def _verdict(found: LengthsFile, entry: Entry, learned: int, seeds: int) -> str:
    if not learned:
        return f"did not learn in range ({seeds} seed{'s' if seeds > 1 else ''})"
    probe = found["rows"][0]["probe"]
    reach = next(row for row in found["reach"] if entry_of(row) == entry and row["probe"] == probe)
    known = sorted({value for value in reach["by_seed"].values() if value is not None})
    if not known:
        return "withheld: a check failed"
    span = " to ".join(f"{length:,}" for length in dict.fromkeys((known[0], known[-1])))
    if failed := reach.get("fails_in_range"):
        return f"not held in range: {', '.join(failed)}\n(on {probe} {span})"
    return f"reach {span}" + ("" if learned == seeds else f", {learned} of {seeds} learned")


def _tables(shown: list[SignalJson], out: Path) -> list[Path]:
    """Draws the table that is added at each position, before and after training; the line ends the trained range."""
    figure, axes = panels(2, height=2.6 * len(shown) + 0.4, rows=len(shown), width=5.4)
    for signal, *pair in zip(shown, axes[::2], axes[1::2], strict=True):
        after = signal["after"].get("table") or [[]]
        tables = [signal["before"].get("table") or [[0.0] * len(after[0])] * signal["tokens"], after]
        most = max(abs(value or 0.0) for table in tables for line in table for value in line)
        in_order = signal["index"] == "sequential"
        for panel, moment, places in zip(pair, ("before", "after"), tables, strict=True):
            table = [[value or 0.0 for value in line] for line in zip(*places, strict=True)]  # d_model token
            panel.imshow(table, aspect="auto", cmap="PuOr", vmin=-most, vmax=most, interpolation="nearest")
            if in_order:  # other indices use any number in training
                panel.axvline(signal["trained"] - 0.5, color="black", linewidth=1)
            panel.set_title(f"{title_of(entry_of(signal))}, {moment} training", fontsize=9)
            panel.set_xlabel("position (trained up to the line)" if in_order else "number", fontsize=8)
            panel.set_ylabel("dimension", fontsize=8)
        figure.colorbar(pair[1].images[0], ax=pair[1], shrink=0.9)
    return save_figure(figure, out / "lengths-tables")


def _grid(shown: list[SignalJson], draw: Callable[[Axes, SignalJson], None], path: Path) -> list[Path]:
    figure, axes = grid(len(shown), ACROSS, height=2.7, width=3.7, extra=0.4)
    for panel, signal in zip(axes, shown, strict=True):
        draw(panel, signal)
        panel.set_title(title_of(entry_of(signal)), fontsize=9)
        panel.tick_params(labelsize=8)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(6, len(names)), frameon=False, fontsize=8)
    return save_figure(figure, path)


def _draw_bias(axes: Axes, signal: SignalJson) -> None:
    """Draws what each head adds to its scores at each distance."""
    middle = signal["tokens"] // 2
    before, after = (signal[moment].get("bias") or [] for moment in ("before", "after"))
    for head, lines in enumerate(zip(before, after, strict=True)):
        colours, labels = (GREY, HEADS[head % len(HEADS)]), (None if head else "before training", f"head {head}")
        for line, style, width, colour, label in zip(lines, ":-", (0.9, 1.4), colours, labels, strict=True):
            distances = [place - middle for place in range(len(line))]
            axes.plot(distances, _drawable(line), style, color=colour, linewidth=width, label=label)
    if signal["index"] == "sequential":
        axes.axvspan(-signal["trained"] + 1, signal["trained"] - 1, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xlabel("position of the key minus that of the query", fontsize=8)
    axes.set_ylabel("added to the score", fontsize=8)


def _draw_likeness(axes: Axes, signal: SignalJson) -> None:
    """Draws the similarity of two positions against their distance."""
    for moment, style, colour in (("before", ":", GREY), ("after", "-", BLUE)):
        values = _drawable(signal[moment].get("likeness") or [])
        axes.plot(range(len(values)), values, style, color=colour, label=f"{moment} training")
    if signal["index"] == "sequential":
        axes.axvspan(0, signal["trained"] - 1, color=GREY, alpha=0.15, linewidth=0, label="distances trained on")
    axes.set_xlabel("distance", fontsize=8)
    axes.set_ylabel("similarity", fontsize=8)


def _drawable(values: list[Real]) -> list[float]:
    return [math.nan if value is None else value for value in values]
