"""The encoder classifier: reads a sequence, pools its positions, answers with a class."""

# No postponed annotations here: huggingface_hub reads the type of `config` to rebuild it.
import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import Order
from headway.models.blocks import Block, Tokens
from headway.models.sites import Gates, Trace
from headway.positions import build_index, find_positions, shape_of, used
from headway.runs.config import ModelConfig


class Classifier(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.classes is not None
        self.config = config
        self.index = build_index(config.index, config.digits, config.least_first)
        self.tokens = Tokens(config.vocabulary, config.d_model)
        self.positions = find_positions(config.positions)(shape_of(config, self.index, config.trained))
        self.blocks = nn.ModuleList(Block(config, "encoder", n, cross=False) for n in range(config.layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, 1 if config.pooling == "violation" else config.classes)

    def untrained(self, source: int, answer: int) -> list[int]:
        """Positions whose signal no training step has touched."""
        return list(self.positions.untrained(used(type(self.positions), self.index, source, 0)))

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        answer: Int[Tensor, "batch 1"] | None = None,
        gates: Gates | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "batch 1 classes"]:
        """The logits of the one answer token; the right answer is not looked at."""
        return self.answered(self.stream(source, gates, trace))

    def stream(
        self, source: Int[Tensor, "batch source"], gates: Gates | None = None, trace: Trace | None = None
    ) -> Tensor:
        """What the last layer says at each place."""
        order = self.order(source)
        x = self.positions.embed(self.tokens(source), order.query_index)
        for block in self.blocks:
            x = block(x, order, gates=gates, trace=trace)
        return x

    def violations(self, source: Int[Tensor, "batch source"]) -> Float[Tensor, "batch source"]:
        """With `violation` pooling: what each place reports, a violation where it is above 0."""
        return self.head(self.norm(self.stream(source)))[..., 0]

    def order(self, source: Int[Tensor, "batch source"]) -> Order:
        index, _ = self.index.numbers(source)
        self.positions.check_length(used(type(self.positions), self.index, source.shape[1], 0))
        return Order(self.positions, index, index, self.positions.causal)

    def answered(self, x: Float[Tensor, "batch token d_model"]) -> Float[Tensor, "batch 1 classes"]:
        return self._pooled(self.norm(x))[:, None]

    def _pooled(self, x: Float[Tensor, "batch token d_model"]) -> Float[Tensor, "batch classes"]:
        if self.config.pooling == "mean":
            return self.head(x.mean(1))
        if self.config.pooling == "max":
            return self.head(x.amax(1))
        reported = self.head(x)  # batch token 1: a violation where it is above 0
        # the strongest counts; in training every place has a say, so that none is left wrong behind a stronger one
        violation = reported.logsumexp(1) if self.training else reported.amax(1)
        return torch.cat((violation, torch.zeros_like(violation)), dim=1)
