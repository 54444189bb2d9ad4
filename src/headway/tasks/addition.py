"""Addition of two n-digit numbers, and subtraction on request.

The source is the digits of a, the operator, the digits of b; the answer begins with a start token, and every
digit of it is predicted. Tokens: the digits, then plus, minus, start, end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.tasks import random
from headway.tasks.problems import NOT_A_DIGIT, Columns, Errors, Layout, Problems, token_errors
from headway.tasks.random import Dice
from headway.tasks.task import Pairs, Probe, Task, whole_numbers

Digits = Int[Tensor, "row digit"]
Results = Int[Tensor, "row column"]  # one more than the digits


def draw_evenly(task: Addition, dice: Dice, length: int) -> Problems:
    """Draws digits and operators uniformly."""
    return task.problems(*task.draw_operands(dice, length)[:3])


def draw_carry_heavy(task: Addition, dice: Dice, length: int) -> Problems:
    """Draws problems in which half of the columns propagate any incoming carry."""
    a, operator, b, words = task.draw_operands(dice, length)
    return task.problems(a, operator, torch.where(random.below(words, 2) == 0, task.propagating_digits(a, operator), b))


def draw_carry_chain(task: Addition, dice: Dice, length: int) -> Problems:
    """Draws problems in which one carry, made in the last column, propagates through all the others."""
    a, operator, _, words = task.draw_operands(dice, length)
    b = task.propagating_digits(a, operator)
    a = torch.cat((a[:, :-1], a[:, -1:].clamp(min=1)), dim=1)
    made = task.base - a[:, -1:] + random.below(words[:, :1], a[:, -1:])
    last = torch.where((operator == task.plus)[:, None], made, b[:, -1:])
    return task.problems(a, operator, torch.cat((b[:, :-1], last), dim=1))


PROBES: dict[str, Probe] = {"default": draw_evenly, "carry-heavy": draw_carry_heavy, "carry-chain": draw_carry_chain}


@dataclass(frozen=True)
class Addition(Task):
    """Sums of two numbers; an answer counts as right only as a whole."""

    digits: int = 3
    """digits of each operand; of the longest operands where training uses several lengths"""
    base: int = 10
    """the number base"""
    operators: str = "+"
    """which operators occur: +, - or +- (differences have a >= b)"""
    first: str = "most"
    """which digit of the answer comes first: the most or the least significant"""
    natural: bool = False
    """answers of natural length, closed by an end token, instead of padded to n + 1 digits"""
    shortest: int = 0
    """digits of the shortest training operands; 0 if all have one length"""

    name: ClassVar[str] = "addition"
    probes: ClassVar[tuple[str, ...]] = tuple(PROBES)
    hard_probe: ClassVar[str] = "carry-heavy"
    nouns: ClassVar[tuple[str, str, str]] = ("sum", "digits", "column")
    counted: ClassVar[str] = "digits"

    def __post_init__(self) -> None:
        if self.digits < 1:
            raise HeadwayError(f"digits is {self.digits}; it must be at least 1")
        if not 0 <= self.shortest <= self.digits:
            raise HeadwayError(f"shortest is {self.shortest}; it must lie between 1 and {self.digits}, the digits")
        if not 2 <= self.base <= 1000:
            raise HeadwayError(f"base is {self.base}; it must lie between 2 and 1000")
        if self.operators not in ("+", "-", "+-"):
            raise HeadwayError(f"operators is {self.operators!r}; it must be '+', '-' or '+-'")
        if self.first not in ("most", "least"):
            raise HeadwayError(f"first is {self.first!r}; it must be 'most' or 'least'")

    @property
    def plus(self) -> int:
        return self.base

    @property
    def minus(self) -> int:
        return self.base + 1

    @property
    def start(self) -> int:
        return self.base + 2

    @property
    def end(self) -> int | None:
        return self.base + 3 if self.natural else None

    @property
    def vocabulary(self) -> int:
        return self.base + 4

    @property
    def columns(self) -> tuple[int, bool] | None:
        if self.natural and self.first == "most":  # then an answer does not show where its columns begin
            return None
        return self.base, self.first == "least"

    @property
    def lengths(self) -> tuple[int, int]:
        return self.shortest or self.digits, self.digits

    def source_tokens(self, length: int) -> int:
        return 2 * length + 1

    def answer_tokens(self, length: int) -> int:
        return length + 1 + self.natural

    def draw(self, dice: Dice, probe: str, length: int) -> Problems:
        return PROBES[probe](self, dice, length)

    def draw_operands(self, dice: Dice, length: int) -> tuple[Digits, Int[Tensor, " row"], Digits, Digits]:
        """Draws the digits of a, the operators, the digits of b, and a random word for each column."""
        drawn = dice.words(3 * length + 1)
        a, b = random.below(drawn[:, : 2 * length], self.base).split(length, dim=1)
        operators = torch.tensor([self._signs[sign] for sign in self.operators], device=drawn.device)
        return a, operators[random.below(drawn[:, -1], len(operators))], b, drawn[:, 2 * length : -1]

    def propagating_digits(self, a: Digits, operator: Int[Tensor, " row"]) -> Digits:
        """Returns the digits of b with which every column propagates an incoming carry (or borrow)."""
        return torch.where((operator == self.plus)[:, None], self.base - 1 - a, a)

    @property
    def _signs(self) -> dict[str, int]:
        return {"+": self.plus, "-": self.minus}

    def problems(self, a: Digits, operator: Int[Tensor, " row"], b: Digits) -> Problems:
        """Builds the problems a ∘ b, most significant digit first; swaps operands so that no difference is negative."""
        swapped = ((operator == self.minus) & _less(a, b))[:, None]
        a, b = torch.where(swapped, b, a), torch.where(swapped, a, b)
        result, _ = self.results(a, operator, b)
        source = torch.cat((a, operator[:, None], b), dim=1)
        answer = result if self.first == "most" else result.flip(1)
        if not self.natural:
            return Problems(source, answer)
        # without leading zeros, closed by the end token, which is also the padding
        length, columns = natural_length(result)[:, None], result.shape[1]
        place = torch.arange(columns + 1, device=answer.device).expand(len(answer), -1)
        taken = place + columns - length if self.first == "most" else place
        moved = answer.gather(1, taken.clamp(max=columns - 1))
        return Problems(source, torch.where(place < length, moved, self.base + 3), scored=place <= length)

    def results(self, a: Digits, operator: Tensor, b: Digits) -> tuple[Results, Results]:
        """Computes the n + 1 digits of the result and the carry (or borrow) into each of its columns."""
        minus = (operator == self.minus)[:, None]
        made = torch.where(minus, a < b, a + b >= self.base)  # carries regardless of the carry in
        passed = torch.where(minus, a == b, a + b == self.base - 1)  # carries only if one comes in
        place = torch.arange(1, a.shape[1] + 1, device=a.device)  # counted from the left; 0 means none
        decides = torch.where(passed, a.shape[1] + 1, place).flip(1).cummin(1).values.flip(1)
        carry = torch.cat((made.long(), torch.zeros_like(minus, dtype=torch.long).expand(-1, 2)), dim=1)
        out = carry.gather(1, decides - 1)  # a column takes the carry of the nearest deciding column to its right
        carries = torch.cat((out, torch.zeros_like(out[:, :1])), dim=1)
        total = torch.where(minus, a - b - carries[:, 1:], a + b + carries[:, 1:])
        return torch.cat((out[:, :1].where(~minus, 0), total % self.base), dim=1), carries

    def solve(self, source: Int[Tensor, "row token"]) -> Problems:
        return self.problems(*self.operands(Problems(source, source)))  # `operands` ignores the answer

    def operands(self, problems: Problems) -> tuple[Digits, Int[Tensor, " row"], Digits]:
        length = problems.source.shape[1] // 2
        a, operator, b = problems.source.split((length, 1, length), dim=1)
        return a, operator[:, 0], b

    def identity(self, problems: Problems) -> Int[Tensor, " row"]:
        """Hashes a + b and b + a alike: seeing the one in training gives away the other."""
        a, operator, b = self.operands(problems)
        first, second = random.digest(a), random.digest(b)
        return random.mix(first + torch.where(operator == self.plus, second, random.mix(second)) + operator)

    def strata(self, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
        a, operator, b = self.operands(problems)
        result, carries = self.results(a, operator, b)
        carry_in, carry_out = carries[:, 1:], carries[:, :-1]  # per operand column, most significant first
        propagated = (carry_in == 1) & (b == self.propagating_digits(a, operator))
        place = torch.arange(a.shape[1], 0, -1, device=a.device)  # column number from the right, starting at 1
        begins = torch.where((carry_out == 1) & propagated, 0, place).flip(1).cummax(1).values.flip(1)
        strata = {
            "carries": carry_out.sum(1),
            "longest carry chain": torch.where(carry_out == 1, place - begins + 1, 0).amax(1),
            "propagated carries": propagated.sum(1),
            "answer length": natural_length(result),
        }
        if len(self.operators) > 1:
            strata["subtraction"] = (operator == self.minus).long()
        return strata

    @property
    def count(self) -> int | None:
        if self.lengths[0] != self.digits:
            return None
        numbers = self.base**self.digits
        sums, differences = numbers**2, numbers * (numbers + 1) // 2
        return sums * ("+" in self.operators) + differences * ("-" in self.operators)

    @property
    def draws_evenly(self) -> bool:
        return self.operators == "+"

    def listing(self, start: int, stop: int, device: torch.device | str = "cpu") -> Problems:
        """Lists every a + b, ordered by a, then b; then every a - b."""
        if self.count is None or self.count >= 2**62:
            return super().listing(start, stop, device)
        numbers = self.base**self.digits
        at = torch.arange(start, min(stop, self.count), device=device)
        sums = numbers**2 if "+" in self.operators else 0
        pair = at - sums  # numbers the differences: pairs with b <= a, row by row of a triangle
        row = ((8 * pair.clamp(min=0).double() + 1).sqrt() - 1).div(2).long()
        row = row - (row * (row + 1) // 2 > pair).long() + ((row + 1) * (row + 2) // 2 <= pair).long()
        is_sum = at < sums
        a = torch.where(is_sum, at // numbers, row)
        b = torch.where(is_sum, at % numbers, pair - row * (row + 1) // 2)
        return self.problems(self.to_digits(a), torch.where(is_sum, self.plus, self.minus), self.to_digits(b))

    @property
    def layout(self) -> Layout | None:
        if self.lengths[0] != self.digits:
            return None
        columns, longest = tuple(range(self.digits - 1, -1, -1)), tuple(range(self.digits, -1, -1))
        answer = longest if self.first == "most" else longest[::-1]
        source = (*columns, None, *columns)
        if not self.natural:
            return Layout(source, self.digits, answer)
        return Layout(source, self.digits, (*answer, None), self.answer_columns)

    def answer_columns(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """Returns the column of each answer token, by the natural length of each answer."""
        length = natural_length(self.results(*self.operands(problems))[0])[:, None]
        place = torch.arange(problems.answer.shape[1], device=length.device).expand(len(length), -1)
        column = length - 1 - place if self.first == "most" else place
        return column.where(place < length, NOT_A_DIGIT)

    def to_digits(self, number: Int[Tensor, " row"]) -> Digits:
        """Converts whole numbers to `digits` digits, most significant first."""
        weights = [self.base**place for place in range(self.digits - 1, -1, -1)]
        return torch.stack([number // weight % self.base for weight in weights], dim=1)

    @property
    def contrasts(self) -> Pairs | None:
        if "+" not in self.operators:
            return None
        from headway.tasks.contrasts import sum_contrasts

        return partial(sum_contrasts, self)

    @property
    def local(self) -> Columns | str:
        if self.operators != "+" or self.natural or self.first != "least":
            return "only sums padded to one more digit and answered least significant digit first are local to columns"
        return Columns(self.base, self.plus, self.problems, self.operands)

    def describe_errors(self, problems: Problems, written: Int[Tensor, "row answer"]) -> Errors:
        trained = self.answer_tokens(self.lengths[1])
        return token_errors(problems, written, trained, self.nouns, self.natural, backwards=self.first == "most")

    def read_item(self, item: Any) -> tuple[int, list[int], list[int]]:
        source = whole_numbers(item, "input")
        length, odd = divmod(len(source), 2)
        if not odd or not self.lengths[0] <= length <= self.digits:
            right = f"{self.digits} digits, a sign and {self.digits} digits make {2 * self.digits + 1}"
            raise HeadwayError(f"input has {len(source)} tokens; {right}")
        a, sign, b = source[:length], source[length], source[length + 1 :]
        if sign not in [self._signs[operator] for operator in self.operators]:
            raise HeadwayError(f"input has {sign} where the sign belongs; plus is {self.plus}")
        if wrong := [digit for digit in a + b if not 0 <= digit < self.base]:
            raise HeadwayError(f"input has the digit {wrong[0]}; digits run from 0 to {self.base - 1}")
        if sign == self.minus and a < b:
            raise HeadwayError("the difference is negative; differences have a >= b")
        return super().read_item(item)

    def spelled(self, tokens: list[int]) -> list[str]:
        names = {self.plus: "+", self.minus: "−", self.start: "start", self.base + 3: "end"}
        return [names.get(token, str(token)) for token in tokens]

    def read(self, written: str, device: torch.device | str = "cpu", length: int | None = None) -> Problems:
        length = length or self.digits
        found = re.fullmatch(r"\s*(\d+)\s*([-+])\s*(\d+)\s*", written.replace("−", "-"))
        first, sign, second = found.groups() if found is not None else ("", "", "")
        too_large = any(int(digit) >= self.base for digit in first + second)
        if found is None or sign not in self.operators or too_large or max(len(first), len(second)) > length:
            like = f"like '12{self.operators[0]}7', with at most {length} digits"
            raise HeadwayError(f"{written[:40]!r} is not a problem of this task; write one {like}")
        a, b = (torch.tensor([list(map(int, number.zfill(length)))], device=device) for number in (first, second))
        return self.problems(a, torch.tensor([self._signs[sign]], device=device), b)

    def show(self, source: list[int], answer: list[int]) -> str:
        def number(tokens: list[int]) -> str:
            return ("" if self.base <= 10 else " ").join(str(token) for token in tokens if token < self.base)

        length = (len(source) - 1) // 2
        sign = "+" if source[length] == self.plus else "-"
        ordered = answer if self.first == "most" else answer[::-1]
        return f"{number(source[:length])} {sign} {number(source[length + 1 :])} = {number(ordered)}"


def _less(a: Digits, b: Digits) -> Tensor:
    """Returns whether a < b, by the first digit in which they differ."""
    differs = a != b
    first = differs.int().argmax(1, keepdim=True)
    return (a.gather(1, first) < b.gather(1, first))[:, 0]


def natural_length(number: Results) -> Int[Tensor, " row"]:
    """Counts the digits without leading zeros; 0 itself has one."""
    leading_zeros = (number.cumsum(1) == 0).sum(1)
    return (number.shape[1] - leading_zeros).clamp(min=1)
