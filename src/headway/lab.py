"""The lab: trains an adder and three sortedness classifiers, and reports what may be concluded from them. Everything it
makes is a run folder; complete runs are reused, so an interrupted lab continues where it stopped."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from headway.api import evaluate, study_heads, train_seeds
from headway.api.evaluating import RunEvaluation
from headway.api.lengths import carry_out_plan
from headway.doctor.examination import find_vetoes
from headway.evaluation.exact import device_of
from headway.lengths.answer import Entry, LengthsPlan
from headway.lengths.extrapolation import train_entries
from headway.lengths.question import LENGTHS, TRIO
from headway.machine import choose_device
from headway.output import Output
from headway.positions import find_positions
from headway.progress import Stages
from headway.report.figures import lab_figure
from headway.report.page import write_page
from headway.runs import disk
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run, subject_of
from headway.training.defaults import QUICK_CLASSIFIER
from headway.training.tracks import Track

GREEDY_CHECKED, CLASSIFIED, PAIRS, BLIND_STEPS = 20_000, 9_000, 1_000, 50
STAGES = {  # with the seconds of each on two cores (results/first-minutes.md), from which the time left is estimated
    "training the adder": 45.0,
    "all sums": 47.0,
    "its heads": 155.0,
    "training three classifiers": 27.0,
    "longer sequences": 15.0,
}
ADDER, SUMS, HEADS, CLASSIFIERS, LONGER = STAGES


@dataclass(frozen=True)
class Preset:
    seeds: int
    classifier: Overrides
    blind_steps: int | None
    """training steps of the encoding that is blind to order; a test of pairs proves it so, whatever its training"""


@dataclass(frozen=True)
class LabRun:
    """A run of the lab, as lab.json describes it."""

    run: str
    task: str
    positions: str
    seed: int
    steps: int
    seconds: float
    examples: int
    errors: int
    exact_match: float
    interval: Any
    held_out: Any
    greedy: Any
    pairs_told_apart: float | None
    finding: str
    withheld: list[dict[str, str]]
    """what the doctor withholds, and why"""


PRESETS = {"quick": Preset(1, QUICK_CLASSIFIER, BLIND_STEPS), "full": Preset(5, Overrides(), None)}


def run_lab(preset: Literal["quick", "full"], out: Path, seed: int, device: str, quiet: bool) -> Output:
    """Trains, checks and studies all models of a preset in `out`; what is already there is reused. The page is written
    after the first stage, and again after each."""
    began, chosen = time.monotonic(), choose_device(device)
    seeds = tuple(range(seed, seed + PRESETS[preset].seeds))
    stages, rows = Stages("Lab", STAGES, quiet), list[LabRun]()

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        with stages.stage(name):
            yield
            write_page([out], out / "report.html")

    with stage(ADDER):
        trained = train_seeds("addition", seeds=seeds, out=out / "addition", device=device, quiet=quiet)
    adders = [open_run(RunFolder(Path(each.run)), chosen) for each in trained]
    with stage(SUMS):
        rows += [_adder_row(run, quiet) for run in adders]
    with stage(HEADS):
        for run in adders:
            if not (run.path / "heads.json").exists():
                study_heads(run, quiet=quiet)
    plan = _plan_lengths(PRESETS[preset], seeds)
    with stage(CLASSIFIERS):
        train_entries(plan, out / "lengths", chosen, "auto", quiet)
    with stage(LONGER):
        studied = carry_out_plan(plan, out / "lengths", chosen, "auto", quiet).runs
        rows += [_classifier_row(open_run(RunFolder(Path(each.run)), chosen), quiet) for each in studied]
    return _finish(out, rows, stages.seconds, time.monotonic() - began)


def _plan_lengths(preset: Preset, seeds: tuple[int, ...]) -> LengthsPlan:
    track = Track("lab", replace(preset.classifier, pooling="mean"), Overrides(), blind_steps=preset.blind_steps)
    entries = tuple(Entry(name, "sequential", "mean") for name in TRIO)
    return LengthsPlan("sortedness", entries, track, seeds, LENGTHS, ("default", "one-inversion"), {})


def _finish(out: Path, rows: list[LabRun], stages: dict[str, float], seconds: float) -> Output:
    """Writes lab.json, the figure and the complete page."""
    content = {
        "schema": "headway.lab/1",
        "report": str(out / "report.html"),
        "runs": (runs := [asdict(row) for row in rows]),
        "seconds": seconds,
        "stages": [{"stage": name, "seconds": spent} for name, spent in stages.items()],
        "findings": [row.finding for row in rows],
        "withheld": [each for row in rows for each in row.withheld],
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
    return Output(content, "Lab", runs, words=words, shown=shown)


def _make_row(run: Run, found: RunEvaluation, finding: str, distinguished: float | None = None) -> LabRun:
    """Describes an adder, or a classifier and the share of pairs it distinguishes, with what the doctor withholds."""
    study, about = "heads", "which heads it needs"
    if distinguished is not None:
        study, about = "lengths", "how far past its training length it works"
    training, counted = run.folder.training(), found.to_json()
    return LabRun(
        run=str(run.path),
        task=run.config.task,
        positions=run.config.model.positions,
        seed=run.config.seed,
        steps=training.steps,
        seconds=training.seconds,
        **{key: counted[key] for key in ("examples", "errors", "exact_match", "interval", "held_out", "greedy")},
        pairs_told_apart=distinguished,
        finding=finding,
        withheld=[{"run": str(run.path), "about": about, **each} for each in find_vetoes(subject_of(run), study)],
    )


def _adder_row(run: Run, quiet: bool) -> LabRun:
    found = evaluate(run, all=True, greedy=GREEDY_CHECKED, quiet=quiet)
    counted = found.to_json()
    held_out, greedy = counted["held_out"], counted["greedy"]
    finding = (
        f"Adder, seed {run.config.seed}: {found.errors:,} wrong of all {found.examples:,} sums, "
        f"{held_out['errors']:,} of the {held_out['examples']:,} it was never trained on; greedy decoding "
        f"gives a different verdict on {greedy['mismatches']} of {greedy['checked']:,}."
    )
    return _make_row(run, found, finding)


def _classifier_row(run: Run, quiet: bool) -> LabRun:
    found = evaluate(run, examples=CLASSIFIED, quiet=quiet)
    distinguished = share_of_pairs_distinguished(run)
    positions, (low, high) = run.config.model.positions, found.to_json()["interval"]
    finding = (
        f"Sortedness, {positions}, seed {run.config.seed}: accuracy {found.exact_match:.4f} in range "
        f"(n = {found.examples:,}, 95% interval {low:.4f} to {high:.4f})"
    )
    meaning = "."
    if find_positions(positions).kind.blind:
        meaning = (
            f", which is chance, as expected, and no training would change it: of {PAIRS:,} pairs "
            f"{round((1 - distinguished) * PAIRS):,} got the same answer twice. The two sequences differ only in "
            "order, which attention without positions cannot see."
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
