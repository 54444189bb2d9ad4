"""The decoder-only model: problem, start token and answer in one causal sequence."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import Cache, Order
from headway.models.blocks import Block, Tokens
from headway.models.sites import Gates, Trace
from headway.positions import Shape, find_index, find_positions
from headway.runs.config import ModelConfig


class Decoder(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.start is not None
        self.config, self.start, self.end = config, config.start, config.end
        self.index = find_index(config.index)
        self.tokens = Tokens(config.vocabulary, config.d_model)
        self.positions = find_positions(config.positions)(Shape(config.d_model, config.heads, config.trained))
        self.blocks = nn.ModuleList(Block(config, "decoder", n, cross=False) for n in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.unembed = nn.Linear(config.d_model, config.vocabulary)

    def untrained(self, source: int, answer: int) -> list[int]:
        """Positions whose signal no training step has touched."""
        return list(self.positions.untrained(source + answer))

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        answer: Int[Tensor, "batch answer"],
        gates: Gates | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "batch answer vocabulary"]:
        """The logits of every answer token, each given the problem and the right tokens before it."""
        start = torch.full_like(answer[:, :1], self.start)
        tokens = torch.cat((source, start, answer[:, :-1]), dim=1)
        return self.unembed(self.stream(tokens, gates, trace)[:, source.shape[1] :])

    def order(self, batch: int, first: int, queries: int, device: torch.device) -> Order:
        index = self.index(batch, first + queries, device)
        return Order(self.positions, index[:, first:], index, causal=True)

    def stream(
        self,
        tokens: Int[Tensor, "batch query"],
        gates: Gates | None = None,
        trace: Trace | None = None,
        cache: Cache | None = None,
        first: int = 0,
    ) -> Float[Tensor, "batch query d_model"]:
        """What the last layer says after each of `tokens`, of which the earliest is number `first`."""
        order = self.order(len(tokens), first, tokens.shape[1], tokens.device)
        x = self.positions.embed(self.tokens(tokens), order.query_index)
        for block in self.blocks:
            x = block(x, order, gates=gates, trace=trace, cache=cache)
        return self.norm(x)

    @torch.no_grad()
    def generate(
        self, source: Int[Tensor, "batch source"], length: int, gates: Gates | None = None
    ) -> Int[Tensor, "batch {length}"]:
        """The answer, token by token, each the likeliest after the model's own tokens before it."""
        cache, first = Cache(), 0
        read = torch.cat((source, torch.full_like(source[:, :1], self.start)), dim=1)
        written = []
        for _ in range(length):
            token = self.unembed(self.stream(read, gates, cache=cache, first=first)[:, -1:]).argmax(-1)
            written.append(token)
            first, read = first + read.shape[1], token
        return torch.cat(written, dim=1)
