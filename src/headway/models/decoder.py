"""The decoder-only model: problem, start token and answer in one causal sequence."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import Order
from headway.models.blocks import Block
from headway.models.model import Model, StackPass
from headway.positions import Positions, find_positions, shape_of, used
from headway.runs.config import ModelConfig


class Decoder(Model):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.positions = find_positions(config.positions)(shape_of(config, self.index, config.trained, causal=True))
        self.segments = nn.Parameter(torch.randn(2, config.d_model)) if config.segments else None
        self.blocks = nn.ModuleList(Block(config, "decoder", n, cross=False) for n in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.unembed = nn.Linear(config.d_model, config.vocabulary)

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        return [(self.positions, source + answer, answer)]

    def before_answer(self, source: Tensor) -> int:
        return source.shape[1]

    def stack(self, name: str, source: Tensor, written: Tensor, length: int | None = None, first: int = 0) -> StackPass:
        tokens, sources = (written, 0) if first else (torch.cat((source, written), dim=1), source.shape[1])
        start = source.shape[1] + first if first else 0
        order = self.order(source, length or written.shape[1], start, tokens.shape[1])
        return StackPass(
            self.blocks,
            order,
            lambda: self._embedded(tokens, order, sources),
            lambda x: self.unembed(self.norm(x)[..., sources:, :]),
        )

    def _embedded(
        self, tokens: Int[Tensor, "batch query"], order: Order, sources: int
    ) -> Float[Tensor, "batch query d_model"]:
        """What the first block reads; the first `sources` of the tokens are the problem's."""
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
