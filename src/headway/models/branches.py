"""One pass for many sets of closed heads, which computes the prefix that two sets share only once.

A set is an integer with a bit for each head of the model, 1 where the head is closed; the first head has the highest
bit. In sorted order, sets that close the same heads of the early sites are adjacent, so the pass branches from site to
site like a tree: of sixteen sets that differ only at the last site, fifteen cost only what follows that site.

Axes: set (those that differ so far), row (a problem), token, head, dim, d_model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.models.attention import Attention
from headway.models.blocks import Block
from headway.models.model import Model, StackPass
from headway.models.sites import Narrowing, Site


class Branches:
    """Computes logits under many sets of closed heads; `replacements` (1 query head dim) default to zero. Given
    `window`, the first and the recent tokens that a head sees, closed heads of self-attention are narrowed to it."""

    def __init__(
        self,
        model: Model,
        precision: torch.dtype = torch.float32,
        replacements: Mapping[Site, Tensor] | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        self.model = model if precision == torch.float32 else copy.deepcopy(model).to(precision)
        self.replacements = {site: fill.to(precision) for site, fill in (replacements or {}).items()}
        self.window = window
        self.heads = sum(each.heads for each in model.modules() if isinstance(each, Attention))

    @torch.inference_mode()
    def logits(
        self, source: Int[Tensor, "row source"], answer: Int[Tensor, "row answer"], sets: Int[Tensor, " set"]
    ) -> Float[Tensor, "set row answer token"]:
        """Returns the logits under each of `sets`, which must be distinct and in ascending order."""
        tree, written, read = _Tree(sets, self.heads), self.model.shift_right(answer), None
        for name in self.model.stacks:
            stack = self.model.stack(name, source, written)
            read = stack.finish(self._run_stack(stack, tree, read))
            tree.encoder_branch = torch.arange(len(tree.prefixes), device=sets.device)
        assert read is not None
        return read

    def _run_stack(
        self, stack: StackPass, tree: _Tree, memory: Float[Tensor, "encoded row source d_model"] | None
    ) -> Float[Tensor, "set row token d_model"]:
        x = stack.embed()
        x = x.expand(len(tree.prefixes), *x.shape)
        for block in stack.blocks:
            assert isinstance(block, Block)
            for kind, attention in block.attentions.items():
                assert isinstance(attention, Attention)
                if not attention.heads:
                    x = block.add(x, attention.out.bias, kind)
                    continue
                read = block.read(x, kind)
                context, order = read, stack.order
                if memory is not None and kind == "cross":
                    context, order = memory[tree.encoder_branch], stack.cross_order
                assert order is not None
                both, orders = (read.flatten(0, 1), context.flatten(0, 1)), order.repeat(len(x))
                z, _ = attention.head_outputs(*both, orders)
                parent, passed = tree.branch(attention.heads)
                passed = passed[:, None, None, :, None].to(z.dtype)  # set 1 1 head 1
                z = z.unflatten(0, x.shape[:2])[parent] * passed  # set row token head dim
                if attention.site in self.replacements:
                    z = z + (1 - passed) * self.replacements[attention.site]
                if self.window is not None and kind == "self":
                    sink, recent = self.window
                    narrowing = Narrowing(sink, torch.full((1, attention.heads), recent, device=z.device))
                    narrowed = attention.narrowed_outputs(*both, orders, None, narrowing)
                    z = z + (1 - passed) * narrowed.unflatten(0, x.shape[:2])[parent]
                x = block.add(x[parent], attention.out(z.flatten(-2)), kind)
            x = block.add(x, block.feed(block.read(x, "feed").flatten(0, 1)).view_as(x), "feed")
        return x


class _Tree:
    """The sets that differ so far, with the branch that each comes from."""

    def __init__(self, sets: Int[Tensor, " set"], heads: int) -> None:
        self.sets, self.bits_left = sets, heads
        self.prefixes = sets.new_zeros(1)  # the leading bits of the sets: those of the sites so far
        self.encoder_branch = sets.new_zeros(1)  # the encoder branch that each prefix attends to

    def branch(self, heads: int) -> tuple[Int[Tensor, " set"], Int[Tensor, "set head"]]:
        """Advances by one site; returns the parent of each new branch and its gates."""
        self.bits_left -= heads
        prefixes = torch.unique_consecutive(self.sets >> self.bits_left)
        parent = torch.searchsorted(self.prefixes, prefixes >> heads)
        places = torch.arange(heads - 1, -1, -1, device=prefixes.device)
        self.prefixes, self.encoder_branch = prefixes, self.encoder_branch[parent]
        return parent, 1 - (prefixes[:, None] >> places & 1)
