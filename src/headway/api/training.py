"""`headway train` as functions."""

import sys
from collections.abc import Sequence
from pathlib import Path

from headway.errors import HeadwayError
from headway.machine import choose_device, choose_precision, cores
from headway.output import format_value
from headway.question import asks
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run
from headway.tasks import create_task
from headway.training.batches import read_data
from headway.training.defaults import plan
from headway.training.loop import RunReport
from headway.training.question import TrainQuestion
from headway.training.tracking import find_tracker
from headway.trials.drive import train_trials
from headway.trials.local import InProcess, LocalEngine
from headway.trials.plan import pieces_of
from headway.trials.trial import Piece, Resources, Terms, Trial


@asks(TrainQuestion)
def train(task: str, question: TrainQuestion) -> Run:
    """Trains one run, or opens it if it was trained before: `headway.train("addition", seed=0).model`."""
    report = train_seeds(task, question)[0]
    return open_run(RunFolder(Path(report.run)), choose_device(question.device))


@asks(TrainQuestion)
def train_seeds(task: str, question: TrainQuestion) -> list[RunReport]:
    """One run in `out`; of several seeds, one each in `out`/seed-N: one after another, or as a population. Every config
    and every folder is looked at before anything is trained."""
    device, options = choose_device(question.device), dict(question.options or {})
    found = None if question.data is None else read_data(create_task(task, options), question.data)
    if found is not None and found.left_out and not question.quiet:
        print(f"{found.left_out:,} problems of train.json are of the held-out tenth: left out", file=sys.stderr)
    told = (None, None) if found is None else (found.sha256, found.stored.lengths())
    seeds = question.several
    configs = [plan(task, question, seed, options, *told) for seed in seeds or [question.seed or 0]]
    first = configs[0]
    home = Path(question.out or Path("runs") / (first.name if seeds is None else first.family))
    trials = [Trial(each, {"seed": each.seed}, "" if seeds is None else f"seed-{each.seed}") for each in configs]
    choose_precision(question.precision, device)
    find_tracker(question.tracker)
    for trial in trials:
        trial.folder(home).check(trial.config, question.resume)
    on_cores = question.population is not None and device.type == "cpu"
    stacked = question.population is not None and not on_cores
    if on_cores and (home / "checkpoint" / "latest.json").exists():
        raise HeadwayError(f"{home} was begun on a GPU; go on there, or choose another `out`")
    terms = Terms(
        out=str(home),
        device=device.type,
        resources=Resources(precision=question.precision),
        resume=question.resume or not stacked,
        may_diverge=question.population is not None,
        checkpoint_every=question.checkpoint_every,
        data=None if question.data is None else str(question.data),
        tracker=question.tracker,
        watched=True,
    )
    pieces = [Piece(tuple(trials), (), tuple(trials))] if stacked else pieces_of(trials, ())
    engine = LocalEngine(terms, min(cores(), len(trials))) if on_cores else InProcess(terms)
    title = f"{first.stem} seed {first.seed}" if len(trials) == 1 else f"{len(trials):,} × {first.stem}"
    return train_trials(pieces, engine, title, question.quiet)


def shortfalls(reports: Sequence[RunReport]) -> list[str]:
    """What a reader of many trained runs must not overlook: those that did not get there."""
    fates = {
        "diverged, their loss is no number": [report.seed for report in reports if report.final_loss is None],
        "did not become perfect": [report.seed for report in reports if report.perfect is False],
    }
    found = {fate: seeds for fate, seeds in fates.items() if seeds}
    return [f"{len(seeds)} of {len(reports)} {fate}: seeds {format_value(seeds)}." for fate, seeds in found.items()]
