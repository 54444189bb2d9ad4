"""What the driver needs of whoever carries out its orders: so many at a time, and word of each that has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headway.sweeps.trial import Order, Result


@dataclass(frozen=True)
class Ended:
    """An order that has ended: with a result for each of its trials, or none because the process died."""

    ticket: int
    results: list[Result] | None
    why: str = ""
    """how a process died, in words"""
    tail: str = ""
    """the last lines of its log"""
    late: bool = False
    """whether it died because its time was over; another attempt would end alike"""


@runtime_checkable
class Engine(Protocol):
    device: str
    """cpu or cuda"""

    @property
    def slots(self) -> int:
        """How many orders run at a time."""
        ...

    @property
    def room(self) -> int:
        """How many more orders may be started now."""
        ...

    def start(self, ticket: int, order: Order) -> None: ...

    def wait(self, seconds: float) -> list[Ended]:
        """Those that have ended; waits for one, at most so long."""
        ...

    def stop(self) -> None:
        """Ends everything that runs, at once. A trial can be killed anywhere."""
        ...
