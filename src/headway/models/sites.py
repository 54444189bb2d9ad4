"""Where heads sit: a site is one attention module, a head is a site and a number.

A feed-forward block is a site too where it is to be ablated as a whole: one with a single head as wide as the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from headway.errors import HeadwayError


@dataclass(frozen=True, order=True)
class Site:
    stack: Literal["encoder", "decoder"]
    layer: int
    kind: Literal["self", "cross", "feed"]

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.kind}"

    @property
    def title(self) -> str:
        """The name people read: 'Decoder cross L1'."""
        return f"{self.stack.capitalize()} {'feed-forward' if self.kind == 'feed' else self.kind} L{self.layer}"


@dataclass(frozen=True, order=True)
class Head:
    site: Site
    number: int

    def __str__(self) -> str:
        return f"{self.site}.{self.number}"

    @property
    def title(self) -> str:
        """The name people read: 'Decoder cross L1 H2'."""
        return f"{self.site.title} H{self.number}"

    @classmethod
    def parse(cls, name: str) -> Head:
        match name.split("."):
            case [("encoder" | "decoder") as stack, layer, ("self" | "cross") as kind, number] if (
                layer.isdecimal() and number.isdecimal()
            ):
                return cls(Site(stack, int(layer), kind), int(number))
        raise HeadwayError(f"{name!r} names no head; heads are written like 'decoder.1.cross.2'")


@dataclass(frozen=True)
class Gate:
    """What becomes of the heads of one site: z becomes g·z + (1 − g)·r, row by row, at all positions or at some."""

    passed: Float[Tensor, "#batch head"] | Float[Tensor, "#batch query head"]
    replacement: Float[Tensor, "#batch #query head dim"] | None = None
    """r; zero where None"""


Gates = Mapping[Site, Gate]


@dataclass
class Trace:
    """Filled by a forward pass that is given one: what each site saw and put out."""

    maps: dict[Site, Float[Tensor, "batch head query key"]] = field(default_factory=dict)
    outputs: dict[Site, Float[Tensor, "batch query head dim"]] = field(default_factory=dict)
    """the heads' outputs as they leave the gates; of a feed-forward block, its output as one head"""
    streams: dict[Site, Float[Tensor, "batch query d_model"]] = field(default_factory=dict)
    """what flows past each site before it adds to it"""
