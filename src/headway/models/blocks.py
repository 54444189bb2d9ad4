"""The blocks of every model. Pre-norm: each sublayer reads the normalised residual stream and adds its output to it.
Post-norm: it reads the stream itself, and the sum is normalised."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import Attention, Order, PassInputs, apply_gate
from headway.models.dropout import HIDDEN, OUTPUT, Dropout, number_of
from headway.models.linear import Linear
from headway.models.sites import Site
from headway.positions import find_positions
from headway.positions.positions import Stream
from headway.runs.config import ModelConfig

FEW_TOKENS = 256
Streams = Float[Tensor, "*batch token d_model"]


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
        self.into = Linear(d_model, d_ff)
        self.out = Linear(d_ff, d_model)

    def forward(self, x: Stream, dropout: Dropout | None = None, place: int = 0) -> Stream:
        hidden = self.into(x).relu_()
        return self.out(hidden if dropout is None else dropout(hidden, place))


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
        self.layer, self.feed_site, self.post_norm = layer, Site(stack, layer, "feed"), config.norm == "post"
        self.place = number_of(self.feed_site)

    def read(self, x: Streams, kind: str) -> Streams:
        """Returns what a sublayer reads of the residual stream."""
        return x if self.post_norm else self.norms[kind](x)

    def add(self, x: Streams, output: Tensor, kind: str) -> Streams:
        """Returns the residual stream after a sublayer with this output."""
        return self.norms[kind](x + output) if self.post_norm else x + output

    def forward(self, x: Stream, order: Order, across: Order | None, inputs: PassInputs, after: Site | None) -> Stream:
        """Runs the sublayers after the site `after`, whose output x already contains; all of them where it is None."""
        gates, trace, dropout = inputs.gates, inputs.trace, inputs.dropout
        for kind, attention in self.attentions.items():
            assert isinstance(attention, Attention)
            if after is not None:
                after = None if attention.site == after else after
                continue
            if trace is not None:
                trace.streams[attention.site] = x
            read = self.read(x, kind)
            context, site_order = (read, order) if kind == "self" else (inputs.memory, across)
            output = attention(read, context, site_order, inputs)
            x = self.add(x, output if dropout is None else dropout(output, attention.place + OUTPUT), kind)
        if after is not None:
            return x
        output = self.feed(self.read(x, "feed"), dropout, self.place + HIDDEN)
        if trace is not None:
            trace.ungated[self.feed_site] = output[:, :, None]
        if gates is not None and self.feed_site in gates:
            output = apply_gate(output[:, :, None], gates[self.feed_site])[:, :, 0]
        if trace is not None:
            trace.streams[self.feed_site], trace.outputs[self.feed_site] = x, output[:, :, None]
        return self.add(x, output if dropout is None else dropout(output, self.place + OUTPUT), "feed")
