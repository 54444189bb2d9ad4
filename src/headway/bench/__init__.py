"""Ours beside the reference, in one process: the rows by name, and the groups they belong to."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from headway.bench import first_minutes, heads, lengths, many_runs, own_models, population, train
from headway.bench.row import Row
from headway.errors import unknown
from headway.machine import choose_device, environment
from headway.output import Output
from headway.report.figures import population_figure
from headway.runs import disk

ROWS: dict[str, Callable[[int, torch.device, bool], Row]] = {
    "time-to-perfect": train.time_to_perfect,
    "sums-per-second": train.sums_per_second,
    "population-per-model": population.population_per_model,
    "head-study": heads.head_study,
    "length-study": lengths.length_study,
    "window-attention": lengths.window_attention,
    "own-models-full-loss": own_models.full_loss,
    "own-models-answer": own_models.answer,
    "help": first_minutes.help_command,
    "page": first_minutes.page,
    "lab": first_minutes.lab,
    "queries": many_runs.queries,
    "sweep-overhead": many_runs.sweep_overhead,
}
GROUPS = {
    "train": ("time-to-perfect", "sums-per-second"),
    "population": ("population-per-model",),
    "heads": ("head-study",),
    "lengths": ("length-study", "window-attention"),
    "own-models": ("own-models-full-loss", "own-models-answer"),
    "first-minutes": ("help", "page", "lab"),
    "many-runs": ("queries", "sweep-overhead"),
}


def run_bench(names: Sequence[str], out: str | None, seed: int, device: str, quiet: bool) -> Output:
    """Measures the named rows, or all that can be measured here; written to `out` where given."""
    chosen = choose_device(device)
    here = [name for name in ROWS if name != "page" or first_minutes.has_browser()]
    wanted = [row for name in names or here for row in rows_of(name)]
    begun = environment(chosen)
    rows = [ROWS[name](seed, chosen, quiet).to_json() for name in dict.fromkeys(wanted)]
    content = {"rows": rows, "environment": begun}
    if out is not None:
        disk.write_json(Path(out), content)
        for row in rows:
            if "costs" in row:
                population_figure(row, Path(out).with_suffix(""))
    shown = ("name", "ours_seconds", "reference_seconds", "ratio", "same_result")
    details = [{"name": row["name"], **{k: v for k, v in row.items() if k not in shown}} for row in rows]
    more = [
        (f"{row['name']}, in detail", [{"what": k, "value": v} for k, v in row.items() if k != "name"])
        for row in details
    ]
    return Output(content, "Bench", [{key: row[key] for key in shown} for row in rows], more)


def rows_of(name: str) -> tuple[str, ...]:
    if name in GROUPS:
        return GROUPS[name]
    if name not in ROWS:
        raise unknown("bench", name, [*ROWS, *GROUPS])
    return (name,)
