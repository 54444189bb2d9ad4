"""A sweep from its file to its table.

OUT/runs/        one folder per trial
OUT/table.csv    one line per trial: its settings and its metrics
OUT/sweep.json   the same, with the trials that failed
OUT/failures/    why a trial failed, with the end of its log
OUT/lengths.json the leaderboard, if the sweep studies lengths
OUT/compare.*    the requested comparison, and report.html, its page
"""

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

import torch

from headway.compare import compare
from headway.compare.describe import KEYS, OPEN
from headway.doctor.examination import find_vetoes
from headway.errors import HeadwayError, unknown
from headway.lengths.answer import Entry, LengthsPlan
from headway.lengths.extrapolation import measure_entries
from headway.machine import choose_device, choose_precision
from headway.output import Output, Rows, as_csv
from headway.plugins import import_neighbours
from headway.report.lengths import lengths_figures
from headway.report.page import write_comparison, write_page
from headway.runs import disk
from headway.runs.config import Overrides
from headway.subjects.own import subject_of
from headway.sweeps.file import SweepFile, read_sweep
from headway.sweeps.question import SweepQuestion
from headway.sweeps.studies import IN_RANGE, LengthsOfTrial, check_studies, find_study
from headway.tasks import create_task
from headway.training.tracks import Track, find_track
from headway.trials.board import Board
from headway.trials.claims import Claims
from headway.trials.drive import Driver, Interrupts, Outcomes
from headway.trials.local import Engine, LocalEngine, default_workers
from headway.trials.plan import by_shape, choose_best, estimate, pieces_of
from headway.trials.trial import Metrics, Study, Terms, Trial, metrics_of

ENTRY = ("positions", "index", "pooling", "seed")  # the settings that distinguish the entries of a leaderboard


@dataclass(frozen=True)
class FinishedSweep:
    """A sweep whose trials have run."""

    sweep: SweepFile
    trials: list[Trial]
    studied: list[Trial]  # the chosen ones, if the sweep chooses a value of a setting
    outcomes: Outcomes
    terms: Terms


def _terms(sweep: SweepFile, how: SweepQuestion) -> Terms:
    if how.engine == "ray":  # the devices of this machine say nothing about the nodes
        device = "cuda" if sweep.resources.gpus else "cpu"
    else:
        device = "cpu" if how.device == "auto" and sweep.resources.gpus == 0 else choose_device(how.device).type
    path = () if sweep.home is None else (str(sweep.home),)
    return Terms(str(sweep.out.resolve()), device, sweep.resources, shared=True, path=path)


def _engine(terms: Terms, how: SweepQuestion) -> Engine:
    if how.engine == "local":
        return LocalEngine(terms, how.workers)
    from headway.trials.ray import RayEngine

    returned = how.results == "returned" or (how.results is None and how.address is not None)
    return RayEngine(terms, how.address, returned)


def run_sweep(name: str, how: SweepQuestion) -> Output:
    """Runs the unfinished trials of a sweep and writes its table."""
    began = time.monotonic()
    with import_neighbours(name), redirect_stdout(sys.stderr):  # libraries such as Ray print to stdout
        sweep = read_sweep(name, how.out)
        trials, terms = _checked_trials(sweep), _terms(sweep, how)
        if not how.quiet:
            print(f"{sweep.name}: {len(trials):,} trials in {sweep.out}", file=sys.stderr, flush=True)
        interrupts, claims = Interrupts(), Claims(sweep.out / "claims")
        metric = next(iter(sweep.compare.metrics), None)
        with interrupts, claims, Board(sweep.name, len(trials), metric, how.quiet) as board:
            engine = _engine(terms, how)
            driver = Driver(engine, board, claims, interrupts, sweep.out / "failures", how.fail_fast)
            slots, outcomes, studied = engine.slots, driver.outcomes, trials
            try:
                if sweep.choose is not None:
                    driver.run(pieces_of(trials, (IN_RANGE,), engine.terms.population_size), last=False)
                    studied = choose_best(trials, sweep.choose, _choosing_errors(outcomes.found))
                    chosen = {trial.address for trial in studied}
                    for trial in trials:
                        if trial.address not in chosen and (metrics := outcomes.found.get(trial.address)) is not None:
                            board.end(trial, metrics, reused=trial.address in outcomes.reused)
                driver.run(pieces_of(studied, sweep.studies, engine.terms.population_size))
            finally:
                engine.stop()
        for trial in (trial for trial in studied if trial.address in outcomes.failed):
            # another driver on the same folder may have finished it since
            if (metrics := metrics_of(trial.folder(sweep.out), trial.config, sweep.studies)) is not None:
                del outcomes.failed[trial.address]
                outcomes.found[trial.address] = metrics
                outcomes.reused.add(trial.address)
        done = FinishedSweep(sweep, trials, studied, outcomes, engine.terms)
        return _write(done, how, slots, time.monotonic() - began)


