"""The length question: which encodings to train, on what, and which problems to test them on. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import HeadwayError
from headway.question import Question
from headway.runs.config import Overrides
from headway.training.question import Option

TRIO = ("sinusoidal", "learned", "none")
LENGTHS = (32, 64, 128, 256)
DIGITS = (40, 80, 120, 160)  # default test lengths of sums
LEAST_EXAMPLES = 2_000

Words = str | tuple[str, ...] | list[str]
"""comma-separated, or a list"""
Numbers = str | tuple[int, ...] | list[int]


@dataclass(frozen=True, kw_only=True)
class LengthsQuestion(Overrides, Question):
    """Asks how far past its training length each position encoding works, and what stops it."""

    positions: Words = "sinusoidal,learned,none"  # pyright: ignore[reportIncompatibleVariableOverride]
    """comma-separated encodings; settings follow a plus: t5+distance=16, kerple+log-length"""
    index: Words = "sequential"  # pyright: ignore[reportIncompatibleVariableOverride]
    """comma-separated position indices: sequential, randomized+range=4096, coupled, abacus+range=256"""
    pooling: Words | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """how a classifier pools its positions: mean, max or violation (default: the track's)"""
    track: str = "plain"
    """plain, tuned or open: the training recipe, the same for every encoding"""
    rates: str | tuple[float, ...] | list[float] | None = None
    """multiples of the learning rate to choose from (default: the track's, 1 or 0.5,1,2)"""
    train_lengths: str | tuple[int, int] | None = None
    """shortest and longest training length, such as 8-16 (default: the task's; 1-20 for sums)"""
    seeds: Numbers = "1"
    """seeds of each encoding: 5 means 0 to 4, 0,3,7 a list"""
    lengths: Numbers | None = None
    """test lengths (default: 32,64,128,256; for sums 40,80,120,160 digits)"""
    probes: Words | None = None
    """comma-separated families of test problems (default: all of the task)"""
    examples: int = LEAST_EXAMPLES
    """problems for each probe at each length"""
    options: Mapping[str, Option] | None = None
    """options of the task"""
    precision: str = "auto"
    """precision in which a GPU trains and tests: float32 or bfloat16 (auto)"""
    out: str | Path | None = None
    """folder for runs, results and figures (default: runs/lengths-TASK-TRACK)"""
    seed: int = 0
    """seed of the test problems"""

    def __post_init__(self) -> None:
        if self.examples < LEAST_EXAMPLES:
            raise HeadwayError(f"`examples={self.examples}`: use at least {LEAST_EXAMPLES:,}")
        for name in ("recipe", "stored", "epochs"):
            if getattr(self, name) is not None:
                reason = "a length study trains on fresh problems, by the recipe of its track"
                raise HeadwayError(f"`{name}` has no effect here: {reason}; leave it out")

    @property
    def shared_overrides(self) -> Overrides:
        """The overrides that apply to every run, whatever its encoding."""
        own = {name: value for name, value in self.to_dict().items() if name not in ("positions", "index", "pooling")}
        return Overrides(**own)
