"""What a task is: it makes problems, knows their answers, and names what kind of problem each one is.

A problem is a pure function of (seed, step, row), so nothing about a task has state and nothing is stored.
A tenth of all problems, chosen by a hash of the problem itself, is held out: training never draws one, in
any run, with any seed. A new task is a frozen dataclass with the abstract methods below; the field values
are its options on the command line. The methods that are not abstract it may offer: `solve` for checked data files and
contrasts, `describe_errors` for the diagnosis of lengths, `local` for certificates, and so on.
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

Probe = Callable[[Any, Dice, int], Problems]  # test problems; called with the task, dice with a row for each, a length
Item = dict[str, int | list[int]]
Pairs = Callable[[int, int, torch.device], list[Contrast]]  # called with the pairs of each kind, a seed and a device


class Task(ABC):
    """Problems with exactly known answers. Subclasses are frozen dataclasses; their fields are the options."""

    name: ClassVar[str]
    probes: ClassVar[tuple[str, ...]] = ("default",)  # names that `draw` knows
    hard_probe: ClassVar[str] = "default"  # the probe that training mixes in where asked for hard problems
    twin_probe: ClassVar[str | None] = None  # its rows 2i and 2i + 1 differ in one thing only, and in their class
    classes: ClassVar[int | None] = None  # of the one answer token; None where the answer is a sequence
    class_names: ClassVar[tuple[str, ...]] = ("0", "1")  # of two classes: what each means
    nouns: ClassVar[tuple[str, str, str]] = ("answer", "tokens", "place")  # an answer, its parts, where each stands
    counted: ClassVar[str] = ""  # what a length counts, where that is worth saying

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
        """Of columns of digits: how many tokens are digits, and whether answers begin with the least significant."""
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

    def solve(self, source: Int[Tensor, "row token"]) -> Problems | None:
        """These sources with their right answers; None where the task can only draw problems."""
        return None

    def strata(self, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
        """The kinds of problem: a name and each problem's value."""
        return {}

    @property
    def count(self) -> int | None:
        """How many problems there are, where they can be listed."""
        return None

    @property
    def draws_evenly(self) -> bool:
        """Whether the default probe draws evenly from all of them."""
        return False

    @property
    def layout(self) -> Layout | None:
        """What stands where; None where that differs from problem to problem."""
        return None

    @property
    def contrasts(self) -> Pairs | None:
        """Makes pairs of problems that differ in one thing only; None where there are none. Without a method of the
        task's own, pairs that differ in one token, where the task answers with a sequence and can solve."""
        if self.classes is not None or type(self).solve is Task.solve:
            return None
        from headway.tasks.contrasts import token_contrasts

        return partial(token_contrasts, self)

    @property
    def local(self) -> Columns | Neighbours | str:
        """What each part of an answer depends on, for proofs; or why that cannot be said."""
        return f"{self.name} does not say what its answers depend on"

    def describe_errors(self, problems: Problems, written: Int[Tensor, "row answer"]) -> Errors:
        """What is wrong with the answers that a model has written to these problems."""
        if self.classes is not None:
            return class_errors(problems, written, self.classes)
        return token_errors(problems, written, self.answer_tokens(self.lengths[1]), self.nouns, self.end is not None)

    def item(self, source: list[int], answer: list[int]) -> Item:
        """A problem as it stands in a data file."""
        return {"input": source, "target": answer}

    def read_item(self, item: Any) -> tuple[int, list[int], list[int]]:
        """The length, the source and the answer of an item of a data file; refuses one that is no problem."""
        source, answer = whole_numbers(item, "input"), whole_numbers(item, "target")
        length = next((n for n in range(1, len(source) + 1) if self.source_tokens(n) == len(source)), None)
        if length is None:
            raise HeadwayError(f"input has {len(source)} tokens; no problem of {self.name} has so many")
        if len(answer) != self.answer_tokens(length):
            raise HeadwayError(f"target has {len(answer)} tokens instead of {self.answer_tokens(length)}")
        for what, limit in (("input", self.vocabulary), ("target", self.classes or self.vocabulary)):
            if wrong := [token for token in item[what] if not 0 <= token < limit]:
                raise HeadwayError(f"{what} has the token {wrong[0]}; tokens run from 0 to {limit - 1}")
        return length, source, answer

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

    def read(self, written: str, device: torch.device | str = "cpu", length: int | None = None) -> Problems:
        """The problem that a person writes, the way `show` shows it; of this length, or as long as training's."""
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
        """Training problems, none held out, for the rows of the dice; rows below `hard` are of the hard probe."""
        is_hard = dice.row < hard
        problems = self._trainable(dice[~is_hard], "default", length)
        if not hard:
            return problems
        both = Problems.join([self._trainable(dice[is_hard], self.hard_probe, length), problems])
        return both[(~is_hard).int().argsort(stable=True).argsort()]  # the hard ones stand first there

    def _trainable(self, dice: Dice, probe: str, length: int) -> Problems:
        problems = self.draw(dice, probe, length)
        rows = torch.arange(len(dice), device=dice.row.device)
        while len(rows := rows[self.held_out(problems[rows])]):
            dice = replace(dice, attempt=dice.attempt + 1)
            if dice.attempt > 200:
                scarce = f"{self.name} with these options has hardly a problem that is not held out"
                raise HeadwayError(f"{scarce}; allow more")
            problems = problems.replaced(rows, self.draw(dice[rows], probe, length))
        return problems

    def find_probe(self, name: str) -> Callable[[Dice, int], Problems]:
        """A probe by its name, or a user's own as `file.py:function`."""
        if ":" in name:
            return partial(_draw_own, name, load_function(name), self)
        if name not in self.probes:
            raise unknown("probe", name, self.probes)
        return lambda dice, length: self.draw(dice, name, length)

    def testing(
        self, seed: int, rows: int, *, probe: str = "default", length: int | None = None, first: int = 0,
        device: torch.device | str = "cpu",
    ) -> Problems:  # fmt: skip
        """Fresh problems of a probe, from row `first` on, held-out ones among them; training has another stream."""
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
        """Fresh problems that are independent, as intervals want them: where they come in pairs, only one of each."""
        each = 1 if self.classes is None else 2
        problems = self.testing(seed, each * rows, probe=probe, length=length, first=each * first, device=device)
        place = torch.arange(rows, device=device)
        return problems if each == 1 else problems[2 * place + place % 2]


def whole_numbers(item: Any, key: str) -> list[int]:
    """The list of whole numbers that an item of a data file has under this key."""
    if not isinstance(item, dict) or key not in item:
        raise HeadwayError(f"has no {key!r}")
    values = item[key]
    if not isinstance(values, list) or not all(type(v) is int for v in values):
        raise HeadwayError(f"{key} is {str(values)[:40]!r}; it must be a list of whole numbers")
    return values


def _draw_own(name: str, probe: Callable[..., Any], task: Task, dice: Dice, length: int) -> Problems:
    """Problems of a user's own probe, held against the task's answers where it can solve."""
    problems = probe(task, dice, length)
    if not isinstance(problems, Problems) or len(problems) != len(dice):
        raise HeadwayError(f"probe {name!r} must return headway.Problems, one for each row of the dice")
    right = task.solve(problems.source)
    if right is not None and not torch.equal(right.answer, problems.answer):
        raise HeadwayError(f"probe {name!r} draws problems with wrong answers; take them from task.solve(source)")
    return problems
