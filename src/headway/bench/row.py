"""A row of the benchmark, and how its seconds are measured."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy
import torch

from headway.machine import cores

Result = TypeVar("Result")


class Row:
    """The seconds of Headway and of the reference, a description of the latter, and whether the results agree."""

    def __init__(
        self, ours_seconds: float, reference: str, reference_seconds: float, same_result: bool, **details: object
    ) -> None:
        self.ours_seconds, self.reference, self.reference_seconds = ours_seconds, reference, reference_seconds
        self.same_result, self.details = same_result, details

    def to_json(self) -> dict[str, Any]:
        content = {"ours_seconds": self.ours_seconds, "reference": self.reference}
        content |= {"reference_seconds": self.reference_seconds, "ratio": self.reference_seconds / self.ours_seconds}
        return {**content, "same_result": self.same_result, **self.details, "threads": torch.get_num_threads()}


def run_timed(work: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """Returns the result of the work and the seconds it took, synchronizing with a GPU before and after."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    result = work()
    wait()
    return result, time.perf_counter() - began


@contextmanager
def using_threads(count: int) -> Iterator[int]:
    """Sets the number of torch's threads, and restores it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


def fastest_threads(work: Callable[[], object], device: torch.device) -> int:
    """Finds the number of threads (1, 2, 4 or 8, up to the number of cores) that is fastest for this work."""

    def seconds(threads: int) -> float:
        with using_threads(threads):
            work()  # warm
            return min(run_timed(work, device)[1] for _ in range(2))

    if device.type != "cpu":
        return torch.get_num_threads()
    return min((n for n in (1, 2, 4, 8) if n <= cores()), key=seconds)


def fit_power(x: Sequence[float], y: Sequence[float]) -> float:
    """Fits the power of x that y grows with: the slope of the logarithms, by least squares."""
    return float(numpy.polyfit(numpy.log(x), numpy.log(y), 1)[0]) if len(x) > 1 else numpy.nan
