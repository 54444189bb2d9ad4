"""The length study: train every encoding on short problems, then test every probe at every length.

An entry is an encoding, an index and a pooling. On a GPU its seeds are one population; if a track has several
learning rates, all of them are trained, and the entry uses the rate that is best in range over all seeds.
No problem longer than those of training plays a part in that choice.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from headway.errors import HeadwayError, unknown
from headway.flags import parse_numbers, parse_range, parse_rates, parse_seeds, parse_words
from headway.lengths.answer import Entry, LengthsPlan, LengthStudy, TrainedRun
from headway.lengths.measuring import errors_in_range, measure_run, prepare_problems
from headway.lengths.question import DIGITS, LENGTHS, LengthsQuestion
from headway.lengths.signals import collect_signals
from headway.machine import choose_precision, cores
from headway.models import build_model
from headway.positions import find_index, find_positions
from headway.progress import Progress
from headway.runs import disk
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.subjects.own import Run, open_run
from headway.tasks import Task, create_task, options_for_lengths
from headway.training.defaults import plan as plan_run
from headway.training.tracks import find_track
from headway.trials.drive import train_trials
from headway.trials.local import InProcess, LocalEngine
from headway.trials.plan import choose_best, pieces_of
from headway.trials.trial import Piece, Resources, Terms, Trial

SIDE_BY_SIDE = 1.3  # speedup of one run per core over one after another on all cores (results/populations.md)
POOLINGS = ("mean", "max", "violation")

Vetoes = Callable[[Run], tuple[dict[str, str], ...]]


def study_lengths(
    plan: LengthsPlan, out: Path, device: torch.device, precision: str, quiet: bool, vetoes: Vetoes = lambda run: ()
) -> LengthStudy:
    """Trains and measures the runs in `out` that are not yet trained or measured, and writes lengths.json.

    `vetoes` examines one converged seed of each entry and returns the checks that forbid a conclusion from it.
    """
    trials, exactness = train_entries(plan, out, device, precision, quiet), choose_precision(precision, device)
    if len(plan.track.rates) > 1:
        every = [trial for group in trials.values() for trial in group]
        errors = {trial.address: errors_in_range(trial.folder(out), device) for trial in every}
        trials = {entry: choose_best(group, "rate", errors) for entry, group in trials.items()}
    rates = {entry: float(group[0].settings["rate"] or 1) for entry, group in trials.items()}
    chosen = [(entry, rates[entry], [trial.folder(out) for trial in group]) for entry, group in trials.items()]
    return measure_entries(plan, chosen, out, device, exactness, quiet, vetoes)


def train_entries(
    plan: LengthsPlan, out: Path, device: torch.device, precision: str, quiet: bool
) -> dict[Entry, list[Trial]]:
    """Trains the runs of a plan in `out` that are not yet trained."""
    trials = {entry: _trials(plan, entry) for entry in plan.entries}
    every = [trial for group in trials.values() for trial in group]
    for trial in every:
        trial.folder(out).check(trial.config, resume=True)
    choose_precision(precision, device)  # rejects an unknown one
    terms = Terms(str(out), device.type, Resources(precision=precision), watched=True)
    if device.type == "cpu":
        _train_on_cores(every, terms, quiet)
    else:
        pieces = [Piece(tuple(group), (), tuple(group), entry.folder) for entry, group in trials.items()]
        train_trials(pieces, InProcess(terms), f"{len(every)} runs", quiet)
    return trials


def plan_study(task: str, question: LengthsQuestion) -> LengthsPlan:
    """Turns a question into a complete plan by filling in the defaults; rejects what is impossible."""
    question.check_no_language()
    track = find_track(question.track)
    if question.rates is not None:
        rates = parse_rates(question.rates)
        track = replace(track, rates=rates, chooses=track.chooses or rates != (1.0,))
    options = {**track.options.get(task, {}), **(question.options or {})}
    if question.train_lengths is not None:
        options |= options_for_lengths(task, parse_range("train_lengths", question.train_lengths))
    made = create_task(task, options)
    positions, index = parse_words("positions", question.positions), parse_words("index", question.index)
    pooling, probes = parse_words("pooling", question.pooling), parse_words("probes", question.probes)
    for probe in probes:
        made.find_probe(probe)
    for name in pooling:
        if name not in POOLINGS:
            raise unknown("pooling", name, POOLINGS)
    if pooling and made.classes is None:
        raise HeadwayError("`pooling` has no effect here: only a classifier pools; leave it out")
    entries = [
        Entry(name, number, pool)
        for name in positions
        for number in index
        for pool in pooling or (track.overrides(made).pooling,)
        if len(index) == 1 or find_positions(name).kind.uses_index or find_index(number)[0].name == "sequential"
    ]
    if not entries:
        raise HeadwayError(f"{', '.join(positions)} uses no index; add sequential to `index={','.join(index)}`")
    seeds, lengths = parse_seeds(question.seeds), lengths_of(made, parse_numbers("lengths", question.lengths))
    plan = LengthsPlan(task, tuple(entries), track, seeds, lengths, probes or made.probes, options)
    return replace(plan, overrides=question.shared_overrides, examples=question.problems, test_seed=question.seed)


def lengths_of(task: Task, asked: Sequence[int]) -> tuple[int, ...]:
    """Returns the requested test lengths, or the defaults of the task."""
    return tuple(sorted(asked)) or (DIGITS if task.classes is None else LENGTHS)


def _trials(plan: LengthsPlan, entry: Entry) -> list[Trial]:
    """Lists every run of an entry; rejects what cannot be trained, or tested at the requested lengths."""
    recipe = plan.track.overrides(create_task(plan.task, plan.options))
    own = {key: value for key, value in asdict(entry).items() if value is not None}
    overrides = Overrides(**{**recipe.to_dict(), **plan.overrides.to_dict(), **own})
    if plan.track.blind_steps is not None and find_positions(entry.positions).kind.blind:
        overrides = replace(overrides, steps=plan.track.blind_steps)
    trials = []
    for rate in plan.track.rates:
        home = f"{entry.folder}/rate-{rate:.12g}" if plan.track.chooses else entry.folder
        for seed in plan.seeds:
            config = plan_run(plan.task, overrides, seed, plan.options, rate=rate)
            trials.append(Trial(config, {**own, "rate": rate, "seed": seed}, f"{home}/seed-{seed}"))
    check_lengths(trials[0].config, plan.lengths)
    return trials


def check_lengths(config: RunConfig, lengths: Sequence[int]) -> None:
    """Rejects, before anything is trained, lengths for which a model has no positions."""
    task, model = create_task(config.task, config.options), build_model(config.model)
    for length in lengths:
        if length < 2:
            raise HeadwayError(f"`lengths={length}`: a test length is at least 2")
        model.check_length(task.source_tokens(length), task.answer_tokens(length))


def _train_on_cores(trials: Sequence[Trial], terms: Terms, quiet: bool) -> None:
    """Trains all runs of the study on a CPU: one per core, in rounds; if the last round would leave too many cores
    idle, its runs one after another on all cores."""
    lanes = min(cores(), len(trials))
    rest = len(trials) % lanes if lanes > 1 else len(trials)
    # by their place among all, not among those left: a resumed study then makes the same rounding errors
    together = len(trials) - (rest if rest < lanes / SIDE_BY_SIDE or lanes == 1 else 0)
    for some, engine in ((trials[:together], LocalEngine(terms, lanes)), (trials[together:], InProcess(terms))):
        train_trials(pieces_of(some, ()), engine, f"{len(some)} runs", quiet)


def measure_entries(
    plan: LengthsPlan,
    chosen: Iterable[tuple[Entry, float, list[RunFolder]]],
    out: Path,
    device: torch.device,
    precision: torch.dtype,
    quiet: bool,
    vetoes: Vetoes,
) -> LengthStudy:
    """Measures these trained runs, entry by entry, and writes lengths.json and lengths.csv."""
    task = create_task(plan.task, plan.options)
    tests = prepare_problems(task, plan.lengths, plan.probes, plan.examples, plan.test_seed, device)
    runs, shown, withheld = list[TrainedRun](), [], {}
    for entry, rate, folders in chosen:
        with Progress(f"{entry.title}: every probe at every length", quiet) as watch:
            for number, folder in enumerate(folders):
                found, ended = measure_run(folder, tests, precision), folder.training()
                seed, path = folder.config().seed, str(folder.path)
                runs.append(TrainedRun(entry, seed, path, rate, ended.final_loss, ended.seconds, found))
                watch(number + 1, len(folders))
        first = open_run(folders[0])
        if not first.model.decodes and first.folder.training().final_loss is not None:
            shown.append({**asdict(entry), **collect_signals(first.config, first.model)})
        learned = next((run for run in runs if run.entry == entry and run.found.converged), None)
        if learned is not None and (reasons := vetoes(open_run(RunFolder(Path(learned.run)), device))):
            withheld[entry] = reasons
    study = LengthStudy(plan, task.lengths, tuple(runs), str(precision).removeprefix("torch."), tuple(shown), withheld)
    disk.write_json(out / "lengths.json", study.to_json())
    disk.write_bytes(out / "lengths.csv", study.board.to_csv().encode())
    return study
