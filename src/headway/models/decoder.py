"""The decoder-only model: problem, start token and answer in one causal sequence."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import Cache, Order
from headway.models.blocks import Block, Tokens
from headway.models.sites import Gates, Trace
from headway.positions import build_index, find_positions, shape_of, used
from headway.runs.config import ModelConfig


class Decoder(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.start is not None
        self.config, self.start, self.end = config, config.start, config.end
        self.index = build_index(config.index, config.digits, config.least_first)
        self.tokens = Tokens(config.vocabulary, config.d_model)
        self.positions = find_positions(config.positions)(shape_of(config, self.index, config.trained, causal=True))
        self.segments = nn.Parameter(torch.randn(2, config.d_model)) if config.segments else None
        self.blocks = nn.ModuleList(Block(config, "decoder", n, cross=False) for n in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.unembed = nn.Linear(config.d_model, config.vocabulary)

    def untrained(self, source: int, answer: int) -> list[int]:
        """Positions whose signal no training step has touched."""
        return list(self.positions.untrained(used(type(self.positions), self.index, source + answer, answer)))

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
        order, sources = self.order(source, answer.shape[1]), source.shape[1]
        return self.unembed(self.stream(tokens, order, sources, gates, trace)[:, sources:])

    def after(
        self, source: Int[Tensor, "batch source"], written: Int[Tensor, "batch query"]
    ) -> Float[Tensor, "batch query vocabulary"]:
        """The logits after each token that was written, a start token first."""
        sources, order = source.shape[1], self.order(source, written.shape[1])
        return self.unembed(self.stream(torch.cat((source, written), dim=1), order, sources)[:, sources:])

    def embedded(
        self, tokens: Int[Tensor, "batch query"], order: Order, sources: int
    ) -> Float[Tensor, "batch query d_model"]:
        """What the first layer reads; the first `sources` of the tokens are the problem's."""
        x = self.positions.embed(self.tokens(tokens), order.query_index)
        if self.segments is None:
            return x
        of_answer = torch.arange(tokens.shape[1], device=tokens.device) >= sources
        return x + self.segments[of_answer.long()]

    def order(
        self, source: Int[Tensor, "batch source"], answers: int, first: int = 0, queries: int | None = None
    ) -> Order:
        """What is told of a problem and an answer of so many tokens; to `queries` of them from number `first` on."""
        index = torch.cat(self.index.numbers(source, answers, joined=True), dim=1)
        self.positions.check_length(used(type(self.positions), self.index, index.shape[1], answers))
        last = index.shape[1] if queries is None else first + queries
        return Order(self.positions, index[:, first:last], index[:, :last], causal=True)

    def stream(
        self,
        tokens: Int[Tensor, "batch query"],
        order: Order,
        sources: int,
        gates: Gates | None = None,
        trace: Trace | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """What the last layer says after each of `tokens`."""
        x = self.embedded(tokens, order, sources)
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
            order = self.order(source, length, first, read.shape[1])
            sources = source.shape[1] if first == 0 else 0
            token = self.unembed(self.stream(read, order, sources, gates, cache=cache)[:, -1:]).argmax(-1)
            written.append(token)
            first, read = first + read.shape[1], token
        return torch.cat(written, dim=1)
