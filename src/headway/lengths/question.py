"""What may be asked about length: which encodings are trained on what, and tested on which problems. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import HeadwayError
from headway.question import Question
from headway.runs.config import Overrides
from headway.training.question import Option

TRIO = ("sinusoidal", "learned", "none")
LENGTHS = (32, 64, 128, 256)
DIGITS = (40, 80, 120, 160)  # test lengths of sums, where none are asked for
LEAST_EXAMPLES = 2_000

Words = str | tuple[str, ...] | list[str]
"""with commas between, or as a list"""
Numbers = str | tuple[int, ...] | list[int]


@dataclass(frozen=True, kw_only=True)
class LengthsQuestion(Overrides, Question):
    """How far past its training length each position encoding works, and what stops it."""

    positions: Words = "sinusoidal,learned,none"  # pyright: ignore[reportIncompatibleVariableOverride]
    """encodings, with commas between; settings after a plus: t5+distance=16, kerple+log-length"""
    index: Words = "sequential"  # pyright: ignore[reportIncompatibleVariableOverride]
    """position indices, with commas between: sequential, randomized+range=4096, coupled, abacus+range=256"""
    pooling: Words | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """how a classifier pools its positions: mean, max or violation (default: the track's)"""
    track: str = "plain"
    """plain, tuned or open: what every encoding may do alike"""
    rates: str | tuple[float, ...] | list[float] | None = None
    """multiples of the learning rate to choose from (default: the track's, 1 or 0.5,1,2)"""
    train_lengths: str | tuple[int, int] | None = None
    """shortest and longest training length, such as 8-16 (default: the task's; of sums 1-20)"""
    seeds: Numbers = "1"
    """seeds of each encoding: 5 means 0 to 4, 0,3,7 a list"""
    lengths: Numbers | None = None
    """test lengths (default: 32,64,128,256; of sums 40,80,120,160 digits)"""
    probes: Words | None = None
    """families of test problems, with commas between (default: all of the task)"""
    examples: int = LEAST_EXAMPLES
    """problems of each probe at each length"""
    options: Mapping[str, Option] | None = None
    """options of the task"""
    precision: str = "auto"
    """in which a GPU trains and tests: float32 or bfloat16 (auto)"""
    out: str | Path | None = None
    """folder of runs, numbers and pictures (default: runs/lengths-TASK-TRACK)"""
    seed: int = 0
    """seed of the test problems"""

    def __post_init__(self) -> None:
        if self.examples < LEAST_EXAMPLES:
            raise HeadwayError(f"`examples={self.examples}`: at least {LEAST_EXAMPLES:,}")

    @property
    def recipe(self) -> Overrides:
        """What is asked of every run, whatever its encoding."""
        own = {name: value for name, value in self.to_dict().items() if name not in ("positions", "index", "pooling")}
        return Overrides(**own)
