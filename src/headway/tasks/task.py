"""What a task is: it makes problems, knows their answers, and names what kind of problem each one is.

A problem is a pure function of (seed, step, row), so nothing about a task has state and nothing is stored.
A tenth of all problems, chosen by a hash of the problem itself, is held out: training never draws one, in
any run, with any seed. A new task is a frozen dataclass with the abstract methods below; the field values
are its options on the command line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.tasks import random
from headway.tasks.random import Dice


@dataclass(frozen=True)
class Problems:
    """A batch of problems of one length with their right answers."""

    source: Int[Tensor, "row token"] | Float[Tensor, "row ..."]
    """tokens; of a user's own model also sounds or pictures"""
    answer: Int[Tensor, "row answer"]
    scored: Bool[Tensor, "row answer"] | None = None
    """which answer tokens count; None where all do"""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: Tensor | slice) -> Problems:
        scored = None if self.scored is None else self.scored[rows]
        return Problems(self.source[rows], self.answer[rows], scored)

    def to(self, device: torch.device) -> Problems:
        scored = None if self.scored is None else self.scored.to(device)
        return Problems(self.source.to(device), self.answer.to(device), scored)

    @staticmethod
    def join(parts: list[Problems]) -> Problems:
        scored = [part.scored for part in parts if part.scored is not None]
        return Problems(
            torch.cat([part.source for part in parts]),
            torch.cat([part.answer for part in parts]),
            torch.cat(scored) if scored else None,
        )

    def replaced(self, rows: Int[Tensor, " some"], other: Problems) -> Problems:
        """These problems with these rows taken from `other`, in order."""
        source, answer = self.source.clone(), self.answer.clone()
        source[rows], answer[rows] = other.source, other.answer
        scored = None
        if self.scored is not None and other.scored is not None:
            scored = self.scored.clone()
            scored[rows] = other.scored
        return Problems(source, answer, scored)


@dataclass(frozen=True)
class Layout:
    """What the tokens of a problem stand for, where every problem has them in the same places."""

    source: tuple[int | None, ...]
    """the column of each token's digit, 0 the least significant; None for what is no digit"""
    operator: int
    """the place of the operator"""
    answer: tuple[int, ...]
    """the column of each answer token"""


