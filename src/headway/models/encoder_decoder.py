"""The encoder-decoder: reads the problem in one stack, writes the answer in another that looks across."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
from jaxtyping import Int
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import Order
from headway.models.blocks import Block
from headway.models.model import Model, StackPass
from headway.positions import Positions, find_positions, shape_of, used
from headway.positions.window import Window
from headway.runs.config import ModelConfig


class EncoderDecoder(Model):
    stacks = ("encoder", "decoder")

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        kind = find_positions(config.positions)
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

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        across = [] if self.cross_positions is None else [(self.cross_positions, source, answer)]
        return [(self.source_positions, source, 0), (self.answer_positions, answer, answer), *across]

    def stack(self, name: str, source: Tensor, written: Tensor, length: int | None = None, first: int = 0) -> StackPass:
        if name == "encoder":
            order, positions = self._source_order(source), self.source_positions
            return StackPass(
                self.encoder, order, lambda: positions.embed(self.tokens(source), order.query_index), self.encoder_norm
            )
        order, across = self._orders(source, length or written.shape[1], first, written.shape[1])
        return StackPass(
            self.decoder,
            order,
            lambda: self.answer_positions.embed(self.tokens(written), order.query_index),
            lambda x: self.unembed(self.decoder_norm(x)),
            across,
        )

    def _source_order(self, source: Int[Tensor, "batch source"]) -> Order:
        index, _ = self.index.numbers(source)
        self.source_positions.check_length(used(type(self.source_positions), self.index, source.shape[1], 0))
        return Order(self.source_positions, index, index, self.source_positions.causal)

    def _orders(
        self, source: Int[Tensor, "batch source"], answers: int, first: int, queries: int
    ) -> tuple[Order, Order]:
        """What the decoder's sites are told of an answer of so many tokens: of the answer itself, and of the source
        that they look across to; to `queries` of its tokens from number `first` on. Of the distance across it is told
        where source and answer are numbered alike."""
        memory_index, index = self.index.numbers(source, answers)
        self.answer_positions.check_length(used(type(self.answer_positions), self.index, answers, answers))
        last = first + queries
        own = Order(self.answer_positions, index[:, first:last], index[:, :last], causal=True)
        return own, Order(self.cross_positions, index[:, first:last], memory_index, causal=False)
