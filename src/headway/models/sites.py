"""Where heads sit: a site is one attention module, a head is a site and a number.

A feed-forward block is a site too where it is to be ablated as a whole: one with a single head as wide as the stream.
In a model of a user's own a site may also be named by the path of its module: `Site("layers.0.attention", heads=4)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from headway.errors import HeadwayError


@total_ordering
@dataclass(frozen=True, eq=False)
class Site:
    """One attention module. Sites of one name are one site, whatever else is said of them."""

    stack: str  # encoder or decoder; of a site without a layer, the path of the attention module
    layer: int | None = None
    kind: Literal["self", "cross", "feed"] = "self"  # of a site without a layer, no part of its name
    output: str | None = field(default=None, repr=False)  # from it to the output projection; None or "" where it is one
    heads: int | None = field(default=None, repr=False)  # how many heads there are, where the module does not say

    def __str__(self) -> str:
        return self.stack if self.layer is None else f"{self.stack}.{self.layer}.{self.kind}"

    def __eq__(self, other: object) -> bool:
        return self._name == other._name if isinstance(other, Site) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._name)

    def __lt__(self, other: Site) -> bool:
        return self._place < other._place if isinstance(other, Site) else NotImplemented

    @property
    def _name(self) -> tuple[str, int, str]:
        return (self.stack, -1, "") if self.layer is None else (self.stack, self.layer, self.kind)

    @property
    def _place(self) -> tuple[list[str | int], int, str]:
        """What sites are sorted by: the name, with the numbers in a path as numbers."""
        path = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", self.stack)]
        return path, *self._name[1:]

    @property
    def title(self) -> str:
        """The name people read: 'Decoder cross L1'."""
        if self.layer is None:
            return self.stack
        return f"{self.stack.capitalize()} {'feed-forward' if self.kind == 'feed' else self.kind} L{self.layer}"

    @property
    def depth(self) -> int | None:
        """The layer; of a site named by its path, the one number in it."""
        numbers = [int(part) for part in self.stack.split(".") if part.isdecimal()]
        return self.layer if self.layer is not None else numbers[0] if len(numbers) == 1 else None


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

    @property
    def label(self) -> str:
        """The short name: 'L9H6'. With several stacks it can mean several heads, and `heads_named` then says so."""
        return str(self) if self.site.depth is None else f"L{self.site.depth}H{self.number}"

    @classmethod
    def parse(cls, name: str | tuple[int, int], heads: Sequence[Head] | None = None) -> Head:
        """The head of that name; given a model's heads, also by the short names that `heads_named` knows."""
        if heads is not None:
            return heads_named([name], heads)[0]
        found = re.fullmatch(r"(encoder|decoder)\.(\d+)\.(self|cross)\.(\d+)", str(name))
        if found is None:
            raise HeadwayError(f"{name!r} names no head; heads are written like 'decoder.1.cross.2'")
        stack, layer, kind, number = found.groups()
        return cls(Site(stack, int(layer), "self" if kind == "self" else "cross"), int(number))


Part = Head | Site  # What can be closed: a head, or a site as a whole.
Closed = frozenset[Part]
Asked = Head | str | tuple[int, int]  # A head as people write it: itself, 'decoder.1.cross.2', 'L1H2' or (1, 2).
Named = Asked | Iterable[Asked] | Mapping[int, Iterable[int]]  # One head or several, or as {layer: [heads]}.


def site_of(part: Part) -> Site:
    return part.site if isinstance(part, Head) else part


def heads_named(asked: Named, heads: Sequence[Head]) -> list[Head]:
    """Those of a model's heads that are asked for, by any of their names, or as {layer: [heads]}."""
    if isinstance(asked, Mapping):
        return [_named((layer, number), heads) for layer, numbers in asked.items() for number in numbers]
    if isinstance(asked, Head | str) or (isinstance(asked, tuple) and set(map(type, asked)) == {int}):
        return [_named(asked, heads)]
    return [_named(name, heads) for name in asked]


def _named(name: object, heads: Sequence[Head]) -> Head:
    match name:
        case Head() if name in heads:
            return name
        case (int(layer), int(number)):
            label = f"L{layer}H{number}"
        case _:
            label = str(name)
    found = [head for head in heads if label in (str(head), head.label, head.title)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(head) for head in found)
        raise HeadwayError(f"{label} is the name of {len(found)} heads; write the one you mean: {names}")
    few = ", ".join(str(head) for head in heads[:3]) + (", …" if len(heads) > 3 else "")
    raise HeadwayError(f"{label!r} names no head of this model; its heads are {few or 'none'}")


@dataclass(frozen=True)
class Gate:
    """What becomes of the heads of one site: z becomes g·z + (1 − g)·r, row by row, at all positions or at some."""

    passed: Float[Tensor, "#batch head"] | Float[Tensor, "#batch query head"]
    replacement: Float[Tensor, "#batch #query head dim"] | None = None  # r; zero where None


Gates = Mapping[Site, Gate]


@dataclass
class Trace:
    """Filled by a forward pass that is given one: what each site saw, what its heads put out as they leave the gates
    (a feed-forward block as one head), and what flowed past it before it added to it."""

    maps: dict[Site, Float[Tensor, "batch head query key"]] = field(default_factory=dict)
    outputs: dict[Site, Float[Tensor, "batch query head dim"]] = field(default_factory=dict)
    streams: dict[Site, Float[Tensor, "batch query d_model"]] = field(default_factory=dict)
