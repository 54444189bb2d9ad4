"""The blocks every model is made of, pre-norm: each part reads a normalised copy and adds to the stream."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import Attention, Order, PassInputs, gated
from headway.models.sites import Site
from headway.positions import find_positions
from headway.positions.positions import Stream
from headway.runs.config import ModelConfig

FEW_TOKENS = 256


class Tokens(nn.Embedding):
    """A row of the table for each token. On a GPU it is a product with one-hot rows: for a few dozen tokens that
    is no slower, and its gradient is summed in an order that repeats itself."""

    def forward(self, input: Int[Tensor, "batch token"]) -> Stream:
        if not self.weight.is_cuda or self.num_embeddings > FEW_TOKENS:
            return super().forward(input)
        known = torch.arange(self.num_embeddings, device=input.device)
        return (input[..., None] == known).to(self.weight.dtype) @ self.weight


class FeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.into = nn.Linear(d_model, d_ff)
        self.out = nn.Linear(d_ff, d_model)

    def forward(self, x: Stream) -> Stream:
        return self.out(self.into(x).relu_())


class Block(nn.Module):
    """Self-attention, then cross-attention where there is something to look at, then feed-forward."""

    def __init__(self, config: ModelConfig, stack: str, layer: int, cross: bool) -> None:
        super().__init__()
        d_model, kinds = config.d_model, ("self", "cross") if cross else ("self",)
        if config.pruned and find_positions(config.positions).kind.turns_by_head:
            raise HeadwayError(f"{config.positions} positions treat each head its own way; its heads cannot be pruned")
        sites = [Site(stack, layer, kind) for kind in kinds]  # pyright: ignore[reportArgumentType]
        made = {site.kind: Attention(site, d_model, config.dim, config.remaining_heads(str(site))) for site in sites}
        self.attentions = nn.ModuleDict(made)
        self.norms = nn.ModuleDict({kind: nn.LayerNorm(d_model) for kind in (*kinds, "feed")})
        self.feed = FeedForward(d_model, config.d_ff)
        self.layer, self.feed_site = layer, Site(stack, layer, "feed")

    def forward(self, x: Stream, order: Order, across: Order | None, inputs: PassInputs, after: Site | None) -> Stream:
        """`after` names a part whose output is in x already: it and what comes before it are not done again."""
        gates, trace = inputs.gates, inputs.trace
        for kind, attention in self.attentions.items():
            if after is not None:
                after = None if attention.site == after else after
                continue
            if trace is not None:
                trace.streams[attention.site] = x  # pyright: ignore[reportArgumentType]
            read = self.norms[kind](x)
            context, told = (read, order) if kind == "self" else (inputs.memory, across)
            x = x + attention(read, context, told, inputs)
        if after is not None:
            return x
        output = self.feed(self.norms["feed"](x))
        if gates is not None and self.feed_site in gates:
            output = gated(output[:, :, None], gates[self.feed_site])[:, :, 0]
        if trace is not None:
            trace.streams[self.feed_site], trace.outputs[self.feed_site] = x, output[:, :, None]
        return x + output
