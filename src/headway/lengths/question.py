"""The length question: which encodings to train, on what, and which problems to test them on. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from headway.errors import HeadwayError
from headway.question import Question
from headway.runs.config import Overrides
from headway.training.question import Option

TRIO = ("sinusoidal", "learned", "none")
LENGTHS = (32, 64, 128, 256)
DIGITS = (40, 80, 120, 160)  # default test lengths of sums
LEAST_EXAMPLES = 2_000
LANGUAGE = ("text", "to", "cures", "depths", "memory", "hub")  # fields that only a language model's study uses

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
    """comma-separated families of test problems (default: all of the task); for a language model recall tasks: repeat,
    key-value, passkey"""
    examples: int | None = None
    """problems for each probe at each length (default 2,000); for a language model answers for each depth (default
    64)"""
    options: Mapping[str, Option] | None = None
    """options of the task"""
    precision: str = "auto"
    """precision in which a GPU trains and tests: float32 or bfloat16 (auto)"""
    out: str | Path | None = None
    """folder for runs, results and figures (default: runs/lengths-TASK-TRACK)"""
    seed: int = 0
    """seed of the test problems"""
    text: str | Path | None = None
    """language model: a text file, or JSONL of {"text": …} or {"tokens": […]}; facts are hidden in it, and the loss by
    position is measured on it"""
    to: int | None = None
    """language model: the longest length to test (default: 4 times the training length)"""
    cures: Words | None = None
    """language model: comma-separated cures to compare, also of tasks that it has not learned (default: all)"""
    depths: int = 5
    """language model: at how many depths of the context facts stand"""
    memory: str = "1GB"
    """language model: the memory limit of one pass"""
    hub: bool = False
    """language model: download the model of that name from the Hugging Face hub"""

    def __post_init__(self) -> None:
        for name in ("recipe", "stored", "epochs"):
            if getattr(self, name) is not None:
                reason = "a length study trains on fresh problems, by the recipe of its track"
                raise HeadwayError(f"`{name}` has no effect here: {reason}; leave it out")

    @property
    def problems(self) -> int:
        """The number of problems for each probe at each length."""
        count = LEAST_EXAMPLES if self.examples is None else self.examples
        if count < LEAST_EXAMPLES:
            raise HeadwayError(f"`examples={count}`: use at least {LEAST_EXAMPLES:,}")
        return count

    def check_no_language(self) -> None:
        """Raises where something is asked for that makes sense only for a language model."""
        for entry in fields(LengthsQuestion):
            given = getattr(self, entry.name)
            if entry.name in LANGUAGE and given != entry.default:
                raise HeadwayError(f"`{entry.name}={given}` is for a language model from a folder; leave it out")

    @property
    def shared_overrides(self) -> Overrides:
        """The overrides that apply to every run, whatever its encoding."""
        own = {name: value for name, value in self.to_dict().items() if name not in ("positions", "index", "pooling")}
        return Overrides(**own)
