"""The encoder-decoder: reads the problem in one stack, writes the answer in another that looks across."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import Cache, Order
from headway.models.blocks import Block, Tokens
from headway.models.sites import Gates, Trace
from headway.positions import build_index, find_positions, shape_of, used
from headway.positions.window import Window
from headway.runs.config import ModelConfig


class EncoderDecoder(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.start is not None
        self.config, self.start, self.end = config, config.start, config.end
        self.index = build_index(config.index, config.digits, config.least_first)
        kind = find_positions(config.positions)
        self.tokens = Tokens(config.vocabulary, config.d_model)
        self.source_positions = kind(shape_of(config, self.index, config.trained, answers=0))
        self.answer_positions = kind(shape_of(config, self.index, config.trained_answer, causal=True))
        across = kind(shape_of(config, self.index, config.trained)) if self.index.shared else None
        self.cross_positions = None if across is None or across.only_embeds else across
        if isinstance(across, Window) and across.behind < (2 if config.end is not None else 1):
            raise HeadwayError(
                f"{config.positions} hides the whole problem from the last column of an answer, which has no operand "
                f"digits; look further behind: window+behind={2 if config.end is not None else 1}"
            )
        self.encoder = nn.ModuleList(Block(config, "encoder", n, cross=False) for n in range(config.layers))
        self.decoder = nn.ModuleList(Block(config, "decoder", n, cross=True) for n in range(config.decoder_layers))
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)
        self.unembed = nn.Linear(config.d_model, config.vocabulary)

    def untrained(self, source: int, answer: int) -> list[int]:
        """Positions, of the source or the answer, whose signal no training step has touched."""
        kind = type(self.source_positions)
        read = self.source_positions.untrained(used(kind, self.index, source, 0))
        return sorted({*read, *self.answer_positions.untrained(used(kind, self.index, answer, answer))})

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        answer: Int[Tensor, "batch answer"],
        gates: Gates | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "batch answer vocabulary"]:
        """The logits of every answer token, each given the right tokens before it."""
        memory = self.encode(source, gates, trace)
        return self.decode(self.shifted(answer), memory, self.orders(source, answer.shape[1]), gates, trace)

    def after(
        self, source: Int[Tensor, "batch source"], written: Int[Tensor, "batch query"]
    ) -> Float[Tensor, "batch query vocabulary"]:
        """The logits after each token that was written, a start token first."""
        return self.decode(written, self.encode(source), self.orders(source, written.shape[1]))

    def shifted(self, answer: Int[Tensor, "batch answer"]) -> Int[Tensor, "batch answer"]:
        """What the decoder reads: the start token and all but the last token of the answer."""
        start = torch.full_like(answer[:, :1], self.start)
        return torch.cat((start, answer[:, :-1]), dim=1)

    def source_order(self, source: Int[Tensor, "batch source"]) -> Order:
        index, _ = self.index.numbers(source)
        self.source_positions.check_length(used(type(self.source_positions), self.index, source.shape[1], 0))
        return Order(self.source_positions, index, index, self.source_positions.causal)

    def orders(
        self, source: Int[Tensor, "batch source"], answers: int, first: int = 0, queries: int | None = None
    ) -> tuple[Order, Order]:
        """What the decoder's sites are told of an answer of so many tokens: of the answer itself, and of the source
        that they look across to; to `queries` of its tokens from number `first` on. Of the distance across it is told
        where source and answer are numbered alike."""
        memory_index, index = self.index.numbers(source, answers)
        self.answer_positions.check_length(used(type(self.answer_positions), self.index, answers, answers))
        last = answers if queries is None else first + queries
        own = Order(self.answer_positions, index[:, first:last], index[:, :last], causal=True)
        return own, Order(self.cross_positions, index[:, first:last], memory_index, causal=False)

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
        orders: tuple[Order, Order],
        gates: Gates | None = None,
        trace: Trace | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch query vocabulary"]:
        """The logits after each of `tokens`."""
        order, across = orders
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
            orders = self.orders(source, length, place, 1)
            token = self.decode(token, memory, orders, gates, cache=cache)[:, -1:].argmax(-1)
            written.append(token)
        return torch.cat(written, dim=1)
