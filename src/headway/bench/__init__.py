"""Benchmarks of Headway against references, in one process: the rows by name, and their groups."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headway.bench import adders, heads, lengths, waiting, windows
from headway.errors import unknown
from headway.machine import choose_device, environment
from headway.output import Output
from headway.report.figures import population_figure
from headway.runs import disk

GROUPS = {
    "train": {"time-to-perfect": adders.time_to_perfect, "sums-per-second": adders.sums_per_second},
    "population": {"population-per-model": adders.population_per_model},
    "heads": {"head-study": heads.head_study},
    "lengths": {"length-study": lengths.length_study, "window-attention": lengths.window_attention},
    "windows": {"window-cache": windows.window_cache},
    "own-models": {
        "own-models-full-loss": partial(heads.head_costs, "full"),
        "own-models-answer": partial(heads.head_costs, "answer"),
    },
    "first-minutes": {"help": waiting.help_command, "page": waiting.page, "lab": waiting.lab},
    "many-runs": {"queries": waiting.queries, "sweep-overhead": waiting.sweep_overhead},
}
ROWS = {name: row for group in GROUPS.values() for name, row in group.items()}


def run_bench(names: Sequence[str], out: str | None, seed: int, device: str, quiet: bool) -> Output:
    """Measures the named rows, or all that can be measured here, and writes them to `out` if given."""
    chosen = choose_device(device)
    here = [name for name in ROWS if name != "page" or waiting.has_browser()]
    wanted = dict.fromkeys(row for name in names or here for row in rows_of(name))
    begun = environment(chosen)
    rows = [{"name": name, **ROWS[name](seed, chosen, quiet).to_json()} for name in wanted]
    content = {"rows": rows, "environment": begun}
    if out is not None:
        disk.write_json(Path(out), content)
        for row in rows:
            if "costs" in row:
                population_figure(row, Path(out).with_suffix(""))
    shown = ("name", "ours_seconds", "reference_seconds", "ratio", "same_result")
    more = [
        (f"{row['name']}, in detail", [{"what": key, "value": row[key]} for key in row if key not in shown])
        for row in rows
    ]
    return Output(content, "Bench", rows, more, shown=shown)


def rows_of(name: str) -> tuple[str, ...]:
    if name not in ROWS and name not in GROUPS:
        raise unknown("bench", name, [*ROWS, *GROUPS])
    return tuple(GROUPS.get(name, (name,)))
