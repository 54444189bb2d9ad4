"""The main job: an adder, three classifiers of sortedness, and what may be said about them.

Everything it makes is a run folder; what is complete is not made again, so a lab that was interrupted goes
on where it stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from headway.api import evaluate, train_seeds
from headway.machine import choose_device
from headway.output import Output
from headway.report.figures import lab_figure
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run
from headway.training.defaults import QUICK_CLASSIFIER, Wishes

TRIO = ("sinusoidal", "learned", "none")
GREEDY_CHECKED = 20_000
CLASSIFIED = 9_000
CHANCE = 0.5


@dataclass(frozen=True)
class Preset:
    seeds: int
    classifier: Wishes


PRESETS = {"quick": Preset(seeds=1, classifier=QUICK_CLASSIFIER), "full": Preset(seeds=5, classifier=Wishes())}


def run_lab(preset: Literal["quick", "full"], out: Path, seed: int, device: str, quiet: bool) -> Output:
    began = time.monotonic()
    chosen, settings = choose_device(device), PRESETS[preset]
    seeds = list(range(seed, seed + settings.seeds))
    rows: list[dict[str, Any]] = []

    def trained(name: str, task: str, wishes: Wishes) -> list[Run]:
        reports = [
            train_seeds(task, [each], wishes, out=out / name / f"seed-{each}", device=device, resume=True, quiet=quiet)[
                0
            ]
            for each in seeds
        ]
        return [open_run(RunFolder(Path(report.run)), chosen) for report in reports]

    for run in trained("addition", "addition", Wishes()):
        rows.append(_adder_row(run, device, quiet))
    for positions in TRIO:
        wishes = Wishes(**{**vars(settings.classifier), "positions": positions})
        for run in trained(f"sortedness-{positions}", "sortedness", wishes):
            rows.append(_classifier_row(run, device, quiet))
    content = {
        "report": None,
        "runs": rows,
        "seconds": time.monotonic() - began,
        "findings": [sentence for row in rows if (sentence := row["finding"])],
        "figure": str(out / "lab.svg"),
    }
    disk.write_json(out / "lab.json", content)
    picture = f"the picture is {out / 'lab.png'}" if lab_figure(out / "lab.json", out) else "no matplotlib, no picture"
    shown = ("task", "positions", "seed", "examples", "errors", "exact_match", "interval", "pairs_told_apart")
    table = [{key: row[key] for key in shown} for row in rows]
    words = [*content["findings"], f"Everything is in {out}; {picture}."]
    return Output(content, "Lab", table, words=words)


def _row(run: Run, found: dict[str, Any], finding: str, pairs_told_apart: float | None) -> dict[str, Any]:
    training = run.folder.training()
    return {
        "run": str(run.path),
        "task": run.config.task,
        "positions": run.config.model.positions,
        "seed": run.config.seed,
        "steps": training.steps,
        "seconds": training.seconds,
        **{key: found[key] for key in ("examples", "errors", "exact_match", "interval", "held_out", "greedy")},
        "pairs_told_apart": pairs_told_apart,
        "finding": finding,
    }


def _adder_row(run: Run, device: str, quiet: bool) -> dict[str, Any]:
    found = evaluate(run, all=True, greedy=GREEDY_CHECKED, device=device, quiet=quiet).to_json()
    held_out, greedy = found["held_out"], found["greedy"]
    finding = (
        f"Adder, seed {run.config.seed}: {found['errors']:,} wrong of all {found['examples']:,} sums, "
        f"{held_out['errors']:,} of the {held_out['examples']:,} it was never trained on; decoding token by token "
        f"gives another verdict on {greedy['mismatches']} of {greedy['checked']:,}."
    )
    return _row(run, found, finding, None)


def _classifier_row(run: Run, device: str, quiet: bool) -> dict[str, Any]:
    found = evaluate(run, examples=CLASSIFIED, device=device, quiet=quiet).to_json()
    apart = pairs_told_apart(run)
    positions, (low, high) = run.config.model.positions, found["interval"]
    finding = (
        f"Sortedness, {positions}, seed {run.config.seed}: {found['exact_match']:.4f} right in range "
        f"(n = {found['examples']:,}, 95% interval {low:.4f} to {high:.4f})"
    )
    if apart == 0:
        finding += (
            ", which is chance: it gave both sequences of every pair the same answer. The two differ in "
            "order alone, and without positions or a mask attention cannot see order."
        )
    elif low <= CHANCE <= high:
        finding += ", which cannot be told from chance: no conclusion about length may be drawn from it."
    else:
        finding += "."
    return _row(run, found, finding, apart)


@torch.inference_mode()
def pairs_told_apart(run: Run, pairs: int = 1000) -> float:
    """The share of pairs (a sequence and a permutation of it) that get different answers."""
    device = next(run.model.parameters()).device
    problems = run.task.testing(seed=0, rows=2 * pairs, device=device)
    answers = run.model(problems.source, problems.answer).argmax(-1)[:, 0].view(-1, 2)  # pair member
    return float((answers[:, 0] != answers[:, 1]).float().mean())
