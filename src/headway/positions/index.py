"""The position index: the integer that each token gets before an encoding turns it into a signal.

An index numbers the tokens of a problem and of its answer. Where the two form one sequence (`joined`), the answer's
numbers continue those of the problem.
"""

from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingImports]

from headway.errors import HeadwayError
from headway.tasks.random import digest, mix

Numbers = tuple[Int[Tensor, "#batch source"], Int[Tensor, "#batch answer"]]


class Index:
    name: ClassVar[str]
    shared: ClassVar[bool] = False  # whether a number means the same in the problem and in its answer

    def numbers(self, source: Int[Tensor, "batch source"], answers: int = 0, joined: bool = False) -> Numbers:
        raise NotImplementedError

    def count(self, tokens: int, answers: int) -> int:
        """Returns the exclusive upper limit of the numbers of `tokens` tokens, `answers` of them in the answer."""
        return tokens

    def distances(self, tokens: int, answers: int) -> int:
        """Returns the exclusive upper limit of the distance between two of these numbers."""
        return self.count(tokens, answers)

    def check_length(self, tokens: int, answers: int) -> None:
        """Raises where there are more tokens than numbers."""


class Sequential(Index):
    """Counts 0, 1, 2, …: one row serves the whole batch."""

    name = "sequential"

    def numbers(self, source: Tensor, answers: int = 0, joined: bool = False) -> Numbers:
        tokens = source.shape[1]
        first = tokens if joined else 0
        numbers = torch.arange(max(tokens, first + answers), device=source.device)[None]
        return numbers[:, :tokens], numbers[:, first : first + answers]


class Randomized(Index):
    """Draws a sorted random subset of a long range (Ruoss et al., 2023), so that training meets the numbers of long
    sequences. The draw is seeded by a hash of the problem, so it is the same every time."""

    name = "randomized"

    def __init__(self, range: int = 2048) -> None:
        if range < 2:
            raise HeadwayError(f"randomized+range={range}: it must be at least 2")
        self.range = range

    def numbers(self, source: Tensor, answers: int = 0, joined: bool = False) -> Numbers:
        tokens = source.shape[1]
        if joined:
            both = self._draw(source, tokens + answers, 0)
            return both[:, :tokens], both[:, tokens:]
        return self._draw(source, tokens, 0), self._draw(source, answers, 1)

    def _draw(self, source: Tensor, count: int, salt: int) -> Int[Tensor, "batch count"]:
        self.check_length(count, 0)
        place = torch.arange(self.range, device=source.device)
        keys = mix(digest(source)[:, None] + mix(place + (salt << 32)))  # a random sort key for each number
        return keys.topk(count, dim=1, largest=False, sorted=False).indices.sort(1).values

    def count(self, tokens: int, answers: int) -> int:
        return self.range

    def check_length(self, tokens: int, answers: int) -> None:
        if tokens > self.range:
            lacks = f"the index randomized+range={self.range} has fewer than {tokens} numbers"
            raise HeadwayError(f"{lacks}; choose a range of at least {tokens}, or shorter sequences")


class Coupled(Index):
    """Gives digits of equal weight the same number (Cho et al., 2024): 1 for the ones, 2 for the tens, …, and 0 for all
    other tokens. An answer token is numbered by the column that is predicted after it, or with `own`, as published, by
    its own column. With a `range`, counting begins at a random number, seeded by a hash of the problem, that leaves
    room for the answer: so training on short sums meets all numbers of the range."""

    name = "coupled"
    shared = True

    def __init__(self, digits: int | None, least_first: bool, range: int = 0, own: bool = False) -> None:
        if digits is None:
            raise HeadwayError(f"the index {self.name} numbers the columns of sums; this task has no columns")
        if range < 0:
            raise HeadwayError(f"{self.name}+range={range}: it must be above 0, or 0 to count from 1")
        self.digits, self.least_first, self.range, self.own = digits, least_first, range, own

    def numbers(self, source: Tensor, answers: int = 0, joined: bool = False) -> Numbers:
        tokens = source.shape[1]
        place = torch.arange(tokens, device=source.device)
        other = torch.where(source < self.digits, tokens, place)  # the end of its number: the next non-digit
        column = other.flip(1).cummin(1).values.flip(1) - place
        if not self.range and not is_batchedtensor(column) and bool((column == column[:1]).all()):
            column = column[:1]  # one row serves the whole batch
        written = torch.arange(answers, device=source.device).expand(len(column), -1)
        written = 1 + written if self.least_first else answers - written
        if self.own:
            written = torch.where(torch.arange(answers, device=source.device) == 0, 0, written.roll(1, dims=1))
        begin = 0
        if self.range:  # depends only on the source, which may be numbered without its answer
            longest = tokens // 2 + 1  # of the operands, and one more for the carry
            self.check_length(0, longest)
            begin = mix(digest(source))[:, None] % (self.range - longest - 1)  # one is reserved for an end token
        return self._offset(begin, column), self._offset(begin, written)

    def _offset(self, begin: Tensor | int, column: Tensor) -> Tensor:
        return column + begin

    def count(self, tokens: int, answers: int) -> int:
        return self.range or self.distances(tokens, answers)

    def distances(self, tokens: int, answers: int) -> int:
        if not answers:  # the operands alone
            return tokens // 2 + 1
        return answers + (0 if self.own and self.least_first else 1)  # numbered by the next column, it needs one more

    def check_length(self, tokens: int, answers: int) -> None:
        if self.range and answers + 1 >= self.range:
            lacks = f"the index {self.name}+range={self.range} has no numbers for {answers} columns"
            raise HeadwayError(f"{lacks}; choose a range of more than {answers + 1}, or shorter sums")


class Abacus(Coupled):
    """Numbers digits as Abacus embeddings do (McLeish et al., 2024): by their place in their number, the ones first;
    all other tokens get 0, wherever counting begins."""

    name = "abacus"

    def __init__(self, digits: int | None, least_first: bool, range: int = 0) -> None:
        super().__init__(digits, least_first, range, own=True)

    def _offset(self, begin: Tensor | int, column: Tensor) -> Tensor:
        return torch.where(column == 0, 0, column + begin)
