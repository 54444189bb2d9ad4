"""Your own task: write a sequence backwards.

    cd recipes
    headway train reversal:Reversal --option longest=6 --steps 400 --out ../runs/reversal
    headway evaluate ../runs/reversal

The command finds `module:Class` in the current folder. Its fields are its options; everything else a task does
(training batches, the held-out tenth, exact match, decoding) comes from `headway.Task`. Because it defines `solve`, its
data files (`headway data reversal:Reversal --out DIR`) are checked, and `headway heads` tests what its heads carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headway.tasks import Dice, Problems, Task
from headway.tasks.random import below, digest


@dataclass(frozen=True)
class Reversal(Task):
    symbols: int = 10
    longest: int = 8

    name: ClassVar[str] = "reversal"

    @property
    def vocabulary(self) -> int:
        return self.symbols + 1

    @property
    def start(self) -> int:
        return self.symbols  # a dedicated token, never a symbol

    @property
    def lengths(self) -> tuple[int, int]:
        return 2, self.longest

    def source_tokens(self, length: int) -> int:
        return length

    def answer_tokens(self, length: int) -> int:
        return length

    def draw(self, dice: Dice, probe: str, length: int) -> Problems:
        return self.solve(below(dice.words(length), self.symbols))

    def solve(self, source: Tensor) -> Problems:
        return Problems(source, source.flip(1))

    def identity(self, problems: Problems) -> Tensor:
        return digest(problems.source)
