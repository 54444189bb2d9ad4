"""Is a user's own encoding one? Each of its methods is called once on small tensors before anything is trained."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.positions.positions import Positions

BATCH, QUERIES, KEYS = 2, 5, 7


@torch.no_grad()
def check_shapes(name: str, positions: Positions) -> None:
    """Refuses an encoding whose methods return other shapes than attention needs, naming method and shapes."""
    shape = positions.shape
    query_index, key_index = torch.arange(QUERIES)[None], torch.arange(KEYS)[None]
    x = torch.zeros(BATCH, QUERIES, shape.d_model)
    _expect(name, "embed", _called(name, "embed", positions.embed, x, query_index), [tuple(x.shape)])
    query = torch.zeros(BATCH, shape.heads, QUERIES, shape.dim)
    key = torch.zeros(BATCH, shape.heads, KEYS, shape.dim)
    turned = _called(name, "rotate", positions.rotate, query, key, query_index, key_index)
    if not (isinstance(turned, tuple) and len(turned) == 2):
        raise HeadwayError(f"{name}.rotate returned {type(turned).__name__}; expected two tensors, queries and keys")
    wide = turned[0].shape[-1] if isinstance(turned[0], Tensor) and turned[0].ndim else shape.dim
    _expect(name, "rotate (queries)", turned[0], [(BATCH, shape.heads, QUERIES, wide)])
    _expect(name, "rotate (keys)", turned[1], [(BATCH, shape.heads, KEYS, wide)])
    bias = _called(name, "bias", positions.bias, query_index, key_index)
    if bias is not None:
        _expect(name, "bias", bias, [(1, heads, QUERIES, KEYS) for heads in (shape.heads, 1)])
    tempered = _called(name, "temper", positions.temper, torch.full((QUERIES,), KEYS))
    if tempered is not None:
        _expect(name, "temper", tempered, [(QUERIES,)])


def _called(name: str, method: str, work: Callable[..., Any], *given: Any) -> Any:
    try:
        return work(*given)
    except HeadwayError:
        raise
    except Exception as error:  # whatever a user's method may raise
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
        raise HeadwayError(
            f"{name}.{method} failed on tensors of shape {shapes} ({type(error).__name__}: {error})"
        ) from error


def _expect(name: str, method: str, found: Any, expected: list[tuple[int, ...]]) -> None:
    known = " or ".join(map(str, expected))
    if not isinstance(found, Tensor):
        raise HeadwayError(f"{name}.{method} returned {type(found).__name__}; expected a tensor of shape {known}")
    if tuple(found.shape) not in expected:
        raise HeadwayError(f"{name}.{method} returned the shape {tuple(found.shape)}; expected {known}")
