"""A sweep from its file to its table.

OUT/runs/        a folder a trial
OUT/table.csv    every trial in one line: what was set, what was found
OUT/sweep.json   the same, with the trials that failed
OUT/failures/    why a trial failed, with the end of its log
OUT/lengths.json the leaderboard, where trials were asked for their reach
OUT/compare.*    the comparison that was asked for, and report.html, a page of it
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch

from headway.compare import compare
from headway.compare.describe import KEYS, OPEN
from headway.doctor.examination import forbidden
from headway.errors import HeadwayError, unknown
from headway.lengths.extrapolation import Asked, Entry, put_together
from headway.lengths.tracks import Track, find_track
from headway.machine import choose_device, choose_precision
from headway.output import Output, Rows, as_csv
from headway.plugins import at_home
from headway.report.lengths import lengths_figures
from headway.report.page import write_comparison, write_page
from headway.runs import disk
from headway.runs.config import Overrides
from headway.subjects.own import subject_of
from headway.sweeps.board import Board
from headway.sweeps.claims import Claims
from headway.sweeps.drive import Driver, Interrupts, Tally, tell
from headway.sweeps.engine import Engine
from headway.sweeps.estimate import estimate
from headway.sweeps.file import Study, Sweep, read_sweep
from headway.sweeps.local import LocalEngine, default_workers
from headway.sweeps.plan import Trial, pieces_of, trials_of
from headway.sweeps.studies import IN_RANGE, Lengths, asked, check_studies
from headway.sweeps.trial import home_of, metrics_of
from headway.tasks import create_task
from headway.training.population import alike

ENGINES = ("local", "ray")
ENTRY = ("positions", "index", "pooling", "seed")
"""what the entries of a leaderboard differ in"""


@dataclass(frozen=True)
class How:
    """How a sweep is carried out; none of it changes what is found."""

    engine: str = "local"
    address: str | None = None
    results: str | None = None
    """of Ray: `shared` where all nodes see the folder, `returned` through the object store"""
    workers: int | None = None
    fail_fast: bool = False
    device: str = "auto"
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise HeadwayError(f"unknown engine {self.engine!r}; there are: {', '.join(ENGINES)}")
        if self.engine != "ray" and (self.address is not None or self.results is not None):
            raise HeadwayError("--address and --results are for Ray; add --engine ray, or leave them out")
        if self.engine == "ray" and self.workers is not None:
            raise HeadwayError("--workers is for local processes; Ray takes what its nodes have: leave it out")
        if self.workers is not None and not 1 <= self.workers <= 10_000:
            raise HeadwayError(f"--workers {self.workers}: ask for 1 to 10,000")
        if self.results not in (None, "shared", "returned"):
            raise HeadwayError(f"--results {self.results!r}; there are: shared, returned")


def run_sweep(name: str, out: str | None, how: How) -> Output:
    """Carries out what is not done yet of a sweep, and writes its table."""
    began = time.monotonic()
    with at_home(name), redirect_stdout(sys.stderr):  # what others print, Ray among them, is no result
        sweep = read_sweep(name, out)
        trials, device = _checked(sweep), _device(sweep, how)
        interrupts = Interrupts()
        claims = Claims(sweep.out / "claims")
        metric = next(iter(sweep.compare.metrics), None)
        tell(f"{sweep.name}: {len(trials):,} trials in {sweep.out}", how.quiet)
        with interrupts.caught(), claims, Board(sweep.name, len(trials), metric, how.quiet) as board:
            engine = _engine(sweep, how, device, claims)
            slots, most = engine.slots, _together(sweep, engine.device)
            driver = Driver(sweep, engine, claims, board, how.fail_fast, interrupts)
            try:
                studied = trials
                if sweep.choose is not None:
                    driver.run(pieces_of(trials, (IN_RANGE,), most), last=False)
                    studied = _best(sweep, trials, driver.tally)
                    for trial in set_apart(trials, studied, driver.tally):
                        board.end(trial, driver.tally.found[trial.address], reused=trial.address in driver.tally.reused)
                driver.run(pieces_of(studied, sweep.studies, most))
            finally:
                engine.stop()
        _made_good(sweep, studied, driver.tally)
        return _told(sweep, trials, studied, driver.tally, engine.device, how, slots, time.monotonic() - began)


def plan_sweep(name: str, out: str | None, how: How) -> Output:
    """What a sweep would do, and roughly what it would cost; nothing is trained and nothing written."""
    with at_home(name), redirect_stdout(sys.stderr):
        sweep = read_sweep(name, out)
        trials, device = _checked(sweep), _device(sweep, how)
        done = _done(sweep, trials)
        kept = {trial.address for trial in done}
        left = [trial for trial in trials if trial.address not in kept]
        most = _together(sweep, device)
        cost = estimate(left, choose_device("cpu" if device == "cpu" else "auto")) if left else None
    slots = how.workers or default_workers(sweep.resources, device)
    seconds = 0.0 if cost is None else cost.seconds
    content = {
        "trials": len(trials),
        "done": 0,
        "reused": len(done),
        "failed": [],
        "seconds": 0.0,
        "left": len(left),
        "pieces": len(pieces_of(left, (), most)),
        "training_seconds": seconds,
        "workers": slots,
        "estimate": None if cost is None else {"shapes": cost.shapes, "timed": cost.timed},
        "out": str(sweep.out),
        "dry_run": True,
    }
    rows = [{"trial": t.title, "state": "done" if t.address in kept else "to do", "run": t.address} for t in trials]
    words = [f"{len(trials):,} trials, {len(done):,} of them done already; {len(left):,} to do."]
    if cost is not None:
        apart = "each by itself" if most == 1 else f"in {content['pieces']:,} populations"
        words.append(
            f"About {seconds:,.0f} seconds of training, {apart}: {seconds / slots / 60:,.1f} minutes with "
            f"{slots} at a time ({cost.words})."
        )
    return Output(content, "Trials", rows, words=words)


def _checked(sweep: Sweep) -> list[Trial]:
    """The trials, after everything that can be refused before training was."""
    trials = trials_of(sweep)
    if not trials:
        raise HeadwayError("the axes make no trial; give each setting at least one value")
    shapes = {alike(trial.config).digest: trial.config for trial in trials}
    check_studies(sweep.studies, list(shapes.values()))
    for key in (*sweep.compare.by, *sweep.compare.metrics):
        if key not in KEYS and not key.startswith(OPEN):
            raise unknown("key of compare", key, KEYS)
    return trials


def _device(sweep: Sweep, how: How) -> str:
    if how.engine == "ray":  # what this machine has says nothing about the nodes
        return "cuda" if sweep.resources.gpus else "cpu"
    if how.device == "auto" and sweep.resources.gpus == 0:
        return "cpu"
    return choose_device(how.device).type


def _engine(sweep: Sweep, how: How, device: str, claims: Claims) -> Engine:
    if how.engine == "local":
        return LocalEngine(sweep.out, claims.name, sweep.resources, device, how.workers)
    from headway.sweeps.ray import RayEngine

    returned = how.results == "returned" or (how.results is None and how.address is not None)
    return RayEngine(sweep.out, sweep.resources, device, how.address, sweep.home, returned)


def _together(sweep: Sweep, device: str) -> int:
    """How many trials of one shape train as one."""
    return sweep.resources.population if device == "cuda" else 1


def _done(sweep: Sweep, trials: Sequence[Trial]) -> list[Trial]:
    """The trials of which nothing is left to do; where one is chosen among several, as far as that can be told."""

    def found(some: Sequence[Trial], studies: Sequence[Study]) -> dict[str, dict[str, Any]]:
        each = {t.address: metrics_of(home_of(sweep.out, t.config), t.config, studies) for t in some}
        return {address: metrics for address, metrics in each.items() if metrics is not None}

    if sweep.choose is None:
        kept = found(trials, sweep.studies)
        return [trial for trial in trials if trial.address in kept]
    tally = Tally(found(trials, (IN_RANGE,)))
    chosen = _best(sweep, trials, tally)
    studied, awaited = found(chosen, sweep.studies), {trial.address for trial in chosen}
    return [t for t in trials if t.address in tally.found and (t.address not in awaited or t.address in studied)]


def _best(sweep: Sweep, trials: Sequence[Trial], tally: Tally) -> list[Trial]:
    """Of each setting apart from the axis to choose and the seed, the trials of the value that is best in range over
    all seeds; the first of equals. A value of which a trial failed is passed over."""
    groups: dict[str, dict[str, list[Trial]]] = {}
    for trial in trials:
        others = {key: value for key, value in trial.settings.items() if key not in (sweep.choose, "seed")}
        values = groups.setdefault(repr(sorted(others.items())), {})
        values.setdefault(repr(trial.settings.get(sweep.choose or "")), []).append(trial)
    chosen = []
    for values in groups.values():
        whole = [group for group in values.values() if all(trial.address in tally.found for trial in group)]
        if whole:
            chosen += min(whole, key=lambda group: sum(tally.found[t.address]["choosing_errors"] for t in group))
    return chosen


def _made_good(sweep: Sweep, studied: Sequence[Trial], tally: Tally) -> None:
    """Trials that failed here, and that another driver on the same folder has done since."""
    for trial in studied:
        if trial.address in tally.failed:
            metrics = metrics_of(home_of(sweep.out, trial.config), trial.config, sweep.studies)
            if metrics is not None:
                del tally.failed[trial.address]
                tally.found[trial.address] = metrics
                tally.reused.add(trial.address)


def set_apart(trials: Sequence[Trial], studied: Sequence[Trial], tally: Tally) -> list[Trial]:
    """The trials that were trained and not chosen."""
    chosen = {trial.address for trial in studied}
    return [trial for trial in trials if trial.address not in chosen and trial.address in tally.found]


def _told(
    sweep: Sweep,
    trials: Sequence[Trial],
    studied: Sequence[Trial],
    tally: Tally,
    device: str,
    how: How,
    slots: int,
    seconds: float,
) -> Output:
    """Writes the table and what follows from it."""
    rows = table_of(sweep, trials, studied, tally)
    failed = [{"trial": t.address, "error": tally.failed[t.address]} for t in trials if t.address in tally.failed]
    disk.write_bytes(sweep.out / "table.csv", _csv_of(rows).encode())
    content = {
        "trials": len(trials),
        "done": len(tally.found) - len(tally.reused),
        "reused": len(tally.reused),
        "failed": failed,
        "seconds": seconds,
        "busy_seconds": tally.busy,
        "slots": slots,
        "efficiency": tally.busy / (seconds * slots),
        "engine": how.engine,
        "out": str(sweep.out),
        "rows": rows,
    }
    words = _leaderboard(sweep, studied, device, how.quiet) if not failed else []
    more, report, sentences = _comparison(sweep, studied, tally)
    content |= {"report": report}
    words += sentences
    disk.write_json(sweep.out / "sweep.json", {"name": sweep.name, **content})
    words += [f"Failed: {each['trial']}: {each['error']}" for each in failed[:10]]
    if len(failed) > 10:
        words.append(f"and {len(failed) - 10:,} more, in {sweep.out / 'failures'}")
    words.append(
        f"{content['done']:,} done, {content['reused']:,} reused, {len(failed):,} failed, of {len(trials):,} trials in "
        f"{seconds:,.1f} s; {slots} at a time were busy {content['efficiency']:.0%} of it. "
        f"The table is {sweep.out / 'table.csv'}."
    )
    shown = [{key: value for key, value in row.items() if key != "run"} for row in rows]
    return Output(content, sweep.name, shown, more, words, status=1 if failed else 0)


def _comparison(
    sweep: Sweep, studied: Sequence[Trial], tally: Tally
) -> tuple[list[tuple[str, Rows]], str | None, list[str]]:
    """The comparison that was asked for: a table, where its page is, and what it says."""
    only = {trial.address for trial in studied if trial.address in tally.found}
    if not sweep.compare.by or not only:
        return [], None, []
    try:
        found = compare([sweep.out / "runs"], sweep.compare.by, sweep.compare.metrics, only=only)
    except HeadwayError as error:
        return [], None, [f"There is no comparison: {error}."]
    report = write_comparison(found, sweep.out)["report"]
    if (sweep.out / "lengths.json").exists():
        report = write_page([sweep.out], sweep.out / "report.html")["report"]
    words = [*found.sentences(), f"The comparison is {report}."]
    return [(f"By {', '.join(sweep.compare.by)}", found.table())], report, words


def table_of(sweep: Sweep, trials: Sequence[Trial], studied: Sequence[Trial], tally: Tally) -> list[dict[str, Any]]:
    """A row a trial, with nothing in it that another machine or another day would change."""
    chosen = {trial.address for trial in studied}
    rows = []
    for trial in trials:
        metrics = tally.found.get(trial.address)
        row = {**trial.settings, "run": trial.address, "state": "failed" if metrics is None else "done"}
        if sweep.choose is not None:
            row["chosen"] = trial.address in chosen
        rows.append({**row, **{key: value for key, value in (metrics or {}).items() if key not in row}})
    return rows


def _csv_of(rows: Sequence[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return as_csv([columns, *([row.get(key) for key in columns] for row in rows)])


def _leaderboard(sweep: Sweep, studied: Sequence[Trial], device: str, quiet: bool) -> list[str]:
    """The study of length, where the trials are one: entries and seeds that differ in nothing else."""
    study = next((each for each in sweep.studies if each.name == "lengths"), None)
    keys = {key for trial in studied for key in trial.settings} - {sweep.choose}
    if study is None or not studied or not keys <= set(ENTRY) or sweep.choose not in (None, "rate"):
        return []
    options, first = asked(study), studied[0].config
    assert isinstance(options, Lengths)
    task = create_task(first.task, first.options)
    seeds = tuple(dict.fromkeys(trial.config.seed for trial in studied))
    entries: dict[Entry, list[Trial]] = {}
    for trial in studied:
        model = trial.config.model
        pooling = model.pooling if model.kind == "classifier" else None
        entries.setdefault(Entry(model.positions, model.index, pooling), []).append(trial)
    if any(tuple(trial.config.seed for trial in group) != seeds for group in entries.values()):
        return []
    name = sweep.base.get("track")
    wanted = Asked(
        task=first.task,
        entries=tuple(entries),
        track=find_track(name) if name else Track(sweep.name, Overrides(), Overrides()),
        seeds=seeds,
        lengths=tuple(sorted(options.asked_lengths(task))),
        probes=tuple(options.asked_probes(task)),
        options=first.options,
        examples=options.examples,
        test_seed=options.seed,
    )
    here = choose_device("cpu" if device == "cpu" else "auto")
    chosen = (
        (entry, float(group[0].settings.get("rate", 1)), [home_of(sweep.out, trial.config) for trial in group])
        for entry, group in entries.items()
    )
    precision = choose_precision(sweep.resources.precision, torch.device(device))
    found = put_together(
        wanted, chosen, sweep.out, here, precision, quiet, lambda run: forbidden(subject_of(run), "lengths")
    )
    lengths_figures(sweep.out / "lengths.json", sweep.out)
    return found.findings()
