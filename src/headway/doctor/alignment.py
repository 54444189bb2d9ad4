"""Alignment: which answer token each token of an output stands for, where the output is wider or narrower than the
answer, or shifted by one."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

CLEARLY = 0.15  # by how much more of the tokens another alignment must agree


@dataclass(frozen=True)
class Aligned:
    tokens: Int[Tensor, "row answer"]
    """in the places of the answer; −1 where the output has nothing"""
    offset: int
    """the output's token j stands for the answer's token j + offset"""
    width: int
    """of the output"""

    @property
    def missing_first(self) -> int:
        """How many of the answer's first tokens the output leaves out."""
        return max(0, self.offset)

    @property
    def columns(self) -> range:
        """The answer tokens that the output has."""
        return range(max(0, self.offset), min(self.tokens.shape[1], self.width + self.offset))

    @property
    def is_whole(self) -> bool:
        return len(self.columns) == self.tokens.shape[1]

    def verdict(self, answer: Tensor, scored: Tensor) -> Bool[Tensor, " row"]:
        """Decides which rows have every scored token right that the output has."""
        columns = list(self.columns)
        return ((self.tokens == answer) | ~scored)[:, columns].all(1)


def place_at(output: Int[Tensor, "row width"], offset: int, length: int) -> Aligned:
    """Puts an output's tokens in the places of the answer."""
    tokens = torch.full((len(output), length), -1, dtype=torch.long, device=output.device)
    columns = range(max(0, offset), min(length, output.shape[1] + offset))
    if len(columns):
        tokens[:, columns.start : columns.stop] = output[:, columns.start - offset : columns.stop - offset]
    return Aligned(tokens, offset, output.shape[1])


def align(
    output: Int[Tensor, "row width"], answer: Tensor, scored: Tensor, *, shifts: bool = False, ends: bool = True
) -> Aligned:
    """Aligns an output with the answers. An output of the answer's width is taken as it is, unless `shifts` allows
    every token to be one place early or late. Another width is explained by its first tokens missing or by a token
    before them, by its last ones missing or by tokens after them: by what agrees best with the answers. Where nothing
    agrees clearly better, `ends` says whether a narrower output has the answer's end or its beginning."""
    length, width = answer.shape[1], output.shape[1]
    offsets = [0] if width == length else [0, length - width] if width > length or not ends else [length - width, 0]
    if shifts or abs(length - width) > 1:
        offsets += [offset for offset in (1, -1) if offset not in offsets]
    first, *others = (place_at(output, offset, length) for offset in offsets)
    best = max((first, *others), key=lambda each: agreement(each, answer, scored))
    return best if agreement(best, answer, scored) > agreement(first, answer, scored) + CLEARLY else first


def agreement(aligned: Aligned, answer: Tensor, scored: Tensor) -> float:
    """Measures the share of the scored tokens that agree, among those that the output has."""
    columns = list(aligned.columns)
    counted = scored[:, columns]
    return float((aligned.tokens == answer)[:, columns][counted].float().mean()) if counted.any() else 0.0


def is_late(output: Int[Tensor, "row width"], answer: Tensor, scored: Tensor) -> bool:
    """Tells whether an output has its tokens one place late: `output[:, 1:]` agrees with `answer[:, :-1]`, and clearly
    less with `answer[:, 1:]`."""
    length = answer.shape[1]
    if length < 2 or output.shape[1] < 2:
        return False
    late, here = place_at(output, -1, length), place_at(output[:, 1:], 1, length)
    return agreement(late, answer, scored) > agreement(here, answer, scored) + CLEARLY
