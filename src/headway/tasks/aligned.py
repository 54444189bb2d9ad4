"""Addition whose operands begin with their least significant digit, like the answer.

Then an answer digit is always equally far from the operand digits of its column, so relative positions (rope) can find
them in one layer. Written most significant digit first, that distance grows with the column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.tasks.addition import Addition, Digits
from headway.tasks.problems import Layout, Problems


@dataclass(frozen=True)
class AlignedAddition(Addition):
    """Sums of two zero-padded numbers; operands and answer begin with the least significant digit."""

    digits: int = 10
    first: str = "least"

    name: ClassVar[str] = "aligned-addition"

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value, wanted in (("operators", self.operators, "+"), ("first", self.first, "least")):
            if value != wanted:
                raise HeadwayError(f"{option} is {value!r}; {self.name} has only {wanted!r}")

    def problems(self, a: Digits, operator: Int[Tensor, " row"], b: Digits) -> Problems:
        return _turned(super().problems(a, operator, b))

    def operands(self, problems: Problems) -> tuple[Digits, Int[Tensor, " row"], Digits]:
        a, operator, b = super().operands(problems)
        return a.flip(1), operator, b.flip(1)

    @property
    def layout(self) -> Layout | None:
        found = super().layout
        return None if found is None else replace(found, source=(*range(self.digits), None, *range(self.digits)))

    def show(self, source: list[int], answer: list[int]) -> str:
        length = (len(source) - 1) // 2
        return super().show([*source[:length][::-1], source[length], *source[length + 1 :][::-1]], answer)


def _turned(problems: Problems) -> Problems:
    """Writes both operands the other way round."""
    length = problems.source.shape[1] // 2
    a, operator, b = problems.source.split((length, 1, length), dim=1)
    return replace(problems, source=torch.cat((a.flip(1), operator, b.flip(1)), dim=1))
