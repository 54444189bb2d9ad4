"""The main job: an adder, three classifiers of sortedness, and what may be said about them. Everything it makes is a
run folder; what is complete is not made again, so a lab that was interrupted goes on where it stopped."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from headway.api import evaluate, study_heads, train_seeds
from headway.api.lengths import carry_out_plan
from headway.doctor.examination import forbidden
from headway.evaluation.exact import device_of
from headway.lengths.answer import Entry, LengthsPlan
from headway.lengths.question import LENGTHS, TRIO
from headway.machine import choose_device
from headway.output import Output
from headway.positions import find_positions
from headway.report.figures import lab_figure
from headway.report.page import write_page
from headway.runs import disk
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run, subject_of
from headway.training.defaults import QUICK_CLASSIFIER
from headway.training.tracks import Track

GREEDY_CHECKED, CLASSIFIED, PAIRS = 20_000, 9_000, 1_000


PRESETS = {"quick": (1, QUICK_CLASSIFIER), "full": (5, Overrides())}  # seeds, and how the classifiers are trained


def run_lab(preset: Literal["quick", "full"], out: Path, seed: int, device: str, quiet: bool) -> Output:
    """Trains, checks and studies everything of a preset in `out`; what is there already is not made again."""
    began = time.monotonic()
    (count, classifier), chosen = PRESETS[preset], choose_device(device)
    seeds = tuple(range(seed, seed + count))
    rows = []
    for adder in train_seeds("addition", seeds=seeds, out=out / "addition", device=device, quiet=quiet):
        run = open_run(RunFolder(Path(adder.run)), chosen)
        rows.append(_adder_row(run, quiet))
        if not (run.path / "heads.json").exists():
            study_heads(run, quiet=quiet)
    track = Track("lab", replace(classifier, pooling="mean"), Overrides())
    entries = tuple(Entry(name, "sequential", "mean") for name in TRIO)
    asked = LengthsPlan("sortedness", entries, track, seeds, LENGTHS, ("default", "one-inversion"), {})
    for trained in carry_out_plan(asked, out / "lengths", chosen, "auto", quiet).runs:
        run = open_run(RunFolder(Path(trained.run)), chosen)
        rows.append(_classifier_row(run, quiet))
    content = {
        "report": str(out / "report.html"),
        "runs": rows,
        "seconds": time.monotonic() - began,
        "findings": [row["finding"] for row in rows],
        "withheld": [each for row in rows for each in row["withheld"]],
        "figure": str(out / "lab.svg"),
    }
    disk.write_json(out / "lab.json", content)
    picture = f"the picture is {out / 'lab.png'}" if lab_figure(out / "lab.json", out) else "no matplotlib, no picture"
    shown = ("task", "positions", "seed", "examples", "errors", "exact_match", "interval", "pairs_told_apart")
    told = [f"Withheld of {each['run']}: {each['about']}; {each['reason']}." for each in content["withheld"]]
    page = write_page([out], out / "report.html")
    studied = [sentence for sentence in page["findings"] if sentence not in content["findings"]]
    words = [*content["findings"], *told, *studied, f"Everything is in {out}; {picture}; the page is {page['report']}."]
    return Output(content, "Lab", rows, words=words, shown=shown)


def _row(run: Run, found: dict[str, Any], finding: str, apart: float | None = None) -> dict[str, Any]:
    """What was found of an adder, or of a classifier and the pairs it tells apart; and what the doctor withholds."""
    study, about = "heads", "which heads it needs"
    if apart is not None:
        study, about = "lengths", "how far past its training length it works"
    training = run.folder.training()
    return {
        "run": str(run.path),
        "task": run.config.task,
        "positions": run.config.model.positions,
        "seed": run.config.seed,
        "steps": training.steps,
        "seconds": training.seconds,
        **{key: found[key] for key in ("examples", "errors", "exact_match", "interval", "held_out", "greedy")},
        "pairs_told_apart": apart,
        "finding": finding,
        "withheld": [{"run": str(run.path), "about": about, **each} for each in forbidden(subject_of(run), study)],
    }


def _adder_row(run: Run, quiet: bool) -> dict[str, Any]:
    found = evaluate(run, all=True, greedy=GREEDY_CHECKED, quiet=quiet).to_json()
    held_out, greedy = found["held_out"], found["greedy"]
    finding = (
        f"Adder, seed {run.config.seed}: {found['errors']:,} wrong of all {found['examples']:,} sums, "
        f"{held_out['errors']:,} of the {held_out['examples']:,} it was never trained on; decoding token by token "
        f"gives another verdict on {greedy['mismatches']} of {greedy['checked']:,}."
    )
    return _row(run, found, finding)


def _classifier_row(run: Run, quiet: bool) -> dict[str, Any]:
    found = evaluate(run, examples=CLASSIFIED, quiet=quiet).to_json()
    apart = pairs_told_apart(run)
    positions, (low, high) = run.config.model.positions, found["interval"]
    finding = (
        f"Sortedness, {positions}, seed {run.config.seed}: {found['exact_match']:.4f} right in range "
        f"(n = {found['examples']:,}, 95% interval {low:.4f} to {high:.4f})"
    )
    meaning = "."
    if find_positions(positions).kind.blind:
        meaning = (
            f", which is chance, as it must be: of {PAIRS:,} pairs it gave {round((1 - apart) * PAIRS):,} the same "
            "answer twice. The two of a pair differ in order alone, and without positions or a mask attention "
            "cannot see order."
        )
    elif low <= 0.5 <= high:
        meaning = ", which cannot be told from chance: no conclusion about length may be drawn from it."
    return _row(run, found, finding + meaning, apart)


@torch.inference_mode()
def pairs_told_apart(run: Run) -> float:
    """The share of pairs (a sequence and a permutation of it) that get different answers."""
    problems = run.task.testing(seed=0, rows=2 * PAIRS, device=device_of(run.model))
    answers = run.model(problems.source, problems.answer).argmax(-1)[:, 0].view(-1, 2)  # pair member
    return float((answers[:, 0] != answers[:, 1]).float().mean())
