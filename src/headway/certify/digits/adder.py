"""The model that a proof is about: its description beside the forward pass that is really used.

Nothing is believed of a description until its own forward pass, in float64, agrees with the model's on random problems,
whole and token by token. Whether a pair is really wrong is decided by decoding with the model, greedily.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from headway.certify.digits.description import OneLayer, add_digits, check_description
from headway.certify.leads import LARGEST
from headway.certify.locality import NotLocal
from headway.errors import HeadwayError

TRIED = 64  # problems
SAME = 1e-3  # relative to the largest logit, or to 1


@dataclass(frozen=True)
class Adder:
    """A model that adds, as a function, and its description."""

    description: OneLayer
    forward: Callable[[Tensor], Tensor]
    """called with tokens, row × place; returns the logits after every place, row × place × id"""
    name: str = "the model"
    parameters: int | None = None
    """the number of trained parameters, if known"""

    @torch.no_grad()
    def write(self, a: Tensor, b: Tensor) -> Tensor:
        """Decodes the answers greedily; operands and answers are digits from the ones, and −1 is no digit."""
        model = self.description
        tokens, written = model.sequences(a, b)[:, : len(model.source)], []
        for _ in range(model.digits + 1):
            token = self.forward(tokens)[:, -1].argmax(-1, keepdim=True)
            written.append(token)
            tokens = torch.cat((tokens, token), dim=1)
        digit_of = torch.full((len(model.tokens),), -1)
        digit_of[torch.tensor(model.digit_tokens)] = torch.arange(model.base)
        return digit_of[torch.cat(written, dim=1)]

    def find_wrong(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns which pairs are answered wrong."""
        return (self.write(a, b) != add_digits(a, b, self.description.base)).any(1)


@torch.no_grad()
def check_adder(adder: Adder) -> float:
    """Rejects a description that does not fit together or differs from the model; returns the largest difference."""
    model = adder.description
    check_description(model)
    _check_tensors(model)
    dice = torch.Generator().manual_seed(0)
    a, b = torch.randint(model.base, (2, TRIED, model.digits), generator=dice)
    tokens = model.sequences(a, b)
    try:
        found = adder.forward(tokens)
    except HeadwayError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise HeadwayError(f"forward failed on tokens of shape {tuple(tokens.shape)}: {error}") from error
    wanted = (*tokens.shape, len(model.tokens))
    if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise HeadwayError(f"forward returned {shape}; expected logits of shape {wanted}: row, place, token")
    first = len(model.source) - 1
    described, given = model.double().logits(tokens), found[:, first:].double()
    limit = SAME * max(1.0, float(described.abs().max()))
    off = float((described - given).abs().max())
    if not off <= limit:
        raise NotLocal(f"its description is not the model: their logits differ by {off:.2g} on random problems")
    for place in (first + 1, len(model.source) + model.digits // 2):
        alone = adder.forward(tokens[:, :place])[:, -1].double()
        if not float((alone - found[:, place - 1].double()).abs().max()) <= limit:
            raise NotLocal("its forward pass depends on tokens further right: it is not causal")
    return off


def hash_description(model: OneLayer) -> str:
    """Returns the hash of everything that a description holds."""
    digest = hashlib.sha256()
    for where, value in _entries(model):
        digest.update(f"{where}\n".encode())
        digest.update(value.contiguous().numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return digest.hexdigest()


def _entries(part: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yields every tensor and setting of a description with its name."""
    for entry in fields(part):  # pyright: ignore[reportArgumentType]
        value = getattr(part, entry.name)
        if is_dataclass(value):
            yield from _entries(value, f"{name}{entry.name}.")
        else:
            yield f"{name}{entry.name}", value


def _check_tensors(model: OneLayer) -> None:
    """Rejects tensors to which the bound on rounding does not apply."""
    for where, value in _entries(model):
        if not isinstance(value, Tensor):
            continue
        if value.dtype != torch.float32:
            raise NotLocal(
                f"{where} is {str(value.dtype).removeprefix('torch.')}; the bound on rounding is for float32"
            )
        size = value.double().abs()
        hidden = (value == -torch.inf) & (where == "bias")  # a key that a query may not see
        if not bool(((size <= LARGEST) | hidden).all()):
            raise NotLocal(f"{where} contains NaN, infinity or a number above 2^30")
        if bool(((size > 0) & (size < 2.0**-126)).any()):
            raise NotLocal(f"{where} contains a number so small, below 2^-126, that some machines take it for 0")
