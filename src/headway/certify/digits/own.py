"""Headway's one-layer decoders as descriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch

from headway.certify.digits.adder import Adder
from headway.certify.digits.description import FeedWeights, NormWeights, OneLayer
from headway.certify.locality import NotLocal
from headway.models import MODELS, Attention, Model
from headway.models.blocks import Block
from headway.models.transformers import Decoder
from headway.positions import Positions
from headway.positions.index import Sequential
from headway.positions.rope import Rope
from headway.tasks import Task
from headway.tasks.problems import Columns


def describe_run(run_model: Model, task: Task) -> OneLayer:
    """Describes a trained decoder of Headway's; raises where a proof by boxes does not apply to it."""
    local = task.local
    if type(run_model) is not MODELS["decoder"]:
        raise NotLocal("only decoder-only models with one layer can be proved by boxes; train one with --model decoder")
    if not isinstance(local, Columns):
        raise NotLocal("boxes are for sums padded to one more digit and answered least significant digit first")
    model, digits = cast(Decoder, run_model), task.lengths[1]
    if len(model.blocks) != 1:
        raise NotLocal(f"it has {len(model.blocks)} layers; boxes are for one layer")
    if model.segments is not None or not isinstance(model.index, Sequential):
        raise NotLocal("boxes are for the sequential index without segment embeddings")
    if task.lengths[0] != digits:
        raise NotLocal(f"it was trained on {task.lengths[0]} to {digits} digits; boxes are for one length")
    block = model.blocks[0]
    assert isinstance(block, Block)
    attention = block.attentions["self"]
    assert isinstance(attention, Attention)
    layout = task.layout
    assert layout is not None
    assert model.start is not None
    letters = iter("a" * digits + "b" * digits)
    slots = [local.plus if column is None else f"{next(letters)}{column}" for column in layout.source]
    places = len(slots) + 1 + digits
    heads = (attention.heads, attention.dim, -1)
    post = block.post_norm
    if not attention.heads:
        raise NotLocal("it has no heads left")
    key, value = attention.key_value.detach()
    described = OneLayer(
        source=(*slots, model.start),
        digit_tokens=tuple(range(local.base)),
        tokens=model.tokens.weight.detach(),
        query=attention.query.detach().view(heads),
        key=key.view(heads),
        value=value.view(heads),
        out=attention.out.weight.detach(),
        out_bias=attention.out.bias.detach(),
        feed=FeedWeights(
            "relu",
            block.feed.into.weight.detach(),
            block.feed.out.weight.detach(),
            block.feed.into.bias.detach(),
            block.feed.out.bias.detach(),
        ),
        readout=model.unembed.weight.detach(),
        readout_bias=model.unembed.bias.detach(),
        attention_norm=_norm(block.norms["self"]),
        feed_norm=_norm(block.norms["feed"]),
        last_norm=None if post else _norm(model.norm),
        norm="post" if post else "pre",
    )
    return _with_order(described, model, places, attention)


def _norm(norm: torch.nn.Module) -> NormWeights:
    assert isinstance(norm, torch.nn.LayerNorm)
    return NormWeights("layer", norm.weight.detach(), norm.bias.detach(), norm.eps)


def _with_order(described: OneLayer, model: Decoder, places: int, attention: Attention) -> OneLayer:
    """Adds what the encoding does: an addition to the embeddings, a rotation, or a bias."""
    positions, index = model.positions, torch.arange(places)[None]
    kind = type(positions)
    if kind.temper is not Positions.temper or positions.log_length is not None:
        raise NotLocal(f"{kind.name} scales the scores by the length, which a description has no place for")
    if kind.embed is not Positions.embed:
        empty = torch.zeros(1, places, model.config.d_model)
        described = replace(described, places=positions.embed(empty, index)[0].detach())
    if kind.rotate is not Positions.rotate:
        if not isinstance(positions, Rope):
            raise NotLocal(f"{kind.name} changes queries and keys in a way that a description has no place for")
        angle = (index[0, :, None] / positions.interpolation) * positions.frequencies(index.device)
        described = replace(described, cosine=angle.cos().float(), sine=angle.sin().float())
    if (bias := positions.bias(index, index)) is not None:
        bias = bias[0].detach().float()
        bias = bias[attention.head_numbers] if len(bias) > 1 else bias.expand(attention.heads, -1, -1)
        described = replace(described, bias=bias)
    return described


def adder_of_run(model: Model, task: Task, name: str) -> Adder:
    """Returns a trained decoder of Headway's with its description."""
    description = describe_run(model, task)
    before = len(description.source) - 1

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        source, written = tokens[:, :before], tokens[:, before:]
        found = model.decode(source, written)
        return torch.nn.functional.pad(found, (0, 0, before, 0))  # nothing is predicted inside the problem

    return Adder(description, forward, name, sum(parameter.numel() for parameter in model.parameters()))
