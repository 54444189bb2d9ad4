"""The encoder classifier: reads a sequence, pools its positions, answers with a class."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import Order
from headway.models.blocks import Block
from headway.models.model import Model, StackPass
from headway.models.sites import Gates, Trace
from headway.positions import Positions, find_positions, shape_of, used
from headway.runs.config import ModelConfig


class Classifier(Model):
    stacks = ("encoder",)
    decodes = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.classes is not None
        self.positions = find_positions(config.positions)(shape_of(config, self.index, config.trained))
        self.blocks = nn.ModuleList(Block(config, "encoder", n, cross=False) for n in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, 1 if config.pooling == "violation" else config.classes)

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        return [(self.positions, source, 0)]

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        answer: Int[Tensor, "batch 1"] | None = None,
        gates: Gates | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "batch 1 classes"]:
        """The logits of the one answer token; the right answer is not looked at."""
        return self.stack("encoder", source).run(gates, trace)

    def stack(
        self, name: str, source: Tensor, written: Tensor | None = None, length: int | None = None, first: int = 0
    ) -> StackPass:
        order = self.order(source)
        return StackPass(
            self.blocks,
            order,
            lambda: self.positions.embed(self.tokens(source), order.query_index),
            lambda x: self._pooled(self.norm(x)).unsqueeze(-2),
        )

    def shifted(self, answer: Tensor) -> Tensor:
        """The answer as it is: nothing of it is read."""
        return answer

    def generate(self, source: Tensor, length: int, gates: Gates | None = None) -> Tensor:
        raise HeadwayError("a classifier answers with a class; there is nothing to decode: leave out --check-greedy")

    def violations(self, source: Int[Tensor, "batch source"]) -> Float[Tensor, "batch source"]:
        """With `violation` pooling: what each place reports, a violation where it is above 0."""
        stack = self.stack("encoder", source)
        return self.head(self.norm(stack.resume(stack.embed(), None)))[..., 0]

    def order(self, source: Int[Tensor, "batch source"]) -> Order:
        index, _ = self.index.numbers(source)
        self.positions.check_length(used(type(self.positions), self.index, source.shape[1], 0))
        return Order(self.positions, index, index, self.positions.causal)

    def _pooled(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch classes"]:
        if self.config.pooling == "mean":
            return self.head(x.mean(-2))
        if self.config.pooling == "max":
            return self.head(x.amax(-2))
        reported = self.head(x)  # batch token 1: a violation where it is above 0
        # the strongest counts; in training every place has a say, so that none is left wrong behind a stronger one
        violation = reported.logsumexp(-2) if self.training else reported.amax(-2)
        return torch.cat((violation, torch.zeros_like(violation)), dim=-1)
