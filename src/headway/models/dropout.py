"""Dropout whose masks are a pure function of (seed, step, place): no generator state to save, the same masks for a run
trained alone and as a member of a population, on every device.

It acts where `nn.Transformer` has it: on the embeddings, the attention weights, the hidden layer of the feed-forward
blocks and the output of each sublayer. A pass drops something only if it is given a `Dropout`, and only training gives
it one, so that no evaluation can forget to switch it off.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.models.sites import Site
from headway.tasks.random import DROPOUT, Dice, mix

PLACES = OUTPUT, WEIGHTS, HIDDEN, EMBEDDINGS = range(4)  # the places of a site where something can be dropped
STRIDE = -0x61C8864680B583EB  # 2^64 divided by the golden ratio, which SplitMix64 counts by
LANES, WIDTH = 4, 16  # random numbers of 16 bits in each 64-bit word


@dataclass(frozen=True)
class Dropout:
    key: Int[Tensor, ""]
    """the random number that all masks of a pass are derived from"""
    rate: float

    def __call__(self, x: Float[Tensor, "*shape"], place: int) -> Float[Tensor, "*shape"]:
        """Sets a share `rate` of the numbers to zero and scales up the others."""
        count = x.shape.numel()
        word = torch.arange(-(-count // LANES), device=x.device) * STRIDE
        shifts = torch.arange(64 - WIDTH, -1, -WIDTH, device=x.device)  # not view(int16), which vmap lacks before 2.13
        lanes = (mix(word + mix(self.key + place))[:, None] << shifts) >> (64 - WIDTH)  # word lane, with their sign
        kept = lanes.reshape(-1)[:count].view(x.shape) >= round(self.rate * 2**16) - 2**15
        return x * (kept.to(x.dtype) * (1 / (1 - self.rate)))


def number_of(site: Site) -> int:
    """Returns a number that identifies a site; its places are counted from there."""
    return zlib.crc32(str(site).encode()) * len(PLACES)


def keys_of(seeds: Int[Tensor, " model"], step: int) -> Int[Tensor, " model"]:
    """Returns the key of each seed's masks at a training step."""
    low, high = Dice(DROPOUT, seeds, torch.full_like(seeds, step), torch.zeros_like(seeds)).words(2).unbind(1)
    return low | high << 32