def plan_sweep(name: str, how: SweepQuestion) -> Output:
    """Shows what a sweep would do and its approximate cost, without training or writing anything."""
    with import_neighbours(name), redirect_stdout(sys.stderr):
        sweep = read_sweep(name, how.out)
        trials, terms = _checked_trials(sweep), _terms(sweep, how)
        done = _find_done(sweep, trials)
        left = [trial for trial in trials if trial.address not in done]
        cost = estimate(left, choose_device("cpu" if terms.device == "cpu" else "auto"))
    slots, pieces = how.workers or default_workers(terms), len(pieces_of(left, (), terms.population_size))
    counts = {"trials": len(trials), "done": 0, "reused": len(done), "failed": [], "seconds": 0.0, "left": len(left)}
    timed = {"shapes": cost.shapes, "timed": cost.timed} if left else None
    costs = {"pieces": pieces, "training_seconds": cost.seconds, "workers": slots, "estimate": timed}
    content = {**counts, **costs, "out": str(sweep.out), "dry_run": True}
    rows = [{"trial": t.title, "state": "done" if t.address in done else "to do", "run": t.address} for t in trials]
    words = [f"{len(trials):,} trials, {len(done):,} of them already done; {len(left):,} to do."]
    if left:
        mode = "one at a time" if terms.population_size is None else f"in {pieces:,} populations"
        words.append(
            f"About {cost.seconds:,.0f} seconds of training, {mode}: {cost.seconds / slots / 60:,.1f} minutes with "
            f"{slots} at a time (estimated from a few steps of {cost.timed} of {cost.shapes} shapes; studies take "
            "extra time)."
        )
    return Output(content, "Trials", rows, words=words)


def _checked_trials(sweep: SweepFile) -> list[Trial]:
    """Lists the trials and checks everything that can be checked before training."""
    trials = sweep.trials()
    if not trials:
        raise HeadwayError("the axes define no trials; give each setting at least one value")
    check_studies(sweep.studies, [group[0].config for group in by_shape(trials).values()])
    for key in (*sweep.compare.by, *sweep.compare.metrics):
        if key not in KEYS and not key.startswith(OPEN):
            raise unknown("key of compare", key, KEYS)
    return trials


def _choosing_errors(found: dict[str, Metrics]) -> dict[str, int]:
    return {address: int(metrics["choosing_errors"] or 0) for address, metrics in found.items()}


def _find_done(sweep: SweepFile, trials: Sequence[Trial]) -> set[str]:
    """Finds the finished trials; if the sweep chooses a value, as far as the choice is known."""

    def found(some: Sequence[Trial], studies: Sequence[Study]) -> dict[str, Metrics]:
        each = {trial.address: metrics_of(trial.folder(sweep.out), trial.config, studies) for trial in some}
        return {address: metrics for address, metrics in each.items() if metrics is not None}

    if sweep.choose is None:
        return set(found(trials, sweep.studies))
    trained = found(trials, (IN_RANGE,))
    chosen = choose_best(trials, sweep.choose, _choosing_errors(trained))
    return (trained.keys() - {trial.address for trial in chosen}) | found(chosen, sweep.studies).keys()


