"""What the driver needs of whoever carries out its pieces of work; and the simplest one, this process itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headway.trials.carry import perform
from headway.trials.trial import Piece, Result, Terms

Hear = Callable[[int, int, str], None]  # told the ticket of a piece, the steps it has done, and a line of words


@dataclass(frozen=True)
class Ended:
    """A piece that has ended: with a result for each of its trials, or none because the process died."""

    ticket: int
    results: list[Result] | None
    why: str = ""  # how a process died, in words
    tail: str = ""  # the last lines of its log
    late: bool = False  # whether it died because its time was over; another attempt would end alike


@runtime_checkable
class Engine(Protocol):
    terms: Terms
    hear: Hear

    @property
    def slots(self) -> int: ...  # how many pieces run at a time

    @property
    def room(self) -> int: ...  # how many more pieces may be started now

    def start(self, ticket: int, piece: Piece) -> None: ...

    def wait(self, seconds: float) -> list[Ended]: ...  # those that have ended; waits for one, at most so long

    def stop(self) -> None: ...  # ends everything that runs, at once: a trial can be killed anywhere


class InProcess:
    """This process: one piece after another. What goes wrong in training is raised as it is."""

    slots = 1

    def __init__(self, terms: Terms) -> None:
        self.terms, self.hear = terms, lambda ticket, steps, words: None
        self._ended: list[Ended] = []

    @property
    def room(self) -> int:
        return 1 - len(self._ended)

    def start(self, ticket: int, piece: Piece) -> None:
        results: list[Result] = []
        perform(piece, self.terms, results, lambda done, total, words: self.hear(ticket, done, words))
        self._ended.append(Ended(ticket, results))

    def wait(self, seconds: float) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """There is nothing left to end."""
