"""The training question: which runs to train, and how. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from headway.errors import HeadwayError
from headway.flags import parse_options, parse_seeds
from headway.question import Question
from headway.runs.config import Overrides

Option = int | float | str | bool


@dataclass(frozen=True)
class TaskOptions:
    """Options of the tasks, as flags."""

    digits: int | None = None
    """addition: digits of each operand"""
    base: int | None = None
    """addition: the number base"""
    operators: str | None = None
    """addition: the operators to use: +, - or +-"""
    first: str | None = None
    """addition: which answer digit comes first: most or least (significant)"""
    natural: bool = False
    """addition: answers of natural length with an end token"""
    values: int | None = None
    """sortedness: integers run from 0 to this, exclusive"""
    shortest: int | None = None
    """sortedness: shortest training sequence"""
    longest: int | None = None
    """sortedness: longest training sequence"""
    option: tuple[str, ...] = ()
    """options of your own task, as NAME=VALUE"""

    def collect_options(self) -> dict[str, Option]:
        given = {entry.name: getattr(self, entry.name) for entry in fields(TaskOptions) if entry.name != "option"}
        chosen = {name: value for name, value in given.items() if value is not None and value is not False}
        return chosen | parse_options(self.option)


@dataclass(frozen=True, kw_only=True)
class TrainQuestion(Overrides, Question):
    """One run, or one per seed."""

    seed: int | None = None
    """seed of the run (default 0)"""
    seeds: str | tuple[int, ...] | list[int] | None = None
    """several runs: 5 means seeds 0 to 4, 0,3,7 a list; they go to OUT/seed-N"""
    population: int | None = None
    """number of seeds, from --seed on, trained as one stack; they go to OUT/seed-N"""
    precision: str = "auto"
    """precision of a population on a GPU: float32 or bfloat16 (auto); weights always stay in float32"""
    resume: bool = True
    """resume an unfinished run"""
    checkpoint_every: int | None = None
    """steps between checkpoints (default 100; a population on a GPU writes fewer if they take long)"""
    out: str | Path | None = None
    """run folder (default: runs/NAME)"""
    data: str | Path | None = None
    """train on the problems of a data folder instead of fresh ones"""
    tracker: str | None = None
    """also log to tensorboard or trackio"""
    options: Mapping[str, Option] | None = None
    """options of the task"""

    def __post_init__(self) -> None:
        if self.seeds is not None:
            if self.seed is not None:
                raise HeadwayError("`seed` and `seeds` are both given; leave one of them out")
            if self.population is not None:
                raise HeadwayError("`population` counts its seeds from `seed` on; leave out `seeds`")
            parse_seeds(self.seeds)
        if self.population is not None and not 1 <= self.population <= 100_000:
            raise HeadwayError(f"`population={self.population}`: ask for 1 to 100,000 members")
        if self.population is not None and self.tracker is not None:
            raise HeadwayError(f"`tracker={self.tracker}` tracks a single run; leave it out for a population")
        if self.population is None and self.precision != "auto":
            raise HeadwayError(f"`precision={self.precision}` is for a population; leave it out, or add `population`")

    @property
    def several(self) -> tuple[int, ...] | None:
        """The seeds of several runs; None for a single run."""
        if self.seeds is not None:
            return parse_seeds(self.seeds)
        first = self.seed or 0
        return None if self.population is None else tuple(range(first, first + self.population))
