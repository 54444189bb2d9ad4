"""The task interface: a task draws problems, knows their answers, and sorts them into strata.

A problem is a pure function of (seed, step, row), so a task has no state and nothing is stored.
A tenth of all problems, chosen by a hash of the problem itself, is held out: training never draws one, in
any run, with any seed. A new task is a frozen dataclass with the abstract methods below; its fields are its
options on the command line. The other methods are optional: `solve` for checked data files and contrasts,
`describe_errors` for the length diagnosis, `local` for certificates, and so on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.plugins import load_function
from headway.tasks import random
from headway.tasks.problems import Columns, Contrast, Errors, Layout, Neighbours, Problems, class_errors, token_errors
from headway.tasks.random import Dice

Probe = Callable[[Any, Dice, int], Problems]  # called with the task, dice (a row a problem), a length
Item = dict[str, int | list[int]]
Pairs = Callable[[int, int, torch.device], list[Contrast]]  # called with pairs per kind, a seed and a device


class Task(ABC):
    """A family of problems with exactly known answers. Subclasses are frozen dataclasses; their fields are options."""

    name: ClassVar[str]
    probes: ClassVar[tuple[str, ...]] = ("default",)  # names that `draw` knows
    hard_probe: ClassVar[str] = "default"  # the probe of the hard problems that training mixes in
    twin_probe: ClassVar[str | None] = None  # its rows 2i and 2i + 1 differ in one thing and in their class
    classes: ClassVar[int | None] = None  # of the one answer token; None if the answer is a sequence
    class_names: ClassVar[tuple[str, ...]] = ("0", "1")  # the meaning of each class
    nouns: ClassVar[tuple[str, str, str]] = ("answer", "tokens", "place")  # an answer, its parts, their places
    counted: ClassVar[str] = ""  # the unit of a length; empty for tokens

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """The number of different tokens."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest training length."""

    @property
    def start(self) -> int:
        """The token that begins every answer and occurs nowhere else."""
        raise NotImplementedError(f"{self.name} answers with a class, not a sequence")

    @property
    def end(self) -> int | None:
        """The token that ends an answer; None if there is none."""
        return None

    @property
    def columns(self) -> tuple[int, bool] | None:
        """The number of digit tokens, and whether answers begin with the least significant digit; or None."""
        return None

    @abstractmethod
    def source_tokens(self, length: int) -> int:
        """Returns the number of tokens of a problem of this length."""

    def answer_tokens(self, length: int) -> int:
        """Returns the number of tokens of its answer."""
        return 1

    @abstractmethod
    def draw(self, dice: Dice, probe: str, length: int) -> Problems:
        """Draws one problem of the probe for each row of the dice."""

    @abstractmethod
    def identity(self, problems: Problems) -> Int[Tensor, " row"]:
        """Hashes each problem; problems that give each other away share a hash."""

    def solve(self, source: Int[Tensor, "row token"]) -> Problems | None:
        """Returns these sources with their right answers; None if the task can only draw problems."""
        return None

    def strata(self, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
        """Returns the strata: each name with the value of every problem."""
        return {}

    @property
    def count(self) -> int | None:
        """The number of all problems; None if they cannot be listed."""
        return None

    @property
    def draws_evenly(self) -> bool:
        """Whether the default probe draws uniformly from all problems."""
        return False

    @property
    def layout(self) -> Layout | None:
        """The meaning of each token; None if it differs from problem to problem."""
        return None

    @property
    def contrasts(self) -> Pairs | None:
        """A function that draws pairs of problems that differ in one thing only; None if there are none. By default the
        pairs differ in one token, for tasks that answer with a sequence and have `solve`."""
        if self.classes is not None or type(self).solve is Task.solve:
            return None
        from headway.tasks.contrasts import token_contrasts

        return partial(token_contrasts, self)

    @property
    def local(self) -> Columns | Neighbours | str:
        """The part of a problem that each part of an answer depends on, for proofs; or the reason why it is unknown."""
        return f"{self.name} does not declare which tokens its answers depend on"

    def describe_errors(self, problems: Problems, written: Int[Tensor, "row answer"]) -> Errors:
        """Describes the errors in a model's answers to these problems."""
        if self.classes is not None:
            return class_errors(problems, written, self.classes)
        return token_errors(problems, written, self.answer_tokens(self.lengths[1]), self.nouns, self.end is not None)

    def item(self, source: list[int], answer: list[int]) -> Item:
        """Returns a problem as an item of a data file."""
        return {"input": source, "target": answer}

    def read_item(self, item: Any) -> tuple[int, list[int], list[int]]:
        """Reads the length, source and answer of an item of a data file; rejects an item that is not a problem."""
        source, answer = whole_numbers(item, "input"), whole_numbers(item, "target")
        length = next((n for n in range(1, len(source) + 1) if self.source_tokens(n) == len(source)), None)
        if length is None:
            raise HeadwayError(f"input has {len(source)} tokens; no problem of {self.name} has this length")
        if len(answer) != self.answer_tokens(length):
            raise HeadwayError(f"target has {len(answer)} tokens instead of {self.answer_tokens(length)}")
        for what, limit in (("input", self.vocabulary), ("target", self.classes or self.vocabulary)):
            if wrong := [token for token in item[what] if not 0 <= token < limit]:
                raise HeadwayError(f"{what} has the token {wrong[0]}; tokens run from 0 to {limit - 1}")
        return length, source, answer

    def listing(self, start: int, stop: int, device: torch.device | str = "cpu") -> Problems:
        """Lists the problems `start` to `stop`."""
        raise HeadwayError(f"{self.name} has too many problems to list")

    def every(self, rows: int, device: torch.device | str = "cpu") -> Iterator[Problems]:
        """Yields every problem, `rows` at a time."""
        count = self.count or 0
        for start in range(0, count, rows):
            yield self.listing(start, min(start + rows, count), device)

    def spelled(self, tokens: list[int]) -> list[str]:
        """Returns the name of each token for display."""
        return [str(token) for token in tokens]

    def read(self, written: str, device: torch.device | str = "cpu", length: int | None = None) -> Problems:
        """Parses a problem written the way `show` shows it; of this length, or of the longest training length."""
        raise HeadwayError(f"{self.name} cannot parse {written!r}; pass headway.Problems")

    def show(self, source: list[int], answer: list[int]) -> str:
        """Formats a problem for display."""
        return f"{' '.join(map(str, source))} → {' '.join(map(str, answer))}"

    def training_length(self, step: int) -> int:
        """Returns the length of all problems of a step, the same for every seed, so that no batch is padded."""
        shortest, longest = self.lengths
        word = Dice.of(random.TRAINING, seed=0, step=step, rows=1, device="cpu").words(1)
        return shortest + int(random.below(word, longest - shortest + 1))

    def held_out(self, problems: Problems) -> Bool[Tensor, " row"]:
        return random.one_in_ten(self.identity(problems))

    def training(self, dice: Dice, hard: int, length: int) -> Problems:
        """Draws training problems, none held out, for the rows of the dice; rows below `hard` use the hard probe."""
        is_hard = dice.row < hard
        problems = self._draw_trainable(dice[~is_hard], "default", length)
        if not hard:
            return problems
        both = Problems.join([self._draw_trainable(dice[is_hard], self.hard_probe, length), problems])
        return both[(~is_hard).int().argsort(stable=True).argsort()]  # in the order of the dice again

    def _draw_trainable(self, dice: Dice, probe: str, length: int) -> Problems:
        problems = self.draw(dice, probe, length)
        rows = torch.arange(len(dice), device=dice.row.device)
        while len(rows := rows[self.held_out(problems[rows])]):
            dice = replace(dice, attempt=dice.attempt + 1)
            if dice.attempt > 200:
                scarce = f"with these options {self.name} has almost no problems that are not held out"
                raise HeadwayError(f"{scarce}; choose options that allow more")
            problems = problems.replace_rows(rows, self.draw(dice[rows], probe, length))
        return problems

    def find_probe(self, name: str) -> Callable[[Dice, int], Problems]:
        """Finds a probe by its name, or a user's as `file.py:function`."""
        if ":" in name:
            return partial(_draw_user_probe, name, load_function(name), self)
        if name not in self.probes:
            raise unknown("probe", name, self.probes)
        return lambda dice, length: self.draw(dice, name, length)

    def testing(
        self, seed: int, rows: int, *, probe: str = "default", length: int | None = None, first: int = 0,
        device: torch.device | str = "cpu",
    ) -> Problems:  # fmt: skip
        """Draws fresh problems of a probe from row `first` on, held-out ones included; training uses another stream."""
        draw = self.find_probe(probe)
        length = self.lengths[1] if length is None else length
        if length < 1:
            raise HeadwayError(f"length is {length}; it must be at least 1")
        dice = Dice.of(random.TESTING, seed, length, first + rows, device)
        return draw(dice[slice(first, None)], length)

    def independent(
        self, seed: int, rows: int, *, probe: str = "default", length: int | None = None, first: int = 0,
        device: torch.device | str = "cpu",
    ) -> Problems:  # fmt: skip
        """Draws independent fresh problems, as intervals require: of problems that come in pairs, one of each."""
        each = 1 if self.classes is None else 2
        problems = self.testing(seed, each * rows, probe=probe, length=length, first=each * first, device=device)
        place = torch.arange(rows, device=device)
        return problems if each == 1 else problems[2 * place + place % 2]


def whole_numbers(item: Any, key: str) -> list[int]:
    """Reads the list of whole numbers under this key of an item of a data file."""
    if not isinstance(item, dict) or key not in item:
        raise HeadwayError(f"has no {key!r}")
    values = item[key]
    if not isinstance(values, list) or not all(type(v) is int for v in values):
        raise HeadwayError(f"{key} is {str(values)[:40]!r}; it must be a list of whole numbers")
    return values


def _draw_user_probe(name: str, probe: Callable[..., Any], task: Task, dice: Dice, length: int) -> Problems:
    """Draws problems of a user's probe and checks their answers if the task has `solve`."""
    problems = probe(task, dice, length)
    if not isinstance(problems, Problems) or len(problems) != len(dice):
        raise HeadwayError(f"probe {name!r} must return headway.Problems, one for each row of the dice")
    right = task.solve(problems.source)
    if right is not None and not torch.equal(right.answer, problems.answer):
        raise HeadwayError(f"probe {name!r} draws problems with wrong answers; return task.solve(source)")
    return problems
