"""One pass for many sets of closed heads: whatever two sets have in common is computed once.

A set is a whole number with a bit for each head of the model, set where the head is closed; the first head has the
highest bit. Sorted, sets that close the same heads of the early sites stand side by side, so the pass branches from
site to site like a tree: of sixteen sets that differ at the last site alone, fifteen cost only what lies behind it.

Axes: set (so far: those that differ up to here), row (a problem), token, head, dim, d_model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import Attention, Order
from headway.models.blocks import Block
from headway.models.classifier import Classifier
from headway.models.decoder import Decoder
from headway.models.encoder_decoder import EncoderDecoder
from headway.models.sites import Site


class Branches:
    """`replacements` is what takes the place of a closed head, zero where there is none for a site."""

    def __init__(
        self,
        model: EncoderDecoder | Decoder | Classifier,
        precision: torch.dtype = torch.float32,
        replacements: Mapping[Site, Float[Tensor, "1 query head dim"]] | None = None,
    ) -> None:
        self.model = model if precision == torch.float32 else copy.deepcopy(model).to(precision)
        self.replacements = {site: fill.to(precision) for site, fill in (replacements or {}).items()}
        self.heads = sum(each.heads for each in model.modules() if isinstance(each, Attention))

    @torch.inference_mode()
    def logits(
        self, source: Int[Tensor, "row source"], answer: Int[Tensor, "row answer"], sets: Int[Tensor, " set"]
    ) -> Float[Tensor, "set row answer token"]:
        """The logits under each of `sets`, which are in ascending order and all different."""
        model, tree = self.model, _Tree(sets, self.heads)
        if isinstance(model, Classifier):
            order = model.order(source)
            x = self._through(model.blocks, model.positions.embed(model.tokens(source), order.query_index), order, tree)
            return model.answered(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        if isinstance(model, Decoder):
            read = torch.cat((source, torch.full_like(answer[:, :1], model.start), answer[:, :-1]), dim=1)
            order = model.order(source, answer.shape[1])
            x = self._through(model.blocks, model.embedded(read, order, source.shape[1]), order, tree)
            return model.unembed(model.norm(x[:, :, source.shape[1] :]))
        order = model.source_order(source)
        x = model.source_positions.embed(model.tokens(source), order.query_index)
        memory = model.encoder_norm(self._through(model.encoder, x, order, tree))
        own, across = model.orders(source, answer.shape[1])
        x = model.answer_positions.embed(model.tokens(model.shifted(answer)), own.query_index)
        tree.look_across()
        return model.unembed(model.decoder_norm(self._through(model.decoder, x, own, tree, memory, across)))

    def _through(
        self,
        blocks: nn.ModuleList | Iterable[nn.Module],
        x: Float[Tensor, "row token d_model"],
        order: Order,
        tree: _Tree,
        memory: Float[Tensor, "encoded row source d_model"] | None = None,
        across: Order | None = None,
    ) -> Float[Tensor, "set row token d_model"]:
        x = x.expand(len(tree.begun), *x.shape)
        for block in blocks:
            assert isinstance(block, Block)
            for kind, attention in block.attentions.items():
                assert isinstance(attention, Attention)
                if not attention.heads:
                    x = x + attention.out.bias
                    continue
                read = block.norms[kind](x)
                context, told = (read, order) if memory is None or kind == "self" else (memory[tree.seen], across)
                assert told is not None
                z, _ = attention.said(read.flatten(0, 1), context.flatten(0, 1), told.repeated(len(x)))
                parent, passed = tree.branch(attention.heads)
                passed = passed[:, None, None, :, None].to(z.dtype)  # set 1 1 head 1
                z = z.unflatten(0, x.shape[:2])[parent] * passed  # set row token head dim
                if attention.site in self.replacements:
                    z = z + (1 - passed) * self.replacements[attention.site]
                x = x[parent] + attention.out(z.flatten(-2))
            x = x + block.feed(block.norms["feed"](x).flatten(0, 1)).view_as(x)
        return x


class _Tree:
    """Which sets differ so far, and from which branch each has grown."""

    def __init__(self, sets: Int[Tensor, " set"], heads: int) -> None:
        self.sets, self.ahead = sets, heads
        self.begun = sets.new_zeros(1)
        """the highest bits of the sets: those of the sites passed"""
        self.seen = sets.new_zeros(1)
        """for each of them the branch of the encoder that it looks across to"""

    def look_across(self) -> None:
        self.seen = torch.arange(len(self.begun), device=self.begun.device)

    def branch(self, heads: int) -> tuple[Int[Tensor, " set"], Int[Tensor, "set head"]]:
        """Grows by one site: the branch each new one comes from, and which heads it lets pass."""
        self.ahead -= heads
        begun = torch.unique_consecutive(self.sets >> self.ahead)
        parent = torch.searchsorted(self.begun, begun >> heads)
        places = torch.arange(heads - 1, -1, -1, device=begun.device)
        self.begun, self.seen = begun, self.seen[parent]
        return parent, 1 - (begun[:, None] >> places & 1)