class Task(ABC):
    """Problems with exactly known answers. Subclasses are frozen dataclasses; their fields are the options."""

    name: ClassVar[str]
    probes: ClassVar[tuple[str, ...]] = ("default",)
    hard_probe: ClassVar[str] = "default"
    """the probe that training mixes in where asked for hard problems"""
    classes: ClassVar[int | None] = None
    """how many classes the one answer token has; None where the answer is a sequence"""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many different tokens there are."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest length that training draws."""

    @property
    def start(self) -> int:
        """The token that begins every answer; it is no token of content."""
        raise NotImplementedError(f"{self.name} answers with a class, not a sequence")

    @property
    def end(self) -> int | None:
        """The token that ends an answer, where answers have one."""
        return None

    @property
    def columns(self) -> tuple[int, bool] | None:
        """Where problems have columns of digits: how many tokens are digits, and whether answers begin with the least
        significant one."""
        return None

    @abstractmethod
    def source_tokens(self, length: int) -> int:
        """How many tokens a problem of this length has."""

    def answer_tokens(self, length: int) -> int:
        """How many tokens its answer has."""
        return 1

    @abstractmethod
    def draw(self, dice: Dice, probe: str, length: int) -> Problems:
        """One problem of the probe for each row of the dice."""

    @abstractmethod
    def identity(self, problems: Problems) -> Int[Tensor, " row"]:
        """A hash of what each problem is; problems that give each other away share it."""

    def strata(self, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
        """The kinds of problem: a name and each problem's value."""
        return {}

    @property
    def count(self) -> int | None:
        """How many problems there are, where they can be listed."""
        return None

    @property
    def layout(self) -> Layout | None:
        """What stands where; None where that differs from problem to problem."""
        return None

    def listing(self, start: int, stop: int, device: torch.device | str = "cpu") -> Problems:
        """Problems `start` to `stop` of all there are."""
        raise HeadwayError(f"{self.name} has too many problems to list")

    def every(self, rows: int, device: torch.device | str = "cpu") -> Iterator[Problems]:
        """All problems there are, so many at a time."""
        count = self.count or 0
        for start in range(0, count, rows):
            yield self.listing(start, min(start + rows, count), device)

    def spelled(self, tokens: list[int]) -> list[str]:
        """Tokens as a person writes them."""
        return [str(token) for token in tokens]

    def read(self, written: str, device: torch.device | str = "cpu") -> Problems:
        """The problem that a person writes, the way `show` shows it."""
        raise HeadwayError(f"{self.name} cannot read {written!r}; give one of headway.Problems")

    def show(self, source: list[int], answer: list[int]) -> str:
        """A problem as a person writes it."""
        return f"{' '.join(map(str, source))} → {' '.join(map(str, answer))}"

    def training_length(self, step: int) -> int:
        """The length of every problem of a step, the same for every seed: no batch is ever padded."""
        shortest, longest = self.lengths
        word = Dice.of(random.TRAINING, seed=0, step=step, rows=1, device="cpu").words(1)
        return shortest + int(random.below(word, longest - shortest + 1))

    def held_out(self, problems: Problems) -> Bool[Tensor, " row"]:
        return random.one_in_ten(self.identity(problems))

    def training(self, dice: Dice, hard: int, length: int) -> Problems:
        """A training problem for each row of the dice, never a held-out one.

        Rows numbered below `hard` within their step come from the hard probe.
        """
        is_hard = dice.row < hard
        problems = self._trainable(dice[~is_hard], "default", length)
        if not hard:
            return problems
        both = Problems.join([self._trainable(dice[is_hard], self.hard_probe, length), problems])
        place = torch.cat((is_hard.nonzero()[:, 0], (~is_hard).nonzero()[:, 0]))
        return both[place.argsort()]

    def _trainable(self, dice: Dice, probe: str, length: int) -> Problems:
        problems = self.draw(dice, probe, length)
        rows = torch.arange(len(dice), device=dice.row.device)
        while len(rows := rows[self.held_out(problems[rows])]):
            dice = dice.again()
            if dice.attempt > 200:
                raise HeadwayError(
                    f"{self.name} with these options has hardly a problem that is not held out; allow more"
                )
            problems = problems.replaced(rows, self.draw(dice[rows], probe, length))
        return problems

    def independent(
        self,
        seed: int,
        rows: int,
        *,
        probe: str = "default",
        length: int | None = None,
        first: int = 0,
        device: torch.device | str = "cpu",
    ) -> Problems:
        """Fresh problems that have nothing to do with each other, as intervals want them: where they come in pairs,
        only one of each."""
        if self.classes is None:
            return self.testing(seed, rows, probe=probe, length=length, first=first, device=device)
        place = torch.arange(rows, device=device)
        pairs = self.testing(seed, 2 * rows, probe=probe, length=length, first=2 * first, device=device)
        return pairs[2 * place + place % 2]

    def testing(
        self,
        seed: int,
        rows: int,
        *,
        probe: str = "default",
        length: int | None = None,
        first: int = 0,
        device: torch.device | str = "cpu",
    ) -> Problems:
        """Fresh problems of a probe, from row `first` on, held-out ones among them; training has another stream."""
        if probe not in self.probes:
            raise unknown("probe", probe, self.probes)
        length = self.lengths[1] if length is None else length
        if length < 1:
            raise HeadwayError(f"length is {length}; it must be at least 1")
        dice = Dice.of(random.TESTING, seed, length, first + rows, device)
        return self.draw(dice[slice(first, None)], probe, length)
