"""Derives which sites can carry a difference between two problems to an answer token, without running the model.

A site's output at a query may differ only if something that it sees differs: a token, or its position index, at any
key that the query attends to, in any layer below. And it can reach the logits of an answer token only along the
residual stream of that token's own query, or through a later attention to it. Where no query does both, patching the
site cannot change the logits, whatever the weights are. Windows are ignored, so a site is at worst said to be able
to carry what it cannot.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headway.models.blocks import Block
from headway.models.model import Answer, Model, Source
from headway.models.sites import Site

Queries = Bool[Tensor, "batch query"]
Input = tuple[Source, Answer]  # a batch of problems with the answers whose first tokens the decoder reads


def carrying_queries(model: Model, one: Input, two: Input, place: Int[Tensor, "batch 1"]) -> dict[Site, Queries]:
    """Returns, for each site, the queries at which its outputs on the two inputs may differ and can then reach the
    logits of the answer token at `place`."""
    sides = [(source, model.shift_right(answer)) for source, answer in (one, two)]
    found, memory = dict[Site, Queries](), None
    for name in model.stacks:
        first, second = (model.stack(name, *side) for side in sides)
        tokens, others = (model.stack_tokens(name, *side) for side in sides)
        stream = (tokens != others) | (first.order.query_index != second.order.query_index)  # batch query
        asked = place + model.tokens_before_answer(one[0])
        blocks = [block for block in first.blocks if isinstance(block, Block)]
        for block in blocks:
            reaches = torch.ones_like(stream)
            if model.decodes and name == model.stacks[-1]:
                queries = torch.arange(stream.shape[1], device=stream.device)
                reaches = queries == asked if block is blocks[-1] else queries <= asked
            for kind, attention in block.attentions.items():
                read = _visible(stream, first.order.causal) if kind == "self" else memory
                assert read is not None
                stream = stream | read
                found[attention.site] = stream & reaches  # pyright: ignore[reportArgumentType]
            found[block.feed_site] = stream & reaches
        memory = stream.any(1, keepdim=True)
    return found


def _visible(stream: Queries, causal: bool) -> Queries:
    """Returns whether any key that a query sees may differ."""
    return stream.cummax(1).values if causal else stream.any(1, keepdim=True).expand_as(stream)
