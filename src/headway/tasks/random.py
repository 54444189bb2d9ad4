"""Random numbers as a pure function of a counter: Philox 4x32 with ten rounds (Salmon et al., 2011).

There is no generator state to save. The same (seed, stream, step, row) gives the same numbers on every
device, whatever else is drawn around it. Words are 32 bits wide and held in int64, where the 64-bit
product that Philox needs wraps to the right low bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
Four = tuple[Tensor, Tensor, Tensor, Tensor]

# The purpose of a draw. (The length of a training step comes from the first word of row 0 of seed 0.)
TRAINING, TESTING, STORING, DROPOUT, REPEATED, SHUFFLING = range(6)


def philox(counter: Four, key: tuple[Tensor, Tensor]) -> Four:
    """Returns four random 32-bit words for every four words of counter and two of key."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = (right >> 32 & _LOW) ^ c1 ^ k0, (left >> 32 & _LOW) ^ c3 ^ k1
        c1, c3 = right & _LOW, left & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Dice:
    """Random words for rows. The words of a row depend on its entries here alone, not on other rows."""

    stream: int
    seed: Int[Tensor, " row"]
    step: Int[Tensor, " row"]
    row: Int[Tensor, " row"]
    attempt: int = 0  # numbers the redraws of a row

    @staticmethod
    def of(stream: int, seed: int, step: int, rows: int, device: torch.device | str) -> Dice:
        """Creates the dice for rows 0 to `rows` of one step."""
        row = torch.arange(rows, device=device)
        return Dice(stream, torch.full_like(row, seed), torch.full_like(row, step), row)

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, rows: Tensor | slice) -> Dice:
        return Dice(self.stream, self.seed[rows], self.step[rows], self.row[rows], self.attempt)

    def words(self, count: int) -> Int[Tensor, "row {count}"]:
        """Draws `count` random 32-bit words for each row."""
        blocks = -(-count // 4)
        block = torch.arange(blocks, device=self.row.device)[None]
        seed, step, row = self.seed[:, None], self.step[:, None], self.row[:, None]
        purpose = self.stream | self.attempt << 8
        counter = (block, row, step & _LOW, (step >> 32) << 16 | purpose)
        drawn = philox(counter, (seed & _LOW, (seed >> 32) & _LOW))
        return torch.stack(drawn, dim=-1).flatten(1)[:, :count]  # row block·4


def below(word: Int[Tensor, "*shape"], limit: int | Tensor) -> Int[Tensor, "*shape"]:
    """Maps a word to a whole number in [0, limit); the bias is below limit / 2**32."""
    return (word * limit) >> 32


def mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Hashes each number to 64 bits (the finaliser of SplitMix64, Steele et al., 2014)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def digest(tokens: Int[Tensor, "row token"]) -> Int[Tensor, " row"]:
    """Hashes each row of tokens to 64 bits, in one pass for any length."""
    place = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return mix(mix(tokens * 0x10001 + mix(place)).sum(1) + tokens.shape[1])


def one_in_ten(hashed: Int[Tensor, " row"]) -> Bool[Tensor, " row"]:
    return (hashed & 0x7FFFFFFFFFFFFFFF) % 10 == 0
