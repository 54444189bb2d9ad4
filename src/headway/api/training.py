"""`headway train` as functions."""

import sys
from collections.abc import Sequence
from pathlib import Path

from headway.errors import HeadwayError
from headway.machine import choose_device, choose_precision, cores
from headway.output import format_value
from headway.question import asks
from headway.report.training import training_figure
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
    """Trains one run, or opens it if it is already trained: `headway.train("addition", seed=0).model`."""
    report = train_seeds(task, question)[0]
    return open_run(RunFolder(Path(report.run)), choose_device(question.device))


@asks(TrainQuestion)
def train_seeds(task: str, question: TrainQuestion) -> list[RunReport]:
    """Trains one run in `out`, or one per seed in `out`/seed-N, one after another or as a population. Every config and
    every folder is checked before training starts."""
    device, options = choose_device(question.device), dict(question.options or {})
    found = None if question.data is None else read_data(create_task(task, options), question.data)
    if found is not None and found.left_out and not question.quiet:
        print(f"left out {found.left_out:,} problems of train.json that belong to the held-out tenth", file=sys.stderr)
    from_data = (None, None) if found is None else (found.sha256, found.stored.lengths())
    seeds = question.several
    configs = [plan(task, question, seed, options, *from_data) for seed in seeds or [question.seed or 0]]
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
        raise HeadwayError(f"{home} was begun on a GPU; continue it there, or choose another `out`")
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
    reports = train_trials(pieces, engine, title, question.quiet)
    training_figure([Path(report.run) for report in reports], home)
    return reports


def shortfalls(reports: Sequence[RunReport]) -> list[str]:
    """Lists the trained runs that diverged or did not become perfect."""
    outcomes = {
        "diverged (their loss is not a number)": [report.seed for report in reports if report.final_loss is None],
        "did not become perfect": [report.seed for report in reports if report.perfect is False],
    }
    found = {outcome: seeds for outcome, seeds in outcomes.items() if seeds}
    return [f"{len(seeds)} of {len(reports)} {each}: seeds {format_value(seeds)}." for each, seeds in found.items()]
