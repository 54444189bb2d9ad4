"""One pass for many sets of closed heads: whatever two sets have in common is computed once.

A set is a whole number with a bit for each head of the model, set where the head is closed; the first head has the
highest bit. Sorted, sets that close the same heads of the early sites stand side by side, so the pass branches from
site to site like a tree: of sixteen sets that differ at the last site alone, fifteen cost only what lies behind it.

Axes: set (so far: those that differ up to here), row (a problem), token, head, dim, d_model.
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
from headway.models.sites import Site


class Branches:
    """`replacements` (1 query head dim) take the place of closed heads, zero where there is none for a site."""

    def __init__(
        self, model: Model, precision: torch.dtype = torch.float32, replacements: Mapping[Site, Tensor] | None = None
    ) -> None:
        self.model = model if precision == torch.float32 else copy.deepcopy(model).to(precision)
        self.replacements = {site: fill.to(precision) for site, fill in (replacements or {}).items()}
        self.heads = sum(each.heads for each in model.modules() if isinstance(each, Attention))

    @torch.inference_mode()
    def logits(
        self, source: Int[Tensor, "row source"], answer: Int[Tensor, "row answer"], sets: Int[Tensor, " set"]
    ) -> Float[Tensor, "set row answer token"]:
        """The logits under each of `sets`, which are in ascending order and all different."""
        tree, written, read = _Tree(sets, self.heads), self.model.shifted(answer), None
        for name in self.model.stacks:
            stack = self.model.stack(name, source, written)
            read = stack.finish(self._through(stack, tree, read))
            tree.seen = torch.arange(len(tree.begun), device=sets.device)
        assert read is not None
        return read

    def _through(
        self, stack: StackPass, tree: _Tree, memory: Float[Tensor, "encoded row source d_model"] | None
    ) -> Float[Tensor, "set row token d_model"]:
        x = stack.embed()
        x = x.expand(len(tree.begun), *x.shape)
        for block in stack.blocks:
            assert isinstance(block, Block)
            for kind, attention in block.attentions.items():
                assert isinstance(attention, Attention)
                if not attention.heads:
                    x = x + attention.out.bias
                    continue
                read = block.norms[kind](x)
                context, told = read, stack.order
                if memory is not None and kind == "cross":
                    context, told = memory[tree.seen], stack.across
                assert told is not None
                z, _ = attention.head_outputs(read.flatten(0, 1), context.flatten(0, 1), told.repeated(len(x)))
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
        self.begun = sets.new_zeros(1)  # the highest bits of the sets: those of the sites passed
        self.seen = sets.new_zeros(1)  # for each of them the branch of the encoder that it looks across to

    def branch(self, heads: int) -> tuple[Int[Tensor, " set"], Int[Tensor, "set head"]]:
        """Grows by one site: the branch each new one comes from, and which heads it lets pass."""
        self.ahead -= heads
        begun = torch.unique_consecutive(self.sets >> self.ahead)
        parent = torch.searchsorted(self.begun, begun >> heads)
        places = torch.arange(heads - 1, -1, -1, device=begun.device)
        self.begun, self.seen = begun, self.seen[parent]
        return parent, 1 - (begun[:, None] >> places & 1)
