"""Draws how runs learned: loss and accuracy in training batches, and on held-out problems where they were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from headway.report.figures import BLUE, ORANGE, needs_matplotlib, panels, save_figure
from headway.runs.folder import LogEntry, RunFolder

MOST_LINES = 150  # of a run's log in a drawing
MOST_RUNS = 40  # in a figure
Key = Literal["loss", "exact_match", "validation_loss", "validation_exact_match"]
LOSSES: tuple[Key, Key] = ("loss", "validation_loss")
SHARES: tuple[Key, Key] = ("exact_match", "validation_exact_match")
NAMES = ("training batch", "held-out problems")


@needs_matplotlib
def training_figure(runs: Sequence[Path], out: Path) -> list[Path]:
    """Draws the loss and the accuracy of these runs while they trained, as `training-curves` in `out`."""
    logs = [thin_log(RunFolder(run).log_lines()) for run in runs[:MOST_RUNS]]
    if not any(logs):
        return []
    figure, (left, right) = panels(2)
    for number, log in enumerate(logs):
        for panel, keys in ((left, LOSSES), (right, SHARES)):
            for key, colour, style, name in zip(keys, (BLUE, ORANGE), ("-", "o-"), NAMES, strict=True):
                steps, values = _curve(log, key)
                label = None if number else name
                panel.plot(steps, values, style, color=colour, linewidth=1.1, markersize=3, alpha=0.8, label=label)
    left.set(xlabel="training step", ylabel="loss", yscale="log")
    right.set(xlabel="training step", ylabel="accuracy (whole answers)", ylim=(-0.02, 1.03))
    right.legend(frameon=False, fontsize=8)
    more = f", the first {MOST_RUNS} of {len(runs):,} runs" if len(runs) > MOST_RUNS else ""
    left.set_title(f"How {'it' if len(runs) == 1 else 'they'} learned{more}")
    drawn = save_figure(figure, out / "training-curves")
    RunFolder(out).mark_changed()
    return drawn


def _curve(log: Sequence[LogEntry], key: Key) -> tuple[list[int], list[float]]:
    pairs = [(line["step"], value) for line in log if (value := line.get(key)) is not None and math.isfinite(value)]
    return [step for step, _ in pairs], [value for _, value in pairs]


def thin_log(log: Sequence[LogEntry]) -> list[LogEntry]:
    """Returns every line of a short log; of a long one those with held-out problems, the last, and some in between."""
    every = math.ceil(len(log) / MOST_LINES)
    return [line for place, line in enumerate(log, 1) if place % every == 0 or "validation_loss" in line]