def _write(done: FinishedSweep, how: SweepQuestion, slots: int, seconds: float) -> Output:
    """Writes the table, the leaderboard and the comparison."""
    sweep, outcomes, rows = done.sweep, done.outcomes, _table(done)
    addresses = [trial.address for trial in done.trials if trial.address in outcomes.failed]
    failed = [{"trial": address, "error": outcomes.failed[address]} for address in addresses]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = as_csv([columns, *([row.get(key) for key in columns] for row in rows)])
    disk.write_bytes(sweep.out / "table.csv", text.encode())
    words = _leaderboard(done, how.quiet) if not failed else []
    more, report, sentences = _comparison(done)
    finished, reused = len(outcomes.found) - len(outcomes.reused), len(outcomes.reused)
    counts = {"trials": len(done.trials), "done": finished, "reused": reused, "failed": failed}
    efficiency = outcomes.busy / (seconds * slots)
    times = {"seconds": seconds, "busy_seconds": outcomes.busy, "slots": slots, "efficiency": efficiency}
    content = {**counts, **times, "engine": how.engine, "out": str(sweep.out), "rows": rows, "report": report}
    disk.write_json(sweep.out / "sweep.json", {"schema": "headway.sweep/1", "name": sweep.name, **content})
    words += [*sentences, *(f"Failed: {each['trial']}: {each['error']}" for each in failed[:10])]
    if len(failed) > 10:
        words.append(f"and {len(failed) - 10:,} more, in {sweep.out / 'failures'}")
    words.append(
        f"{finished:,} done, {reused:,} reused, {len(failed):,} failed, of {len(done.trials):,} trials in "
        f"{seconds:,.1f} s; {slots} slots were busy {efficiency:.0%} of it. The table is {sweep.out / 'table.csv'}."
    )
    shown = [{key: value for key, value in row.items() if key != "run"} for row in rows]
    return Output(content, sweep.name, shown, more, words, status=1 if failed else 0)


def _table(done: FinishedSweep) -> list[Metrics]:
    """Returns one row per trial, without anything that depends on the machine or the time."""
    chosen = {trial.address for trial in done.studied}
    rows = []
    for trial in done.trials:
        metrics = done.outcomes.found.get(trial.address)
        row = {**trial.settings, "run": trial.address, "state": "failed" if metrics is None else "done"}
        if done.sweep.choose is not None:
            row["chosen"] = trial.address in chosen
        rows.append({**row, **{key: value for key, value in (metrics or {}).items() if key not in row}})
    return rows


def _comparison(done: FinishedSweep) -> tuple[list[tuple[str, Rows]], str | None, list[str]]:
    """Makes the requested comparison: its table, the path of its page, and its sentences."""
    sweep, only = done.sweep, {trial.address for trial in done.studied if trial.address in done.outcomes.found}
    if not sweep.compare.by or not only:
        return [], None, []
    try:
        found = compare([sweep.out / "runs"], sweep.compare.by, sweep.compare.metrics, only=only)
    except HeadwayError as error:
        return [], None, [f"The comparison failed: {error}."]
    report = write_comparison(found, sweep.out)["report"]
    if (sweep.out / "lengths.json").exists():
        report = write_page([sweep.out], sweep.out / "report.html")["report"]
    words = [*found.sentences(), f"The comparison is {report}."]
    return [(f"By {', '.join(sweep.compare.by)}", found.table())], report, words


def _leaderboard(done: FinishedSweep, quiet: bool) -> list[str]:
    """Makes the leaderboard if the trials form a length study: entries and seeds that differ in nothing else."""
    sweep, studied = done.sweep, done.studied
    study = next((each for each in sweep.studies if each.name == "lengths"), None)
    keys = {key for trial in studied for key in trial.settings} - {sweep.choose}
    if study is None or not studied or not keys <= set(ENTRY) or sweep.choose not in (None, "rate"):
        return []
    asked, first = find_study(study), studied[0].config
    assert isinstance(asked, LengthsOfTrial)
    task = create_task(first.task, first.options)
    seeds, none = tuple(dict.fromkeys(trial.config.seed for trial in studied)), Overrides()
    entries: dict[Entry, list[Trial]] = defaultdict(list)
    for trial in studied:
        model = trial.config.model
        pooling = model.pooling if model.kind == "classifier" else None
        entries[Entry(model.positions, model.index, pooling)].append(trial)
    if any(tuple(trial.config.seed for trial in group) != seeds for group in entries.values()):
        return []
    name = sweep.base.get("track")
    track = find_track(name) if isinstance(name, str) else Track(sweep.name, none, none)
    lengths, probes = tuple(sorted(asked.test_lengths(task))), asked.test_probes(task)
    plan = LengthsPlan(
        first.task, tuple(entries), track, seeds, lengths, probes, first.options, none, asked.examples, asked.seed
    )
    folders = [[trial.folder(sweep.out) for trial in group] for group in entries.values()]
    rates = [float(group[0].settings.get("rate") or 1) for group in entries.values()]
    precision = choose_precision(sweep.resources.precision, torch.device(done.terms.device))
    here = choose_device("cpu" if done.terms.device == "cpu" else "auto")
    chosen = zip(entries, rates, folders, strict=True)
    found = measure_entries(
        plan, chosen, sweep.out, here, precision, quiet, lambda run: find_vetoes(subject_of(run), "lengths")
    )
    lengths_figures(sweep.out / "lengths.json", sweep.out)
    return found.findings()
