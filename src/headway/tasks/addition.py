"""Addition of two numbers of n digits, and subtraction where asked.

The source is the digits of a, the operator, the digits of b; the answer has a start token of its own and
every one of its digits is predicted. Tokens: the digits, then plus, minus, start, end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.tasks import random
from headway.tasks.random import Dice
from headway.tasks.task import Layout, Problems, Task

Digits = Int[Tensor, "row digit"]
Columns = Int[Tensor, "row column"]  # one more than the digits


@dataclass(frozen=True)
class Addition(Task):
    """Sums of two numbers, right or wrong as a whole."""

    digits: int = 3
    """digits of each operand; of the longest, where training shows several lengths"""
    base: int = 10
    """the number base"""
    operators: str = "+"
    """which operators occur: +, - or +- (differences have a >= b)"""
    first: str = "most"
    """which digit of the answer comes first: the most or the least significant"""
    natural: bool = False
    """answers of natural length, closed by an end token, instead of padded to n + 1 digits"""
    shortest: int = 0
    """digits of the shortest operands that training shows; 0 for all of one length"""

    name: ClassVar[str] = "addition"
    probes: ClassVar[tuple[str, ...]] = ("default", "carry-heavy", "carry-chain")
    hard_probe: ClassVar[str] = "carry-heavy"

    def __post_init__(self) -> None:
        if self.digits < 1:
            raise HeadwayError(f"digits is {self.digits}; an operand has at least 1")
        if not 0 <= self.shortest <= self.digits:
            raise HeadwayError(f"shortest is {self.shortest}; it lies between 1 and the {self.digits} digits")
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
        if self.natural and self.first == "most":  # then an answer does not say where its columns begin
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
        drawn = dice.words(3 * length + 1)  # a, b, which digits of b are replaced, the operator
        a, b = random.below(drawn[:, : 2 * length], self.base).split(length, dim=1)
        operators = torch.tensor(self._operator_tokens, device=drawn.device)
        operator = operators[random.below(drawn[:, -1], len(operators))]
        passes_on = torch.where((operator == self.plus)[:, None], self.base - 1 - a, a)
        if probe == "carry-heavy":
            b = torch.where(random.below(drawn[:, 2 * length : -1], 2) == 0, passes_on, b)
        elif probe == "carry-chain":  # one carry, made in the last column, goes through all the others
            a, b = torch.cat((a[:, :-1], a[:, -1:].clamp(min=1)), dim=1), passes_on
            made = self.base - a[:, -1:] + random.below(drawn[:, 2 * length : 2 * length + 1], a[:, -1:])
            b = torch.cat((passes_on[:, :-1], torch.where((operator == self.plus)[:, None], made, b[:, -1:])), dim=1)
        return self.problems(a, operator, b)

    @property
    def _operator_tokens(self) -> list[int]:
        return [{"+": self.plus, "-": self.minus}[sign] for sign in self.operators]

    def problems(self, a: Digits, operator: Int[Tensor, " row"], b: Digits) -> Problems:
        """The problems a ∘ b, digits most significant first; a difference is turned so that a >= b."""
        turned = ((operator == self.minus) & _less(a, b))[:, None]
        a, b = torch.where(turned, b, a), torch.where(turned, a, b)
        result, _ = self._columns(a, operator, b)
        source = torch.cat((a, operator[:, None], b), dim=1)
        answer = result if self.first == "most" else result.flip(1)
        if not self.natural:
            return Problems(source, answer)
        # without leading zeros, closed by the end token, which also fills what is left over
        length, columns = natural_length(result)[:, None], result.shape[1]
        place = torch.arange(columns + 1, device=answer.device).expand(len(answer), -1)
        taken = place + columns - length if self.first == "most" else place
        moved = answer.gather(1, taken.clamp(max=columns - 1))
        return Problems(source, torch.where(place < length, moved, self.base + 3), scored=place <= length)

    def _columns(self, a: Digits, operator: Tensor, b: Digits) -> tuple[Columns, Columns]:
        """The n + 1 digits of the result and the carry (or borrow) into each of its columns."""
        minus = (operator == self.minus)[:, None]
        made = torch.where(minus, a < b, a + b >= self.base)  # a carry, whatever comes in
        passed = torch.where(minus, a == b, a + b == self.base - 1)  # a carry, if one comes in
        place = torch.arange(1, a.shape[1] + 1, device=a.device)  # counted from the left; 0 means none
        decides = torch.where(passed, a.shape[1] + 1, place).flip(1).cummin(1).values.flip(1)
        carry = torch.cat((made.long(), torch.zeros_like(minus, dtype=torch.long).expand(-1, 2)), dim=1)
        out = carry.gather(1, decides - 1)  # of each column: that of the nearest to the right that decides
        carries = torch.cat((out, torch.zeros_like(out[:, :1])), dim=1)
        total = torch.where(minus, a - b - carries[:, 1:], a + b + carries[:, 1:])
        return torch.cat((out[:, :1].where(~minus, 0), total % self.base), dim=1), carries

    def operands(self, problems: Problems) -> tuple[Digits, Int[Tensor, " row"], Digits]:
        length = (problems.source.shape[1] - 1) // 2
        a, operator, b = problems.source.split((length, 1, length), dim=1)
        return a, operator[:, 0], b

    def identity(self, problems: Problems) -> Int[Tensor, " row"]:
        """a + b and b + a are one problem: whoever has seen the one has seen the other."""
        a, operator, b = self.operands(problems)
        first, second = random.digest(a), random.digest(b)
        ordered = first + random.mix(second)
        return random.mix(torch.where(operator == self.plus, first + second, ordered) + operator)

    def strata(self, problems: Problems) -> dict[str, Int[Tensor, " row"]]:
        a, operator, b = self.operands(problems)
        result, carries = self._columns(a, operator, b)
        carry_in, carry_out = carries[:, 1:], carries[:, :-1]  # of each operand column, most significant first
        needs = torch.where((operator == self.plus)[:, None], a + b == self.base - 1, a == b)
        propagated = (carry_in == 1) & needs
        place = torch.arange(a.shape[1], 0, -1, device=a.device)  # columns from the right, from 1 on
        begins = torch.where((carry_out == 1) & propagated, 0, place).flip(1).cummax(1).values.flip(1)
        longest = torch.where(carry_out == 1, place - begins + 1, 0).amax(1)
        strata = {
            "carries": carry_out.sum(1),
            "longest carry chain": longest,
            "propagated carries": propagated.sum(1),
            "answer length": natural_length(result),
        }
        if len(self.operators) > 1:
            strata["subtraction"] = (operator == self.minus).long()
        return strata

    @property
    def count(self) -> int | None:
        return self._count if self.lengths[0] == self.digits else None

    @property
    def _count(self) -> int:
        numbers = self.base**self.digits
        sums, differences = numbers**2, numbers * (numbers + 1) // 2
        return sums * ("+" in self.operators) + differences * ("-" in self.operators)

    def listing(self, start: int, stop: int, device: torch.device | str = "cpu") -> Problems:
        """All a + b in the order of a, then b; after them all a - b."""
        if self.count is None or self.count >= 2**62:
            return super().listing(start, stop, device)
        numbers = self.base**self.digits
        at = torch.arange(start, min(stop, self._count), device=device)
        sums = numbers**2 if "+" in self.operators else 0
        pair = at - sums  # the number of a difference: pairs with b <= a, row by row of a triangle
        row = ((8 * pair.clamp(min=0).double() + 1).sqrt() - 1).div(2).long()
        row = row - (row * (row + 1) // 2 > pair).long() + ((row + 1) * (row + 2) // 2 <= pair).long()
        is_sum = at < sums
        a = torch.where(is_sum, at // numbers, row)
        b = torch.where(is_sum, at % numbers, pair - row * (row + 1) // 2)
        return self.problems(self.spell(a), torch.where(is_sum, self.plus, self.minus), self.spell(b))

    @property
    def layout(self) -> Layout | None:
        if self.natural or self.lengths[0] != self.digits:
            return None
        columns = tuple(range(self.digits - 1, -1, -1))
        answer = tuple(range(self.digits, -1, -1))
        return Layout((*columns, None, *columns), self.digits, answer if self.first == "most" else answer[::-1])

    def spell(self, number: Int[Tensor, " row"]) -> Digits:
        """Whole numbers as `digits` digits, most significant first."""
        weights = [self.base**place for place in range(self.digits - 1, -1, -1)]
        return torch.stack([number // weight % self.base for weight in weights], dim=1)

    def spelled(self, tokens: list[int]) -> list[str]:
        names = {self.plus: "+", self.minus: "−", self.start: "start", self.base + 3: "end"}
        return [names.get(token, str(token)) for token in tokens]

    def read(self, written: str, device: torch.device | str = "cpu") -> Problems:
        found = re.fullmatch(r"\s*(\d+)\s*([-+−])\s*(\d+)\s*", written)
        sign = "" if found is None else found[2].replace("−", "-")
        numbers = () if found is None else (found[1], found[3])
        foreign = any(int(digit) >= self.base for number in numbers for digit in number)
        if found is None or sign not in self.operators or foreign or max(map(len, numbers)) > self.digits:
            like = f"like '12{self.operators[0]}7', of at most {self.digits} digits"
            raise HeadwayError(f"{written!r} is no problem of this task; write one {like}")
        a, b = (torch.tensor([int(number, self.base)], device=device) for number in numbers)
        operator = torch.tensor([self.plus if sign == "+" else self.minus], device=device)
        return self.problems(self.spell(a), operator, self.spell(b))

    def show(self, source: list[int], answer: list[int]) -> str:
        def number(tokens: list[int]) -> str:
            return ("" if self.base <= 10 else " ").join(str(token) for token in tokens if token < self.base)

        length = (len(source) - 1) // 2
        sign = "+" if source[length] == self.plus else "-"
        spoken = answer if self.first == "most" else answer[::-1]
        return f"{number(source[:length])} {sign} {number(source[length + 1 :])} = {number(spoken)}"


def _less(a: Digits, b: Digits) -> Tensor:
    """Whether a < b, by the first digit in which they differ."""
    differs = a != b
    first = differs.int().argmax(1, keepdim=True)
    return (a.gather(1, first) < b.gather(1, first))[:, 0]


def natural_length(number: Columns) -> Int[Tensor, " row"]:
    """Digits without the leading zeros; 0 itself has one."""
    leading_zeros = (number.cumsum(1) == 0).sum(1)
    return (number.shape[1] - leading_zeros).clamp(min=1)
