"""How a sweep runs; none of these settings changes its results. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from headway.errors import HeadwayError
from headway.question import Question


@dataclass(frozen=True, kw_only=True)
class SweepQuestion(Question):
    out: str | None = None
    """folder for all results (default: the file's, or runs/NAME)"""
    engine: Literal["local", "ray"] = "local"
    """processes on this machine, or tasks on a Ray cluster"""
    address: str | None = None
    """Ray: a running cluster, such as 10.0.0.1:6379 or auto (default: a new one on this machine)"""
    results: Literal["shared", "returned"] | None = None
    """Ray: nodes write to a shared folder, or send files back (default with --address)"""
    workers: int | None = None
    """local: number of processes (default: as cores, memory and GPUs allow)"""
    fail_fast: bool = False
    """stop at the first trial that fails"""

    def __post_init__(self) -> None:
        if self.engine != "ray" and (self.address is not None or self.results is not None):
            raise HeadwayError("`address` and `results` are for Ray; add `engine=ray`, or leave them out")
        if self.engine == "ray" and self.workers is not None:
            raise HeadwayError("`workers` is for local processes; Ray uses what its nodes have: leave it out")
        if self.workers is not None and not 1 <= self.workers <= 10_000:
            raise HeadwayError(f"`workers={self.workers}`: ask for 1 to 10,000")
