"""The pre-norm blocks of every model: each sublayer reads the normalised residual stream and adds its output to it."""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import Attention, Order, PassInputs, apply_gate
from headway.models.sites import Site
from headway.positions import find_positions
from headway.positions.positions import Stream
from headway.runs.config import ModelConfig

FEW_TOKENS = 256


class Tokens(nn.Embedding):
    """Token embeddings. On a GPU the lookup is a product with one-hot rows: for a few dozen tokens that is no slower,
    and its gradient is deterministic."""

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
    """Self-attention, then cross-attention if `cross`, then the feed-forward block."""

    def __init__(self, config: ModelConfig, stack: str, layer: int, cross: bool) -> None:
        super().__init__()
        d_model, kinds = config.d_model, ("self", "cross") if cross else ("self",)
        if config.pruned and find_positions(config.positions).kind.turns_by_head:
            raise HeadwayError(f"{config.positions} positions treat each head differently, so no head can be pruned")
        sites = [Site(stack, layer, kind) for kind in kinds]  # pyright: ignore[reportArgumentType]
        made = {site.kind: Attention(site, d_model, config.dim, config.remaining_heads(str(site))) for site in sites}
        self.attentions = nn.ModuleDict(made)
        self.norms = nn.ModuleDict({kind: nn.LayerNorm(d_model) for kind in (*kinds, "feed")})
        self.feed = FeedForward(d_model, config.d_ff)
        self.layer, self.feed_site = layer, Site(stack, layer, "feed")

    def forward(self, x: Stream, order: Order, across: Order | None, inputs: PassInputs, after: Site | None) -> Stream:
        """Runs the sublayers after the site `after`, whose output x already contains; all of them where it is None."""
        gates, trace = inputs.gates, inputs.trace
        for kind, attention in self.attentions.items():
            if after is not None:
                after = None if attention.site == after else after
                continue
            if trace is not None:
                trace.streams[attention.site] = x  # pyright: ignore[reportArgumentType]
            read = self.norms[kind](x)
            context, site_order = (read, order) if kind == "self" else (inputs.memory, across)
            x = x + attention(read, context, site_order, inputs)
        if after is not None:
            return x
        output = self.feed(self.norms["feed"](x))
        if gates is not None and self.feed_site in gates:
            output = apply_gate(output[:, :, None], gates[self.feed_site])[:, :, 0]
        if trace is not None:
            trace.streams[self.feed_site], trace.outputs[self.feed_site] = x, output[:, :, None]
        return x + output
