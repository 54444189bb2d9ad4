"""The leaderboard of measured runs, wherever they were trained: a sweep that was cut short, or folders put together.

    python recipes/board_of_runs.py FOLDER [--seeds 5] [--out FOLDER]

Reads the `measured.json` and `config.json` of every run below FOLDER, and decides every reach together, as `headway
lengths` does. Only entries of which all seeds were measured are shown; the others are listed by name. With `--out` it
writes lengths.json, which `headway report` shows. No weights are needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from headway.lengths.answer import Entry, LengthsPlan, LengthStudy, TrainedRun
from headway.lengths.measuring import MeasuredRun
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.runs.seal import read_sealed
from headway.tasks import create_task
from headway.training.tracks import TRACKS


def read_runs(home: Path) -> dict[Entry, dict[int, TrainedRun]]:
    """Reads the measurements below a folder, by entry and seed; the learning rates were chosen when they were made."""
    found: dict[Entry, dict[int, TrainedRun]] = defaultdict(dict)
    for path in sorted(home.rglob("measured.json")):
        folder = RunFolder(path.parent)
        config, training, measured = folder.config(), folder.training(), MeasuredRun.from_json(read_sealed(path))
        entry = Entry(config.model.positions, config.model.index, config.model.pooling)
        if config.seed in found[entry]:
            sys.exit(f"{path.parent} and {found[entry][config.seed].run} are both seed {config.seed} of {entry.title}")
        rate = config.training.learning_rate / 1e-3
        measured_run = (training.final_loss, training.seconds, measured)
        found[entry][config.seed] = TrainedRun(entry, config.seed, path.parent.name, rate, *measured_run)
    return found


def table(study: LengthStudy, trained: int) -> list[str]:
    """Returns a row for every entry: the accuracies of its worst and best seed, and how far it holds on every probe."""
    shown = [("one-inversion", length) for length in (trained, 64, 256, 4_096)]
    shown += [(probe, 4_096) for probe in study.board.probes if probe != "one-inversion"]
    titles = [f"`{probe}` {length:,}" for probe, length in shown]
    lines = [f"| encoding | index | in range | {' | '.join(titles)} | all probes |", "|---" * (len(shown) + 4) + "|"]
    everywhere = {
        Entry(*(row[key] for key in ("positions", "index", "pooling"))): row for row in study.board.reach_rows()
    }
    for entry, runs in study.board.entries.items():
        points = [[run.find(*each) for run in runs] for each in shown]
        spans = [span([run.in_range for run in runs])]
        spans += [span([each.accuracy for each in some if each is not None]) for some in points]
        reach = everywhere[entry]["reaches_all"]
        told = "not learned" if reach is None else f"{reach:,}"
        lines.append(f"| {entry.positions} | {entry.index.partition('+')[0]} | {' | '.join(spans)} | {told} |")
    return lines


def span(shares: list[float]) -> str:
    low, high = f"{min(shares):.3f}", f"{max(shares):.3f}"
    return low if low == high else f"{low}–{high}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The leaderboard of measured runs.")
    parser.add_argument("home", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--track", default="open")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(words)
    found = read_runs(asked.home)
    whole = {entry: runs for entry, runs in found.items() if len(runs) == asked.seeds}
    if not whole:
        sys.exit(f"no entry below {asked.home} has all {asked.seeds} seeds measured")
    first = next(iter(next(iter(whole.values())).values()))
    rows, task = first.found.rows, create_task("sortedness")
    lengths, probes = (tuple(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("length", "probe"))
    seeds = tuple(sorted(next(iter(whole.values()))))
    plan = LengthsPlan(
        task.name, tuple(whole), TRACKS[asked.track], seeds, lengths, probes, {}, examples=rows[0].examples
    )
    runs = tuple(runs[seed] for runs in whole.values() for seed in seeds)
    study = LengthStudy(plan, task.lengths, runs, "bfloat16")
    print(f"{len(whole)} entries of {asked.seeds} seeds, {study.board.tests:,} points decided together\n")
    print("\n".join(table(study, task.lengths[1])))
    for entry in found.keys() - whole.keys():
        print(f"not shown, {len(found[entry])} of {asked.seeds} seeds measured: {entry.title}")
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        disk.write_json(asked.out / "lengths.json", json.loads(json.dumps(study.to_json())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
