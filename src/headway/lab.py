"""The lab: trains an adder and three sortedness classifiers, and reports what may be concluded from them. Everything it
makes is a run folder; complete runs are reused, so an interrupted lab continues where it stopped."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from headway.api import evaluate, study_heads, train_seeds
from headway.api.lengths import carry_out_plan
from headway.doctor.examination import find_vetoes
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


PRESETS = {"quick": (1, QUICK_CLASSIFIER), "full": (5, Overrides())}  # seeds, and the classifiers' overrides


def run_lab(preset: Literal["quick", "full"], out: Path, seed: int, device: str, quiet: bool) -> Output:
    """Trains, checks and studies all models of a preset in `out`; what is already there is reused."""
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
    plan = LengthsPlan("sortedness", entries, track, seeds, LENGTHS, ("default", "one-inversion"), {})
    for trained in carry_out_plan(plan, out / "lengths", chosen, "auto", quiet).runs:
        run = open_run(RunFolder(Path(trained.run)), chosen)
        rows.append(_classifier_row(run, quiet))
    content = {
        "schema": "headway.lab/1",
        "report": str(out / "report.html"),
        "runs": rows,
        "seconds": time.monotonic() - began,
        "findings": [row["finding"] for row in rows],
        "withheld": [each for row in rows for each in row["withheld"]],
        "figure": str(out / "lab.svg"),
    }
    disk.write_json(out / "lab.json", content)
    figure = f"the figure is {out / 'lab.png'}" if lab_figure(out / "lab.json", out) else "there is no figure"
    shown = ("task", "positions", "seed", "examples", "errors", "exact_match", "interval", "pairs_told_apart")
    withheld = [f"Withheld for {each['run']}: {each['about']}; {each['reason']}." for each in content["withheld"]]
    page = write_page([out], out / "report.html")
    studied = [sentence for sentence in page["findings"] if sentence not in content["findings"]]
    files = f"Everything is in {out}; {figure}; the page is {page['report']}."
    words = [*content["findings"], *withheld, *studied, files]
    return Output(content, "Lab", rows, words=words, shown=shown)


def _make_row(run: Run, found: dict[str, Any], finding: str, distinguished: float | None = None) -> dict[str, Any]:
    """Describes an adder, or a classifier and the share of pairs it distinguishes, with what the doctor withholds."""
    study, about = "heads", "which heads it needs"
    if distinguished is not None:
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
        "pairs_told_apart": distinguished,
        "finding": finding,
        "withheld": [{"run": str(run.path), "about": about, **each} for each in find_vetoes(subject_of(run), study)],
    }


def _adder_row(run: Run, quiet: bool) -> dict[str, Any]:
    found = evaluate(run, all=True, greedy=GREEDY_CHECKED, quiet=quiet).to_json()
    held_out, greedy = found["held_out"], found["greedy"]
    finding = (
        f"Adder, seed {run.config.seed}: {found['errors']:,} wrong of all {found['examples']:,} sums, "
        f"{held_out['errors']:,} of the {held_out['examples']:,} it was never trained on; greedy decoding "
        f"gives a different verdict on {greedy['mismatches']} of {greedy['checked']:,}."
    )
    return _make_row(run, found, finding)


def _classifier_row(run: Run, quiet: bool) -> dict[str, Any]:
    found = evaluate(run, examples=CLASSIFIED, quiet=quiet).to_json()
    distinguished = share_of_pairs_distinguished(run)
    positions, (low, high) = run.config.model.positions, found["interval"]
    finding = (
        f"Sortedness, {positions}, seed {run.config.seed}: accuracy {found['exact_match']:.4f} in range "
        f"(n = {found['examples']:,}, 95% interval {low:.4f} to {high:.4f})"
    )
    meaning = "."
    if find_positions(positions).kind.blind:
        meaning = (
            f", which is chance, as expected: of {PAIRS:,} pairs {round((1 - distinguished) * PAIRS):,} got the same "
            "answer twice. The two sequences differ only in order, which attention without positions cannot see."
        )
    elif low <= 0.5 <= high:
        meaning = ", which is indistinguishable from chance: it supports no conclusion about length."
    return _make_row(run, found, finding + meaning, distinguished)


@torch.inference_mode()
def share_of_pairs_distinguished(run: Run) -> float:
    """Measures the share of pairs (a sequence and a permutation of it) that get different answers."""
    problems = run.task.testing(seed=0, rows=2 * PAIRS, device=device_of(run.model))
    answers = run.model(problems.source, problems.answer).argmax(-1)[:, 0].view(-1, 2)  # pair member
    return float((answers[:, 0] != answers[:, 1]).float().mean())
