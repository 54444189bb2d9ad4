"""How order is told: an encoding overrides one of the four places where order can enter.

What is not overridden adds nothing. Indices are whole numbers, `batch token` (one row where all rows share it), chosen
apart from the encoding (see index.py), so every index combines with every encoding. What an encoding's constructor
takes beside the shape are its settings: `t5+distance=16` on the command line.
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
    """What an encoding may need to know of the model it serves."""

    d_model: int
    heads: int
    trained: int  # how many indices training uses: 0 to this, exclusive
    causal: bool = False  # whether a query sees only keys up to itself
    tokens: int | None = None  # of the longest training sequence; None where that is `trained`

    @property
    def dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.heads


@dataclass(frozen=True)
class Unseen:
    """What a longer sequence uses that no training step has touched: `count` `of` so many `what`."""

    what: str  # such as 'table rows were never trained'
    count: int
    of: int


class Positions(nn.Module):
    """No signal at all; the parent of every encoding."""

    name: ClassVar[str]
    causal: ClassVar[bool] = False  # whether an encoder with this encoding sees only what lies before
    needs_causal: ClassVar[bool] = False  # whether it means something only where a query sees no later key
    blind: ClassVar[bool] = False  # whether an encoder with this encoding cannot see order at all
    reversible: ClassVar[bool] = False  # whether an encoder with it sees a sequence and its reverse as the same
    uses_index: ClassVar[bool] = True
    turns_by_head: ClassVar[bool] = False  # whether `rotate` treats the heads differently

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.log_length: nn.Parameter | None = None

    def with_log_length(self) -> Positions:
        """The same with scores that grow with the log of the number of keys, so that attention does not thin out."""
        tokens = self.shape.tokens or self.shape.trained
        self.log_length = nn.Parameter(1 / torch.tensor(float(max(tokens, 2))).log())
        return self

    @property
    def only_embeds(self) -> bool:
        """Whether attention itself is not told of order."""
        own = all(getattr(type(self), name) is getattr(Positions, name) for name in ("rotate", "bias", "temper"))
        return own and self.log_length is None

    def embed(self, x: Stream, index: Int[Tensor, "#batch token"]) -> Stream:
        """Token embeddings with what is added to them."""
        return x

    def rotate(
        self,
        query: Float[Tensor, "batch head query dim"],
        key: Float[Tensor, "batch head key dim"],
        query_index: Int[Tensor, "#batch query"],
        key_index: Int[Tensor, "#batch key"],
    ) -> tuple[Float[Tensor, "batch head query wide"], Float[Tensor, "batch head key wide"]]:
        """Queries and keys turned by their indices; both may grow wider."""
        return query, key

    def bias(
        self, query_index: Int[Tensor, "#batch query"], key_index: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch head query key"] | None:
        """What is added to the attention scores."""
        return None

    def temper(self, keys: Int[Tensor, " query"]) -> Float[Tensor, " query"] | None:
        """What the scores of each query are multiplied by, given how many keys it sees."""
        return None if self.log_length is None else self.log_length * keys.clamp(min=2).log()

    def unseen(self, tokens: int) -> Unseen | None:
        """What of its signal at this many tokens no training step has touched; None where it is all known."""
        return None

    @property
    def offsets(self) -> range | None:
        """The distances, key's index less query's, of the keys that a query sees; None where it sees all."""
        return None

    def untrained(self, tokens: int) -> range:
        """The indices below `tokens` whose signal no training step has touched."""
        return range(0)

    def check_length(self, tokens: int) -> None:
        """Refuses, in a sentence, more tokens than there are signals for."""


class Relative(Positions):
    """An encoding that knows the distance from query to key and nothing else: a bias for each, head by head."""

    name = "relative"

    def of_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, " head *shape"]:
        """The bias at each signed distance: the key's index less the query's."""
        raise NotImplementedError

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
    """Calls each method of a user's own encoding once on small tensors, before anything is trained, and refuses other
    shapes than attention needs, naming method and shapes."""
    shape, batch, queries, keys = positions.shape, 2, 5, 7

    def call(method: str, *given: Tensor) -> Any:
        try:
            return getattr(positions, method)(*given)
        except HeadwayError:
            raise
        except Exception as error:  # whatever a user's method may raise
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
    turned = call("rotate", query, key, query_index, key_index)
    if not (isinstance(turned, tuple) and len(turned) == 2):
        raise HeadwayError(f"{name}.rotate returned {type(turned).__name__}; expected two tensors, queries and keys")
    wide = turned[0].shape[-1] if isinstance(turned[0], Tensor) and turned[0].ndim else shape.dim
    expect("rotate (queries)", turned[0], (batch, shape.heads, queries, wide))
    expect("rotate (keys)", turned[1], (batch, shape.heads, keys, wide))
    if (bias := call("bias", query_index, key_index)) is not None:
        expect("bias", bias, (1, shape.heads, queries, keys), (1, 1, queries, keys))
    if (tempered := call("temper", torch.full((queries,), keys))) is not None:
        expect("temper", tempered, (queries,))
