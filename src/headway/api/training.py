"""`headway train` as functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.machine import choose_device, choose_precision
from headway.output import format_value
from headway.progress import Progress
from headway.runs import disk
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run
from headway.tasks import create_task
from headway.tasks.data import read_split, trainable
from headway.training.defaults import plan
from headway.training.loop import CHECKPOINT_EVERY, Report, train_run
from headway.training.population import Member, train_population
from headway.training.processes import train_apart
from headway.training.tracking import find_tracker


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
) -> list[Report]:
    """One run in `out`; of a list of seeds, one per seed in `out`/seed-N: one after another, or as a population.

    Every config and every folder is looked at before anything is trained.
    """
    chosen, found = choose_device(device), find_tracker(tracker)
    stored, digest, lengths = None, None, None
    if data is not None:
        own = create_task(task, options)
        stored, left_out = trainable(own, read_split(own, Path(data), "train"))
        digest, lengths = disk.sha256(Path(data) / "train.json"), stored.lengths()
        if left_out and not quiet:
            print(f"{left_out:,} problems of train.json are of the held-out tenth: left out", file=sys.stderr)
    if isinstance(seeds, int):
        config = plan(task, overrides, seeds, options, digest, lengths)
        planned = [(config, Path(out or Path("runs") / config.name))]
    else:
        configs = [plan(task, overrides, seed, options, digest, lengths) for seed in seeds]
        family = Path(out or Path("runs") / configs[0].family)
        planned = [(config, family / f"seed-{config.seed}") for config in configs]
    for config, folder in planned:
        RunFolder(folder).check(config, resume)
    if population:
        if tracker is not None:
            raise HeadwayError(f"--tracker {tracker} follows one run; leave it out of a population")
        members = [Member(config, RunFolder(folder)) for config, folder in planned]
        exactness = choose_precision(precision, chosen)
        home = members[0].folder.path.parent
        with Progress(f"{len(members):,} × {members[0].config.stem}", quiet) as watch:
            settings = {"resume": resume, "stored": stored, "watch": watch}
            if chosen.type == "cpu":
                if (home / "checkpoint" / "latest.json").exists():
                    raise HeadwayError(f"{home} was begun on a GPU; go on there, or choose another --out")
                every = CHECKPOINT_EVERY if checkpoint_every is None else checkpoint_every
                return train_apart(members, checkpoint_every=every, **settings)
            return train_population(
                members, home, device=chosen, precision=exactness, checkpoint_every=checkpoint_every, **settings
            )
    reports = []
    for config, folder in planned:
        with Progress(f"{config.stem} seed {config.seed}", quiet) as watch:
            report = train_run(
                config,
                folder,
                device=chosen,
                resume=resume,
                checkpoint_every=CHECKPOINT_EVERY if checkpoint_every is None else checkpoint_every,
                stored=stored,
                watch=watch,
                tracker=found,
            )
        reports.append(report)
    return reports


def shortfalls(reports: Sequence[Report]) -> list[str]:
    """What a reader of many trained runs must not overlook: those that did not get there."""
    said = []
    if diverged := [report.seed for report in reports if report.final_loss is None]:
        said.append(
            f"{len(diverged)} of {len(reports)} diverged, their loss is no number: seeds {format_value(diverged)}."
        )
    if short := [report.seed for report in reports if report.perfect is False]:
        said.append(f"{len(short)} of {len(reports)} did not become perfect: seeds {format_value(short)}.")
    return said
