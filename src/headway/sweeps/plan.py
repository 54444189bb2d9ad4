"""From a sweep to its trials. A trial is the config of a run: its hash is the name of its folder, so the same trial is
never trained twice, whichever sweep asks for it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.errors import HeadwayError
from headway.lengths.tracks import find_track
from headway.runs.config import Overrides, RunConfig
from headway.sweeps.file import Axis, Study, Sweep
from headway.tasks import create_task
from headway.training.defaults import plan
from headway.training.population import alike

MOST = 1_000_000


@dataclass(frozen=True)
class Trial:
    config: RunConfig
    settings: dict[str, Any]
    """what the axes say of it"""

    @property
    def address(self) -> str:
        """The name of its folder."""
        return self.config.address

    @property
    def title(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.settings.items()) or self.config.stem


@dataclass(frozen=True)
class Piece:
    """What one worker does at a time: one trial, or on a GPU several of one shape as a population."""

    trials: tuple[Trial, ...]
    studies: tuple[Study, ...]
    population: tuple[Trial, ...] = ()
    """all that train as one, those that are done with them: how a sum is rounded depends on how many there are"""

    def __len__(self) -> int:
        return len(self.trials)


def trials_of(sweep: Sweep) -> list[Trial]:
    """Every trial once, in the order of the axes; refuses what cannot be trained."""
    count = math.prod(map(_count, sweep.axes))
    if count > MOST:
        raise HeadwayError(f"the axes make {count:,} trials; a sweep has at most {MOST:,}")
    found: dict[str, Trial] = {}
    for point in itertools.product(*(list(_points(axis)) for axis in sweep.axes)):
        settings: dict[str, Any] = {}
        for part in point:
            if twice := settings.keys() & part.keys():
                raise HeadwayError(f"two axes set {', '.join(sorted(twice))}; leave one out")
            settings |= part
        try:
            trial = Trial(config_of(sweep.base | settings), settings)
        except HeadwayError as error:
            told = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
            raise HeadwayError(f"{error} (of the trial with {told})" if told else str(error)) from error
        found.setdefault(trial.address, trial)
    return list(found.values())


def config_of(settings: dict[str, Any]) -> RunConfig:
    """The run that a trial's settings ask for."""
    own = {key: value for key, value in settings.items() if not key.startswith("option.")}
    options = {key.removeprefix("option."): value for key, value in settings.items() if key.startswith("option.")}
    task, track, rate, seed = own.pop("task", None), own.pop("track", None), own.pop("rate", 1), own.pop("seed", 0)
    for name, value in (("task", task), ("track", track)):
        if not isinstance(value, str) and not (name == "track" and value is None):
            raise HeadwayError(f"{name} is {value!r}; name one, such as {'addition' if name == 'task' else 'tuned'}")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1000:
        raise HeadwayError(f"rate is {rate!r}; it is a multiple of the learning rates, above 0 and below 1,000")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise HeadwayError(f"seed is {seed!r}; it must be a whole number")
    recipe: dict[str, Any] = {}
    if track is not None:
        options = {**find_track(track).options.get(task, {}), **options}
        recipe = find_track(track).overrides(create_task(task, options)).asked()
    config = plan(task, Overrides.from_settings({**recipe, **own}), seed, options)
    training = config.training
    rates = {"learning_rate": training.learning_rate * rate, "muon_rate": training.muon_rate * rate}
    return replace(config, training=replace(training, **rates)) if rate != 1 else config


def pieces_of(trials: Sequence[Trial], studies: Sequence[Study], most: int) -> list[Piece]:
    """Trials of one shape together, at most so many; in the order of their first."""
    shapes: dict[str, list[Trial]] = {}
    for trial in trials:
        shapes.setdefault(alike(trial.config).digest if most > 1 else trial.address, []).append(trial)
    groups = [tuple(group[start : start + most]) for group in shapes.values() for start in range(0, len(group), most)]
    return [Piece(group, tuple(studies), group if most > 1 else ()) for group in groups]


def _count(axis: Axis) -> int:
    match axis.how:
        case "random":
            return axis.draws
        case "zip":
            return len(next(iter(axis.values.values())))
        case "list":
            return sum(math.prod(map(len, _listed(entry).values())) for entry in axis.values["trials"])
    return math.prod(map(len, axis.values.values()))


def _points(axis: Axis) -> Iterator[dict[str, Any]]:
    """What an axis says of its trials, one after another."""
    match axis.how:
        case "random":
            dice = random.Random(axis.draw_seed)
            for _ in range(axis.draws):
                yield {key: _drawn(axis.values[key], dice) for key in sorted(axis.values)}
        case "zip":
            for row in zip(*axis.values.values(), strict=True):
                yield dict(zip(axis.values, row, strict=True))
        case "list":
            for entry in axis.values["trials"]:
                yield from _grid(_listed(entry))
        case _:
            yield from _grid(axis.values)


def _listed(entry: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: value if isinstance(value, list) else [value] for key, value in entry.items()}


def _grid(values: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for row in itertools.product(*values.values()):
        yield dict(zip(values, row, strict=True))


def _drawn(value: Any, dice: random.Random) -> Any:
    """One of a list, or a number between low and high, whole where both are."""
    if isinstance(value, list):
        return dice.choice(value)
    low, high = value["low"], value["high"]
    if value.get("log"):
        drawn = math.exp(dice.uniform(math.log(low), math.log(high)))
        return round(drawn) if isinstance(low, int) and isinstance(high, int) else drawn
    return dice.randint(low, high) if isinstance(low, int) and isinstance(high, int) else dice.uniform(low, high)
