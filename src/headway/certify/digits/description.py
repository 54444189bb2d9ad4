"""A one-layer decoder as plain tensors: all that a proof needs to know about a model.

Headway's own decoders are described by own.py; a user describes another one by filling in `OneLayer`. The proof is
about the description, so before anything is believed its forward pass is compared with the model's (adder.py).

Axes: head, dim (of a head), d (of the residual stream), place (in the sequence), unit (of the feed-forward block).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from headway.errors import HeadwayError

Part = TypeVar("Part")
Activation = Literal["relu", "gelu", "silu"]
NormKind = Literal["layer", "rms"]
ACTIVATIONS = {"relu": torch.relu, "gelu": gelu, "silu": silu}


@dataclass(frozen=True)
class NormWeights:
    """A layer norm or an RMS norm."""

    kind: NormKind
    weight: Tensor
    """d"""
    bias: Tensor | None = None
    """d; None for an RMS norm"""
    epsilon: float = 1e-5
    """added to the variance, or to the mean square"""

    def __call__(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True) if self.kind == "layer" else x
        scaled = centred / (centred.square().mean(-1, keepdim=True) + self.epsilon).sqrt() * self.weight
        return scaled if self.bias is None else scaled + self.bias


@dataclass(frozen=True)
class FeedWeights:
    """A feed-forward block: out(activation(into(x))), or with a gate out(activation(gate(x)) · into(x))."""

    activation: Activation
    into: Tensor
    """unit × d"""
    out: Tensor
    """d × unit"""
    into_bias: Tensor | None = None
    out_bias: Tensor | None = None
    gate: Tensor | None = None
    """unit × d"""
    gate_bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        hidden, act = _affine(x, self.into, self.into_bias), ACTIVATIONS[self.activation]
        hidden = act(hidden) if self.gate is None else act(_affine(x, self.gate, self.gate_bias)) * hidden
        return _affine(hidden, self.out, self.out_bias)


@dataclass(frozen=True)
class OneLayer:
    """A causal decoder with one layer that adds two zero-padded numbers, least significant digit first."""

    source: tuple[str | int, ...]
    """the tokens before the answer, the start token last: "a0" and "b0" are the ones of the operands, "a1" the tens, …;
    a number is the token with that id"""
    digit_tokens: tuple[int, ...]
    """the ids of the digits 0, 1, …"""
    tokens: Tensor
    """id × d: the token embeddings"""
    query: Tensor
    """head × dim × d"""
    key: Tensor
    value: Tensor
    out: Tensor
    """d × (head · dim): the output projection of attention"""
    feed: FeedWeights | None
    readout: Tensor
    """id × d"""
    out_bias: Tensor | None = None
    query_bias: Tensor | None = None
    """head × dim"""
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    readout_bias: Tensor | None = None
    places: Tensor | None = None
    """place × d: position embeddings, added to the token embeddings"""
    cosine: Tensor | None = None
    """place × dim/2: rotary cosines, as the model uses them"""
    sine: Tensor | None = None
    pairs: Literal["adjacent", "halves"] = "adjacent"
    """whether rotation turns numbers 0 and 1, 2 and 3, … of a head, or its first half with its second half"""
    bias: Tensor | None = None
    """head × query place × key place: added to the scores"""
    scale: float | None = None
    """the factor of the scores; dim^-0.5 if None"""
    attention_norm: NormWeights | None = None
    feed_norm: NormWeights | None = None
    last_norm: NormWeights | None = None
    norm: Literal["pre", "post"] = "pre"
    """pre: the norms before attention, before the feed-forward block and before the readout; post: `attention_norm` is
    applied to the stream after attention, `feed_norm` after the feed-forward block"""

    @property
    def digits(self) -> int:
        """The digits of each operand."""
        return sum(isinstance(slot, str) and slot.startswith("a") for slot in self.source)

    @property
    def base(self) -> int:
        return len(self.digit_tokens)

    @property
    def length(self) -> int:
        """The tokens of a problem with its answer, apart from the last, which is never read."""
        return len(self.source) + self.digits

    def double(self) -> OneLayer:
        """Returns the description in float64."""
        return _doubled(self)

    def place_of(self, letter: str, column: int) -> int:
        """Returns the place of an operand digit (a or b) or of an answer digit (c)."""
        return len(self.source) + column if letter == "c" else self.source.index(f"{letter}{column}")

    def sequences(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the tokens of problems with their right answers, given operand digits, row × column from the ones."""
        ids = torch.tensor(self.digit_tokens)
        answer = add_digits(a, b, self.base)
        columns = [
            torch.full_like(a[:, 0], slot)
            if isinstance(slot, int)
            else ids[(a if slot[0] == "a" else b)[:, int(slot[1:])]]
            for slot in self.source
        ]
        return torch.cat((torch.stack(columns, 1), ids[answer[:, :-1]]), dim=1)

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.tokens[tokens]
        return x if self.places is None else x + self.places[: tokens.shape[-1]]

    def rotate(self, x: Tensor, place: Tensor) -> Tensor:
        """Rotates queries or keys, … × head × dim, at these places, …"""
        if self.cosine is None or self.sine is None:
            return x
        cosine, sine = self.cosine[place].unsqueeze(-2), self.sine[place].unsqueeze(-2)
        first, second = (x[..., 0::2], x[..., 1::2]) if self.pairs == "adjacent" else x.chunk(2, -1)
        turned = first * cosine - second * sine, second * cosine + first * sine
        return torch.stack(turned, -1).flatten(-2) if self.pairs == "adjacent" else torch.cat(turned, -1)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of streams, … × head × dim, before rotation."""
        if self.norm == "pre" and self.attention_norm is not None:
            x = self.attention_norm(x)

        def project(weight: Tensor, bias: Tensor | None) -> Tensor:
            y = torch.einsum("...d,hed->...he", x, weight)
            return y if bias is None else y + bias

        parts = (self.query, self.query_bias), (self.key, self.key_bias), (self.value, self.value_bias)
        query, key, value = (project(*part) for part in parts)
        return query, key, value

    def logits(self, tokens: Tensor) -> Tensor:
        """Returns the logits of every answer digit, row × answer digit × id, given `sequences`."""
        x, place = self.embed(tokens), torch.arange(tokens.shape[1])
        query, key, value = self.read(x)
        query, key = self.rotate(query, place), self.rotate(key, place)
        scale = self.query.shape[1] ** -0.5 if self.scale is None else self.scale
        scores = scale * torch.einsum("bqhe,bkhe->bhqk", query, key)
        if self.bias is not None:
            scores = scores + self.bias[:, : len(place), : len(place)]
        scores = scores.masked_fill(place[None] > place[:, None], -torch.inf)
        z = torch.einsum("bhqk,bkhe->bqhe", scores.softmax(-1), value)[:, len(self.source) - 1 :]
        return self.finish(x[:, len(self.source) - 1 :] + _affine(z.flatten(-2), self.out, self.out_bias))

    def finish(self, stream: Tensor) -> Tensor:
        """Returns the logits of streams after attention."""
        if self.norm == "post":
            assert self.attention_norm is not None
            assert self.feed_norm is not None
            stream = self.attention_norm(stream)
            stream = self.feed_norm(stream if self.feed is None else stream + self.feed(stream))
            return _affine(stream, self.readout, self.readout_bias)
        if self.feed is not None:
            stream = stream + self.feed(stream if self.feed_norm is None else self.feed_norm(stream))
        return _affine(stream if self.last_norm is None else self.last_norm(stream), self.readout, self.readout_bias)


def add_digits(a: Tensor, b: Tensor, base: int) -> Tensor:
    """Adds numbers given by their digits, row × column from the ones; the sums have one digit more."""
    carry, columns = torch.zeros_like(a[:, 0]), []
    for column in range(a.shape[1]):
        total = a[:, column] + b[:, column] + carry
        columns.append(total % base)
        carry = total // base
    return torch.stack([*columns, carry], dim=1)


def check_description(model: OneLayer) -> None:
    """Rejects a description whose parts do not fit together; the error names the part."""
    named = [slot for slot in model.source if isinstance(slot, str)]
    if wrong := [slot for slot in named if not re.fullmatch(r"[ab](0|[1-9]\d*)", slot)]:
        raise HeadwayError(f"source has {wrong[0]!r}; digits are named like 'a0' and 'b0', other tokens by their ids")
    count = len(named) // 2
    if sorted(named) != sorted([f"{letter}{column}" for letter in "ab" for column in range(count)]) or not count:
        raise HeadwayError("source must hold each digit of both operands once, a0, a1, … and b0, b1, …")
    if not model.source or isinstance(model.source[-1], str):
        raise HeadwayError("the last token of source is the one after which the answer begins; name its id")
    ids, d = len(model.tokens), model.tokens.shape[1]
    ids_named = [*(slot for slot in model.source if isinstance(slot, int)), *model.digit_tokens]
    if outside := [name for name in ids_named if not 0 <= name < ids]:
        raise HeadwayError(f"{outside[0]} is not the id of a token; tokens has {ids} rows")
    if model.base < 2 or len({*model.digit_tokens}) != model.base:
        raise HeadwayError("digit_tokens must name the tokens of at least two different digits")
    heads, dim = model.query.shape[:2]
    _expect("query, key and value", {x.shape for x in (model.query, model.key, model.value)}, (heads, dim, d))
    _expect("out", {model.out.shape}, (d, heads * dim))
    _expect("readout", {model.readout.shape}, (ids, d))
    for name, part in (("cosine", model.cosine), ("sine", model.sine)):
        if (model.cosine is None) != (model.sine is None) or (part is not None and dim % 2):
            raise HeadwayError("rotation needs cosine and sine, and heads of even width")
        _expect(name, {None if part is None else part.shape}, None if part is None else (model.length, dim // 2))
    if model.places is not None:
        _expect("places", {model.places.shape}, (model.length, d))
    if model.bias is not None:
        _expect("bias", {model.bias.shape}, (heads, model.length, model.length))
    if model.norm == "post" and (model.attention_norm is None or model.feed_norm is None or model.last_norm):
        raise HeadwayError("a post-norm model has attention_norm and feed_norm, and no last_norm")
    if model.feed is not None and model.feed.activation not in get_args(Activation):
        raise HeadwayError(f"activation is {model.feed.activation!r}; it must be relu, gelu (by erf) or silu")


def _expect(name: str, shapes: set[torch.Size | None], wanted: tuple[int, ...] | None) -> None:
    for shape in shapes:
        if shape != wanted:
            raise HeadwayError(f"{name}: the shape is {tuple(shape or ())}; expected {wanted}")


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.T if bias is None else x @ weight.T + bias


def _doubled(part: Part) -> Part:
    """Returns a copy whose tensors are in float64."""

    def convert(value: object) -> object:
        if isinstance(value, Tensor):
            return value.detach().cpu().double()
        return _doubled(value) if is_dataclass(value) and not isinstance(value, type) else value

    return type(part)(**{entry.name: convert(getattr(part, entry.name)) for entry in fields(part)})  # pyright: ignore
