"""The encoder-decoder: reads the problem in one stack, writes the answer in another that looks across."""

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


class EncoderDecoder(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.start is not None
        self.config, self.start, self.end = config, config.start, config.end
        self.index = find_index(config.index)
        kind = find_positions(config.positions)
        self.tokens = Tokens(config.vocabulary, config.d_model)
        self.source_positions = kind(Shape(config.d_model, config.heads, config.trained))
        self.answer_positions = kind(Shape(config.d_model, config.heads, config.trained_answer))
        self.encoder = nn.ModuleList(Block(config, "encoder", n, cross=False) for n in range(config.layers))
        self.decoder = nn.ModuleList(Block(config, "decoder", n, cross=True) for n in range(config.decoder_layers))
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)
        self.unembed = nn.Linear(config.d_model, config.vocabulary)

    def untrained(self, source: int, answer: int) -> list[int]:
        """Positions, of the source or the answer, whose signal no training step has touched."""
        found = {*self.source_positions.untrained(source), *self.answer_positions.untrained(answer)}
        return sorted(found)

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        answer: Int[Tensor, "batch answer"],
        gates: Gates | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "batch answer vocabulary"]:
        """The logits of every answer token, each given the right tokens before it."""
        memory = self.encode(source, gates, trace)
        return self.decode(self.shifted(answer), memory, gates, trace)

    def shifted(self, answer: Int[Tensor, "batch answer"]) -> Int[Tensor, "batch answer"]:
        """What the decoder reads: the start token and all but the last token of the answer."""
        start = torch.full_like(answer[:, :1], self.start)
        return torch.cat((start, answer[:, :-1]), dim=1)

    def source_order(self, source: Int[Tensor, "batch source"]) -> Order:
        index = self.index(len(source), source.shape[1], source.device)
        return Order(self.source_positions, index, index, self.source_positions.causal)

    def orders(self, batch: int, first: int, queries: int, sources: int, device: torch.device) -> tuple[Order, Order]:
        """What the decoder's sites are told: of the answer itself, and of the source it looks across to."""
        index, memory_index = self.index(batch, first + queries, device), self.index(batch, sources, device)
        own = Order(self.answer_positions, index[:, first:], index, causal=True)
        return own, Order(None, index[:, first:], memory_index, causal=False)

    def encode(self, source: Tensor, gates: Gates | None = None, trace: Trace | None = None) -> Tensor:
        order = self.source_order(source)
        x = self.source_positions.embed(self.tokens(source), order.query_index)
        for block in self.encoder:
            x = block(x, order, gates=gates, trace=trace)
        return self.encoder_norm(x)

    def decode(
        self,
        tokens: Int[Tensor, "batch query"],
        memory: Float[Tensor, "batch source d_model"],
        gates: Gates | None = None,
        trace: Trace | None = None,
        cache: Cache | None = None,
        first: int = 0,
    ) -> Float[Tensor, "batch query vocabulary"]:
        """The logits after each of `tokens`, of which the earliest is number `first` of the answer."""
        order, across = self.orders(len(tokens), first, tokens.shape[1], memory.shape[1], tokens.device)
        x = self.answer_positions.embed(self.tokens(tokens), order.query_index)
        for block in self.decoder:
            x = block(x, order, memory, across, gates, trace, cache)
        return self.unembed(self.decoder_norm(x))

    @torch.no_grad()
    def generate(
        self, source: Int[Tensor, "batch source"], length: int, gates: Gates | None = None
    ) -> Int[Tensor, "batch {length}"]:
        """The answer, token by token, each the likeliest after the model's own tokens before it."""
        memory, cache = self.encode(source, gates), Cache()
        token = source.new_full((len(source), 1), self.start)
        written = []
        for place in range(length):
            token = self.decode(token, memory, gates, cache=cache, first=place)[:, -1:].argmax(-1)
            written.append(token)
        return torch.cat(written, dim=1)
