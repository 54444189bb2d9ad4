"""Expands axes to trials, and trials to pieces of work with an estimate of their cost. A trial is the config of a run:
its hash is the name of its folder, so the same trial is never trained twice."""

import hashlib
import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from headway.errors import HeadwayError
from headway.models import build_model
from headway.runs.config import Overrides, RunConfig
from headway.tasks import create_task
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner
from headway.training.population import shared_config
from headway.training.tracks import find_track
from headway.trials.trial import Piece, Study, Trial, Value

MOST = 1_000_000
SHAPES = 8  # timed at most; a step of the others is scaled from the timed shape nearest in size
TIMED, ENOUGH = 8, 1.0  # steps and seconds at most


@dataclass(frozen=True)
class Grid:
    """An axis with every combination of the values in a table, one table after another."""

    tables: tuple[Mapping[str, Sequence[Value]], ...]

    @property
    def keys(self) -> set[str]:
        return {key for table in self.tables for key in table}

    @property
    def count(self) -> int:
        return sum(math.prod(map(len, table.values())) for table in self.tables)

    def points(self) -> Iterator[dict[str, Value]]:
        for table in self.tables:
            for row in itertools.product(*table.values()):
                yield dict(zip(table, row, strict=True))


@dataclass(frozen=True)
class Range:
    """A range to draw a number from; a whole number if both ends are."""

    low: int | float
    high: int | float
    log: bool = False

    def draw(self, dice: random.Random) -> int | float:
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        if self.log:
            drawn = math.exp(dice.uniform(math.log(self.low), math.log(self.high)))
            return round(drawn) if whole else drawn
        return dice.randint(int(self.low), int(self.high)) if whole else dice.uniform(self.low, self.high)


@dataclass(frozen=True)
class Draws:
    """An axis with random values, each setting drawn from a list or a range."""

    table: Mapping[str, Sequence[Value] | Range]
    count: int
    seed: int = 0

    @property
    def keys(self) -> set[str]:
        return set(self.table)

    def points(self) -> Iterator[dict[str, Value]]:
        dice, table = random.Random(self.seed), sorted(self.table.items())
        for _ in range(self.count):
            yield {key: some.draw(dice) if isinstance(some, Range) else dice.choice(some) for key, some in table}


Axis = Grid | Draws  # one way in which trials differ


def trials_of(axes: Sequence[Axis], base: Mapping[str, Value]) -> list[Trial]:
    """Lists every trial once, in the order of the axes; rejects what cannot be trained."""
    if (count := math.prod(axis.count for axis in axes)) > MOST:
        raise HeadwayError(f"the axes make {count:,} trials; a sweep may have at most {MOST:,}")
    found: dict[str, Trial] = {}
    for point in itertools.product(*(list(axis.points()) for axis in axes)):
        settings: dict[str, Value] = {}
        for part in point:
            if twice := settings.keys() & part.keys():
                raise HeadwayError(f"two axes set {', '.join(sorted(twice))}; leave one out")
            settings |= part
        try:
            config = config_of({**base, **settings})
        except HeadwayError as error:
            where = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
            raise HeadwayError(f"{error} (in the trial with {where})" if where else str(error)) from error
        found.setdefault(config.address, trial_of(config, settings))
    return list(found.values())


def trial_of(config: RunConfig, settings: Mapping[str, Value]) -> Trial:
    """Creates a trial whose folder is named by the hash of its config."""
    return Trial(config, dict(settings), f"runs/{config.address}")


def config_of(settings: Mapping[str, Value]) -> RunConfig:
    """Builds the run config for the settings of a trial."""
    own = {key: value for key, value in settings.items() if not key.startswith("option.")}
    options = {key.removeprefix("option."): value for key, value in settings.items() if key.startswith("option.")}
    task, track, rate, seed = own.pop("task", None), own.pop("track", None), own.pop("rate", 1), own.pop("seed", 0)
    if not isinstance(task, str):
        raise HeadwayError(f"task is {task!r}; name one, such as addition")
    if not isinstance(track, str | None):
        raise HeadwayError(f"track is {track!r}; name one, such as tuned")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1000:
        raise HeadwayError(f"rate is {rate!r}; it multiplies the learning rates and must be above 0 and below 1,000")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise HeadwayError(f"seed is {seed!r}; it must be a whole number")
    if track is not None:
        options = {**find_track(track).options.get(task, {}), **options}
        own = {**find_track(track).overrides(create_task(task, options)).to_dict(), **own}
    return plan(task, Overrides.from_settings(own), seed, options, rate=float(rate))


