"""Positions: the parent of position encodings, each of which overrides one of the four methods where order can enter.

A method that is not overridden has no effect. Indices are integers, `batch token` (one row if all rows share it), and
independent of the encoding (see index.py), so every index combines with every encoding. The other parameters of an
encoding's constructor, beside the shape, are its settings: `t5+distance=16`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.errors import HeadwayError

Stream = Float[Tensor, "batch token d_model"]
TABLED = 64 * 64  # for more pairs of query and key than this, each distance is computed once and looked up


@dataclass(frozen=True)
class Shape:
    """The properties of a model that an encoding may depend on."""

    d_model: int
    heads: int
    trained: int  # training uses the indices from 0 to this, exclusive
    causal: bool = False  # whether a query sees only keys up to itself
    tokens: int | None = None  # length of the longest training sequence; None if that is `trained`

    @property
    def dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.heads


@dataclass(frozen=True)
class Unseen:
    """The part of the position signals of a longer sequence that training never updated: `count` out of `of`."""

    what: str  # such as 'table rows were never trained'
    count: int
    of: int


class Positions(nn.Module):
    """The parent of every encoding; by itself it adds no position signal."""

    name: ClassVar[str]
    causal: ClassVar[bool] = False  # whether an encoder with this encoding has a causal mask
    needs_causal: ClassVar[bool] = False  # whether the encoding works only in a causal model
    blind: ClassVar[bool] = False  # whether an encoder with this encoding cannot see order at all
    reversible: ClassVar[bool] = False  # whether an encoder with it cannot tell a sequence from its reverse
    uses_index: ClassVar[bool] = True
    turns_by_head: ClassVar[bool] = False  # whether `rotate` treats the heads differently

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.log_length: nn.Parameter | None = None

    def with_log_length(self) -> Positions:
        """Scales the scores by the log of the number of keys from now on, so that attention does not dilute."""
        tokens = self.shape.tokens or self.shape.trained
        self.log_length = nn.Parameter(1 / torch.tensor(float(max(tokens, 2))).log())
        return self

    @property
    def only_embeds(self) -> bool:
        """Whether order enters only through the embeddings, not in attention."""
        inherited = all(getattr(type(self), name) is getattr(Positions, name) for name in ("rotate", "bias", "temper"))
        return inherited and self.log_length is None

    def embed(self, x: Stream, index: Int[Tensor, "#batch token"]) -> Stream:
        """Returns the token embeddings with position signals added."""
        return x

    def rotate(
        self,
        query: Float[Tensor, "batch head query dim"],
        key: Float[Tensor, "batch head key dim"],
        query_index: Int[Tensor, "#batch query"],
        key_index: Int[Tensor, "#batch key"],
    ) -> tuple[Float[Tensor, "batch head query wide"], Float[Tensor, "batch head key wide"]]:
        """Returns queries and keys transformed by their indices; both may become wider."""
        return query, key

    def bias(
        self, query_index: Int[Tensor, "#batch query"], key_index: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch head query key"] | None:
        """Returns the bias that is added to the attention scores, or None."""
        return None

    def temper(self, keys: Int[Tensor, " query"]) -> Float[Tensor, " query"] | None:
        """Returns the factor on the scores of each query, given how many keys it sees, or None."""
        return None if self.log_length is None else self.log_length * keys.clamp(min=2).log()

    def unseen(self, tokens: int) -> Unseen | None:
        """Describes the part of the signal at this length that training never updated; None if there is none."""
        return None

    @property
    def offsets(self) -> range | None:
        """The distances, key index minus query index, of the keys that a query sees; None if it sees all."""
        return None

    def untrained(self, tokens: int) -> range:
        """Returns the indices below `tokens` whose signal training never updated."""
        return range(0)

    def check_length(self, tokens: int) -> None:
        """Raises where there are more tokens than position signals."""

    def fall(self) -> Float[Tensor, "two head"] | str:
        """Returns by how much each head's bias falls at least with every step beyond a neighbour, behind and ahead, or
        why that is not known; 0 where it may not fall."""
        return f"{type(self).__name__} is not a bias that depends on the distance alone"


class Relative(Positions):
    """An encoding that depends only on the distance from query to key, with a bias for each distance and head."""

    name = "relative"

    def of_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, " head *shape"]:
        """Returns the bias at each signed distance: key index minus query index."""
        raise NotImplementedError

    def fall(self) -> Float[Tensor, "two head"] | str:
        return f"the bias of {type(self).__name__} does not fall with every step, so keys far away keep their weight"

    def bias(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        distance = key_index[:, None, :] - query_index[:, :, None]  # batch query key
        if distance[0].numel() <= TABLED or torch.is_grad_enabled():
            return self.of_distance(distance).movedim(0, 1)
        low, high = int(distance.min()), int(distance.max())
        table = self.of_distance(torch.arange(low, high + 1, device=distance.device))  # head distance
        return table[:, distance - low].movedim(0, 1)


def check_positive(name: str, **settings: int | float) -> None:
    for setting, value in settings.items():
        if value <= 0:
            raise HeadwayError(f"{name}+{setting}={value}: it must be above 0")


@torch.no_grad()
def check_shapes(name: str, positions: Positions) -> None:
    """Calls each method of a user's encoding once on small tensors, before training; the error about a wrong shape
    names the method and the shapes."""
    shape, batch, queries, keys = positions.shape, 2, 5, 7

    def call(method: str, *given: Tensor) -> Any:
        try:
            return getattr(positions, method)(*given)
        except HeadwayError:
            raise
        except Exception as error:  # a user's method may raise anything
            shapes, cause = ", ".join(str(tuple(tensor.shape)) for tensor in given), f"{type(error).__name__}: {error}"
            raise HeadwayError(f"{name}.{method} failed on tensors of shape {shapes} ({cause})") from error

    def expect(method: str, found: Any, *expected: tuple[int, ...]) -> None:
        known = " or ".join(map(str, expected))
        if not isinstance(found, Tensor):
            raise HeadwayError(f"{name}.{method} returned {type(found).__name__}; expected a tensor of shape {known}")
        if tuple(found.shape) not in expected:
            raise HeadwayError(f"{name}.{method} returned the shape {tuple(found.shape)}; expected {known}")

    query_index, key_index = torch.arange(queries)[None], torch.arange(keys)[None]
    x = torch.zeros(batch, queries, shape.d_model)
    expect("embed", call("embed", x, query_index), tuple(x.shape))
    query, key = (torch.zeros(batch, shape.heads, tokens, shape.dim) for tokens in (queries, keys))
    rotated = call("rotate", query, key, query_index, key_index)
    if not (isinstance(rotated, tuple) and len(rotated) == 2):
        raise HeadwayError(f"{name}.rotate returned {type(rotated).__name__}; expected two tensors, queries and keys")
    wide = rotated[0].shape[-1] if isinstance(rotated[0], Tensor) and rotated[0].ndim else shape.dim
    expect("rotate (queries)", rotated[0], (batch, shape.heads, queries, wide))
    expect("rotate (keys)", rotated[1], (batch, shape.heads, keys, wide))
    if (bias := call("bias", query_index, key_index)) is not None:
        expect("bias", bias, (1, shape.heads, queries, keys), (1, 1, queries, keys))
    if (tempered := call("temper", torch.full((queries,), keys))) is not None:
        expect("temper", tempered, (queries,))
