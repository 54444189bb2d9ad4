"""`headway train` as functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.machine import choose_device, choose_precision, cores
from headway.output import format_value
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run
from headway.tasks import create_task
from headway.training.batches import read_data
from headway.training.defaults import plan
from headway.training.session import RunReport
from headway.training.tracking import find_tracker
from headway.trials.drive import train_trials
from headway.trials.engines import InProcess
from headway.trials.local import LocalEngine
from headway.trials.plan import pieces_of
from headway.trials.trial import Piece, Resources, Terms, Trial


def train(
    task: str,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    device: str = "auto",
    resume: bool = True,
    quiet: bool = True,
    options: dict[str, Any] | None = None,
    data: str | Path | None = None,
    **overrides: Any,
) -> Run:
    """Trains one run, or opens it if it was trained before: `headway.train("addition", seed=0).model`."""
    reports = train_seeds(
        task,
        seed,
        Overrides(**overrides),
        out=out,
        device=device,
        resume=resume,
        quiet=quiet,
        options=options,
        data=data,
    )
    return open_run(RunFolder(Path(reports[0].run)), choose_device(device))


def train_seeds(
    task: str,
    seeds: int | list[int],
    overrides: Overrides,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    checkpoint_every: int | None = None,
    quiet: bool = False,
    options: dict[str, Any] | None = None,
    data: str | Path | None = None,
    tracker: str | None = None,
    population: bool = False,
    precision: str = "auto",
) -> list[RunReport]:
    """One run in `out`; of a list of seeds, one per seed in `out`/seed-N: one after another, or as a population.

    Every config and every folder is looked at before anything is trained.
    """
    chosen = choose_device(device)
    choose_precision(precision, chosen)
    find_tracker(tracker)
    found = None if data is None else read_data(create_task(task, options), data)
    if found is not None and found.left_out and not quiet:
        print(f"{found.left_out:,} problems of train.json are of the held-out tenth: left out", file=sys.stderr)
    told = (None, None) if found is None else (found.sha256, found.stored.lengths())
    one = isinstance(seeds, int)
    configs = [plan(task, overrides, seed, options, *told) for seed in ([seeds] if one else seeds)]
    home = Path(out or Path("runs") / (configs[0].name if one else configs[0].family))
    trials = [Trial(config, {"seed": config.seed}, "" if one else f"seed-{config.seed}") for config in configs]
    for trial in trials:
        trial.folder(home).check(trial.config, resume)
    stacked = population and chosen.type != "cpu"
    if population and tracker is not None:
        raise HeadwayError(f"--tracker {tracker} follows one run; leave it out of a population")
    if population and not stacked and (home / "checkpoint" / "latest.json").exists():
        raise HeadwayError(f"{home} was begun on a GPU; go on there, or choose another --out")
    terms = Terms(
        str(home), chosen.type, Resources(precision=precision), resume=resume or not stacked, may_diverge=population,
        checkpoint_every=checkpoint_every, data=None if data is None else str(data), tracker=tracker, watched=True,
    )  # fmt: skip
    pieces = [Piece(tuple(trials), (), tuple(trials))] if stacked else pieces_of(trials, ())
    engine = LocalEngine(terms, min(cores(), len(trials))) if population and not stacked else InProcess(terms)
    stem = configs[0].stem
    title = f"{stem} seed {configs[0].seed}" if len(trials) == 1 else f"{len(trials):,} × {stem}"
    return train_trials(pieces, engine, title, quiet)


def shortfalls(reports: Sequence[RunReport]) -> list[str]:
    """What a reader of many trained runs must not overlook: those that did not get there."""
    said = []
    if diverged := [report.seed for report in reports if report.final_loss is None]:
        said.append(
            f"{len(diverged)} of {len(reports)} diverged, their loss is no number: seeds {format_value(diverged)}."
        )
    if short := [report.seed for report in reports if report.perfect is False]:
        said.append(f"{len(short)} of {len(reports)} did not become perfect: seeds {format_value(short)}.")
    return said
