"""Sites and heads: a site is one attention module, a head is a site and a number.

A feed-forward block can be ablated as a whole and is then a site with a single head as wide as the residual stream.
In a user's model a site may also be named by the path of its module: `Site("layers.0.attention", heads=4)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, total_ordering
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from headway.errors import HeadwayError


@total_ordering
@dataclass(frozen=True, eq=False)
class Site:
    """One attention module. Sites with the same name are equal, whatever their other fields."""

    stack: str  # encoder or decoder; without a layer, the path of the attention module
    layer: int | None = None
    kind: Literal["self", "cross", "feed"] = "self"  # not part of the name of a site without a layer
    output: str | None = field(default=None, repr=False)  # path of its output projection in it; None or "" if it is one
    heads: int | None = field(default=None, repr=False)  # number of heads, if the module has no attribute for it

    def __str__(self) -> str:
        return self.stack if self.layer is None else f"{self.stack}.{self.layer}.{self.kind}"

    def __eq__(self, other: object) -> bool:
        return self._name == other._name if isinstance(other, Site) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._name)

    def __lt__(self, other: Site) -> bool:
        return self._sort_key < other._sort_key if isinstance(other, Site) else NotImplemented

    @cached_property
    def _name(self) -> tuple[str, int, str]:
        return (self.stack, -1, "") if self.layer is None else (self.stack, self.layer, self.kind)

    @property
    def _sort_key(self) -> tuple[list[str | int], int, str]:
        """The name, with the numbers in a path as integers."""
        path = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", self.stack)]
        return path, *self._name[1:]

    @property
    def title(self) -> str:
        """The display name: 'Decoder cross L1'."""
        if self.layer is None:
            return self.stack
        return f"{self.stack.capitalize()} {'feed-forward' if self.kind == 'feed' else self.kind} L{self.layer}"

    @property
    def depth(self) -> int | None:
        """The layer; for a site named by its path, the only number in it."""
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
        """The display name: 'Decoder cross L1 H2'."""
        return f"{self.site.title} H{self.number}"

    @property
    def label(self) -> str:
        """The short name: 'L9H6'. With several stacks it can be ambiguous, and `find_heads` then raises."""
        return str(self) if self.site.depth is None else f"L{self.site.depth}H{self.number}"

    @classmethod
    def parse(cls, name: str | tuple[int, int], heads: Sequence[Head] | None = None) -> Head:
        """Returns the head of that name; given a model's heads, it also accepts the short names of `find_heads`."""
        if heads is not None:
            return find_heads([name], heads)[0]
        found = re.fullmatch(r"(encoder|decoder)\.(\d+)\.(self|cross)\.(\d+)", str(name))
        if found is None:
            raise HeadwayError(f"{name!r} is not the name of a head; heads are written like 'decoder.1.cross.2'")
        stack, layer, kind, number = found.groups()
        return cls(Site(stack, int(layer), "self" if kind == "self" else "cross"), int(number))


@dataclass(frozen=True, order=True)
class NarrowedHead:
    """A head that sees only this many recent tokens, besides its sinks."""

    head: Head
    recent: int

    def __str__(self) -> str:
        return f"{self.head}@{self.recent}"

    @property
    def site(self) -> Site:
        return self.head.site


Part = Head | Site | NarrowedHead  # A part of a model that can be closed: a head, a whole site, what a head sees.
Closed = frozenset[Part]
HeadName = Head | str | tuple[int, int]  # A Head, 'decoder.1.cross.2', 'L1H2' or (1, 2).
HeadNames = HeadName | Iterable[HeadName] | Mapping[int, Iterable[int]]  # One or several, or {layer: [heads]}.


def site_of(part: Part) -> Site:
    return part if isinstance(part, Site) else part.site


def find_heads(names: HeadNames, heads: Sequence[Head]) -> list[Head]:
    """Returns the heads of a model with these names, in any of their forms or as {layer: [heads]}."""
    if isinstance(names, Mapping):
        return [_find_head((layer, number), heads) for layer, numbers in names.items() for number in numbers]
    if isinstance(names, Head | str) or (isinstance(names, tuple) and set(map(type, names)) == {int}):
        return [_find_head(names, heads)]
    return [_find_head(name, heads) for name in names]


def _find_head(name: object, heads: Sequence[Head]) -> Head:
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
        raise HeadwayError(f"{label} is ambiguous: {len(found)} heads have that name; write one of {names}")
    few = ", ".join(str(head) for head in heads[:3]) + (", …" if len(heads) > 3 else "")
    raise HeadwayError(f"{label!r} is not a head of this model; its heads are {few or 'none'}")


@dataclass(frozen=True)
class Narrowing:
    """What heads see of their sequence where they are narrowed: the first `sink` real tokens and the most recent
    ones, themselves included. In a stack that is not causal, recent tokens are those near on either side."""

    sink: int
    recent: Int[Tensor, "#batch head"]


@dataclass(frozen=True)
class Gate:
    """The gate of one site: each head's output z becomes g·z + (1 − g)·r, row by row, at all positions or at some."""

    passed: Float[Tensor, "#batch head"] | Float[Tensor, "#batch query head"]
    replacement: Float[Tensor, "#batch #query head dim"] | None = None  # r; zero if None
    narrowing: Narrowing | None = None  # r is what the heads output in this very pass, seeing only so much


Gates = Mapping[Site, Gate]


@dataclass
class Trace:
    """The record of a forward pass: for each site the attention maps, the outputs of its heads after and before their
    gates (a feed-forward block has one head), and the residual stream before it."""

    maps: dict[Site, Float[Tensor, "batch head query key"]] = field(default_factory=dict)
    outputs: dict[Site, Float[Tensor, "batch query head dim"]] = field(default_factory=dict)
    ungated: dict[Site, Float[Tensor, "batch query head dim"]] = field(default_factory=dict)
    streams: dict[Site, Float[Tensor, "batch query d_model"]] = field(default_factory=dict)
