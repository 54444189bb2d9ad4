"""The three transformers, each described by its stacks; model.py runs them."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import Order, PassInputs
from headway.models.blocks import Block
from headway.models.dropout import Dropout
from headway.models.linear import Linear
from headway.models.model import Model, Source, StackPass
from headway.models.sites import Gates, Trace
from headway.positions import Positions, count_indices, find_positions, shape_of
from headway.positions.window import Window
from headway.runs.config import ModelConfig


def last_norm(config: ModelConfig) -> nn.Module:
    """Returns the norm after the last block of a stack; post-norm blocks end with one of their own."""
    return nn.Identity() if config.norm == "post" else nn.LayerNorm(config.d_model)


class EncoderDecoder(Model):
    """An encoder that reads the problem and a decoder that writes the answer with cross-attention."""

    stacks = ("encoder", "decoder")

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        kind = find_positions(config.positions)
        self.source_positions = kind(shape_of(config, self.index, config.trained, answers=0))
        self.answer_positions = kind(shape_of(config, self.index, config.trained_answer, causal=True))
        across = kind(shape_of(config, self.index, config.trained)) if self.index.shared else None
        self.cross_positions = None if across is None or across.only_embeds else across
        least = 1 if config.end is None else 2
        if isinstance(across, Window) and across.behind < least:
            hides = f"{config.positions} hides the whole problem from the last column of an answer"
            remedy = f"look further behind: window+behind={least}"
            raise HeadwayError(f"{hides}, which has no operand digits; {remedy}")
        self.encoder = nn.ModuleList(Block(config, "encoder", n, cross=False) for n in range(config.layers))
        self.decoder = nn.ModuleList(Block(config, "decoder", n, cross=True) for n in range(config.decoder_layers))
        self.encoder_norm = last_norm(config)
        self.decoder_norm = last_norm(config)
        self.unembed = Linear(config.d_model, config.vocabulary)

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        across = [] if self.cross_positions is None else [(self.cross_positions, source, answer)]
        return [(self.source_positions, source, 0), (self.answer_positions, answer, answer), *across]

    def stack(self, name: str, source: Tensor, written: Tensor, length: int | None = None, first: int = 0) -> StackPass:
        if name == "encoder":
            return self.source_stack(source, self.encoder, self.source_positions, self.encoder_norm)
        positions, answers, last = self.answer_positions, length or written.shape[1], first + written.shape[1]
        memory_index, index = self.index.numbers(source, answers)
        positions.check_length(count_indices(type(positions), self.index, answers, answers))
        asking = index[:, first:last]
        return StackPass(
            self.decoder,
            Order(positions, asking, index[:, :last], causal=True),
            lambda: positions.embed(self.tokens(written), asking),
            lambda x: self.unembed(self.decoder_norm(x)),
            # the distance is known only where source and answer share their indices
            Order(self.cross_positions, asking, memory_index, causal=False),
        )


class Decoder(Model):
    """A decoder-only model: problem, start token and answer are one causal sequence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.positions = find_positions(config.positions)(shape_of(config, self.index, config.trained, causal=True))
        self.segments = nn.Parameter(torch.randn(2, config.d_model)) if config.segments else None
        self.blocks = nn.ModuleList(Block(config, "decoder", n, cross=False) for n in range(config.layers))
        self.norm = last_norm(config)
        self.unembed = Linear(config.d_model, config.vocabulary)

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        return [(self.positions, source + answer, answer)]

    def tokens_before_answer(self, source: Tensor) -> int:
        return source.shape[1]

    def stack_tokens(self, name: str, source: Tensor, written: Tensor) -> Tensor:
        return torch.cat((source, written), dim=1)

    def stack(self, name: str, source: Tensor, written: Tensor, length: int | None = None, first: int = 0) -> StackPass:
        tokens, sources = (written, 0) if first else (torch.cat((source, written), dim=1), source.shape[1])
        start = source.shape[1] + first if first else 0
        order = self.order(source, length or written.shape[1], start, tokens.shape[1])

        def embed() -> Float[Tensor, "batch query d_model"]:
            x = self.positions.embed(self.tokens(tokens), order.query_index)
            if self.segments is None:
                return x
            of_answer = torch.arange(tokens.shape[1], device=tokens.device) >= sources
            return x + self.segments[of_answer.long()]

        return StackPass(self.blocks, order, embed, lambda x: self.unembed(self.norm(x)[..., sources:, :]))

    def order(self, source: Source, answers: int, first: int = 0, queries: int | None = None) -> Order:
        """Returns the order of a problem and `answers` answer tokens, for `queries` of them from number `first` on."""
        index = torch.cat(self.index.numbers(source, answers, joined=True), dim=1)
        self.positions.check_length(count_indices(type(self.positions), self.index, index.shape[1], answers))
        last = index.shape[1] if queries is None else first + queries
        return Order(self.positions, index[:, first:last], index[:, :last], causal=True)


class Classifier(Model):
    """An encoder that reads a sequence, pools its positions and predicts a class."""

    stacks = ("encoder",)
    decodes = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.classes is not None
        self.positions = find_positions(config.positions)(shape_of(config, self.index, config.trained))
        self.blocks = nn.ModuleList(Block(config, "encoder", n, cross=False) for n in range(config.layers))
        self.norm = last_norm(config)
        self.head = Linear(config.d_model, 1 if config.pooling == "violation" else config.classes)

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        return [(self.positions, source, 0)]

    def forward(
        self,
        source: Source,
        answer: Tensor | None = None,
        gates: Gates | None = None,
        trace: Trace | None = None,
        dropout: Dropout | None = None,
    ) -> Float[Tensor, "batch 1 classes"]:
        """Returns the logits of the one answer token; the right answer is not used."""
        return self.stack("encoder", source).run(PassInputs(gates, trace, dropout=dropout))

    def stack(
        self, name: str, source: Tensor, written: Tensor | None = None, length: int | None = None, first: int = 0
    ) -> StackPass:
        return self.source_stack(source, self.blocks, self.positions, lambda x: self._pool(self.norm(x)).unsqueeze(-2))

    def shift_right(self, answer: Tensor) -> Tensor:
        """Returns the answer unchanged: a classifier does not read it."""
        return answer

    def generate(self, source: Tensor, length: int, gates: Gates | None = None) -> Tensor:
        raise HeadwayError("a classifier predicts a class; there is nothing to decode, so leave out the greedy check")

    def violations(self, source: Source) -> Float[Tensor, "batch source"]:
        """Returns the logit of each position under `violation` pooling; a violation where it is above 0."""
        return replace(self.stack("encoder", source), finish=lambda x: self.head(self.norm(x))).run()[..., 0]

    def _pool(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch classes"]:
        if self.config.pooling == "mean":
            return self.head(x.mean(-2))
        if self.config.pooling == "max":
            return self.head(x.amax(-2))
        logits = self.head(x)  # batch token 1: a violation where it is above 0
        # the maximum decides; in training every position gets a gradient, so that none hides behind a larger one
        violation = logits.logsumexp(-2) if self.training else logits.amax(-2)
        return torch.cat((violation, torch.zeros_like(violation)), dim=-1)