def pieces_of(trials: Sequence[Trial], studies: Sequence[Study], most: int | None = None) -> list[Piece]:
    """Splits trials into pieces: one per trial; on a GPU, populations of at most `most` trials of one shape."""
    if most is None:
        return [Piece((trial,), tuple(studies)) for trial in trials]
    pieces = []
    for shape in by_shape(trials).values():
        for group in (tuple(shape[start : start + most]) for start in range(0, len(shape), most)):
            name = hashlib.sha256("".join(trial.config.digest for trial in group).encode()).hexdigest()[:20]
            pieces.append(Piece(group, tuple(studies), group, f"populations/{name}"))
    return pieces


def by_shape(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Groups the trials that could train as one stack."""
    shapes = defaultdict(list)
    for trial in trials:
        shapes[shared_config(trial.config).digest].append(trial)
    return shapes


def choose_best(trials: Sequence[Trial], setting: str, errors: Mapping[str, int]) -> list[Trial]:
    """Chooses, for each combination of the other settings, the trials of the value with the fewest errors over all
    seeds, the first on a tie. Skips values with a trial that has no error count."""
    groups: dict[str, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        others = {key: value for key, value in trial.settings.items() if key not in (setting, "seed")}
        groups[repr(sorted(others.items()))][repr(trial.settings.get(setting))].append(trial)
    chosen: list[Trial] = []
    for values in groups.values():
        if counted := [group for group in values.values() if all(trial.address in errors for trial in group)]:
            chosen += min(counted, key=lambda group: sum(errors[trial.address] for trial in group))
    return chosen


@dataclass(frozen=True)
class Estimate:
    seconds: float  # of training, if all trials run one after another
    shapes: int
    timed: int


def estimate(trials: Sequence[Trial], device: torch.device) -> Estimate:
    """Estimates the cost of trials by timing a few steps of some of their shapes on this machine."""
    shapes = by_shape(trials)
    sizes = {key: _size(group[0].config) for key, group in shapes.items()}
    ordered = sorted(shapes, key=sizes.__getitem__)
    count = min(SHAPES, len(ordered))
    chosen = {ordered[round(place * (len(ordered) - 1) / max(count - 1, 1))] for place in range(count)}
    timed, seconds = {key: _seconds_per_step(shapes[key][0].config, device) for key in chosen}, 0.0
    for key, group in shapes.items():
        near = min(timed, key=lambda other: abs(sizes[other] - sizes[key]))
        seconds += timed[near] * sizes[key] / sizes[near] * sum(trial.config.training.steps for trial in group)
    return Estimate(seconds, len(shapes), len(chosen))


def _size(config: RunConfig) -> float:
    """Approximates the work of a step: tokens times weights."""
    model = config.model
    layers = model.layers + (model.decoder_layers if model.kind == "encoder-decoder" else 0)
    weights = layers * (4 * model.d_model**2 + 2 * model.d_model * model.d_ff)
    return float(weights * config.training.batch * (model.trained + model.trained_answer))


def _seconds_per_step(config: RunConfig, device: torch.device) -> float:
    task = create_task(config.task, config.options)
    learner = Learner(build_model(config.model, config.seed).to(device), config.training)
    batches = draw_batches(task, config.training, [config.seed], None, 0, device)
    learner.step(next(batches))  # warm-up: one-time setup is not timed
    steps, began = 0, time.perf_counter()
    while steps < TIMED and time.perf_counter() - began < ENOUGH:
        learner.step(next(batches))
        steps += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps
