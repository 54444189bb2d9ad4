"""The question of an evaluation: which problems, and whether to check it by greedy decoding. No torch."""

from dataclasses import dataclass
from pathlib import Path

from headway.errors import HeadwayError
from headway.question import Question
from headway.runs.config import check_seed, folder_name

EXAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class EvaluateQuestion(Question):
    """Asks for the exact match on every problem, on fresh ones, or on a file of a data folder."""

    all: bool = False
    """use every possible problem"""
    examples: int | None = None
    """number of fresh problems (default 10,000)"""
    length: int | None = None
    """problems of this length instead of the training lengths"""
    probe: str = "default"
    """family of test problems"""
    greedy: int = 0
    """decode this many problems token by token and compare the verdicts"""
    data: str | Path | None = None
    """use the problems of a data folder instead of fresh ones"""
    split: str | None = None
    """which file of the data folder: train, val or test (the default)"""
    seed: int = 0
    """seed of the fresh problems"""
    precision: str = "auto"
    """for a folder of runs on a GPU: float32 (auto), or bfloat16 with narrow margins checked again in float32"""

    def __post_init__(self) -> None:
        fresh = self.examples is not None or self.length is not None or self.probe != "default"
        if self.all and (fresh or self.data is not None):
            raise HeadwayError("`all` takes every problem; leave out `examples`, `length`, `probe` and `data`")
        if self.data is not None and fresh:
            raise HeadwayError("`data` takes the problems of a file; leave out `examples`, `length` and `probe`")
        if self.split is not None and self.data is None:
            raise HeadwayError(f"`split={self.split}` names a file of a data folder; name the folder with `data`")
        if self.examples is not None and self.examples < 1:
            raise HeadwayError(f"examples is {self.examples}; it must be at least 1")
        if self.greedy < 0:
            raise HeadwayError(f"check_greedy is {self.greedy}; it must be at least 0")
        check_seed(self.seed)

    def file_name(self, listable: bool) -> str:
        """Returns the name of the study file, so that an evaluation on other problems, or on a sample where all can be
        listed, does not overwrite a complete one."""
        length = "" if self.length is None else f"length-{self.length}"
        probe = "" if self.probe == "default" else folder_name(self.probe)
        data = "" if self.data is None else f"data-{self.split or 'test'}"
        sample = "sample" if listable and not (length or probe or data or self.all) else ""
        return "-".join(filter(None, ("evaluation", length, probe, data, sample)))
