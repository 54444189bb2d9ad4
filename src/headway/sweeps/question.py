"""How a sweep is carried out; none of it changes what is found. No torch in here."""

from dataclasses import dataclass
from typing import Literal

from headway.errors import HeadwayError
from headway.question import Question


@dataclass(frozen=True, kw_only=True)
class SweepQuestion(Question):
    out: str | None = None
    """folder of everything it makes (default: the file's, or runs/NAME)"""
    engine: Literal["local", "ray"] = "local"
    """processes of this machine, or tasks of a Ray cluster"""
    address: str | None = None
    """Ray: a running cluster, such as 10.0.0.1:6379 or auto (default: one of this machine alone)"""
    results: Literal["shared", "returned"] | None = None
    """Ray: nodes write into the folder, which all of them see, or send files back (default with --address)"""
    workers: int | None = None
    """local: processes at a time (default: by cores, memory and GPUs)"""
    fail_fast: bool = False
    """stop at the first trial that fails"""

    def __post_init__(self) -> None:
        if self.engine != "ray" and (self.address is not None or self.results is not None):
            raise HeadwayError("`address` and `results` are for Ray; add `engine=ray`, or leave them out")
        if self.engine == "ray" and self.workers is not None:
            raise HeadwayError("`workers` is for local processes; Ray takes what its nodes have: leave it out")
        if self.workers is not None and not 1 <= self.workers <= 10_000:
            raise HeadwayError(f"`workers={self.workers}`: ask for 1 to 10,000")
