"""A row of the bench, and how its seconds are measured: ours, the reference, and whether both found the same."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy
import torch

from headway.machine import cores

Result = TypeVar("Result")


class Row:
    """Seconds of ours and of the reference, which is described in words, and whether both found the same."""

    def __init__(
        self, ours_seconds: float, reference: str, reference_seconds: float, same_result: bool, **details: object
    ) -> None:
        self.ours_seconds, self.reference, self.reference_seconds = ours_seconds, reference, reference_seconds
        self.same_result, self.details = same_result, details

    def to_json(self) -> dict[str, Any]:
        own = {"ours_seconds": self.ours_seconds, "reference": self.reference}
        own |= {"reference_seconds": self.reference_seconds, "ratio": self.reference_seconds / self.ours_seconds}
        return {**own, "same_result": self.same_result, **self.details, "threads": torch.get_num_threads()}


def timed(work: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """The result of the work and the seconds it took, waiting for a GPU before and after."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    result = work()
    wait()
    return result, time.perf_counter() - began


@contextmanager
def using_threads(count: int) -> Iterator[int]:
    """Torch on so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


def fastest_threads(work: Callable[[], object], device: torch.device) -> int:
    """The number of threads, of 1, 2, 4 … up to the cores there are, on which this work takes least time."""

    def seconds(threads: int) -> float:
        with using_threads(threads):
            work()  # warm
            return min(timed(work, device)[1] for _ in range(2))

    if device.type != "cpu":
        return torch.get_num_threads()
    return min((n for n in (1, 2, 4, 8) if n <= cores()), key=seconds)


def power_of(x: Sequence[float], y: Sequence[float]) -> float:
    """The power of x that y grows by: the slope of the logarithms, by least squares."""
    return float(numpy.polyfit(numpy.log(x), numpy.log(y), 1)[0]) if len(x) > 1 else numpy.nan
