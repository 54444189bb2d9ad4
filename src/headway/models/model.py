"""What every transformer of Headway is: stacks of blocks, gone through one after another.

A model describes each of its stacks (`stack`): what it reads, what it is told of order, and what is read off its last
block. A whole pass, decoding, a pass resumed at a site (rerun.py) and many sets of closed heads at once (branches.py)
follow from that; whoever has a model need not know which one it is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import Cache, Order
from headway.models.blocks import Block, Stream, Tokens
from headway.models.sites import Gates, Site, Trace
from headway.positions import Positions, build_index, used
from headway.runs.config import ModelConfig


@dataclass(frozen=True)
class StackPass:
    """One stack of blocks on one batch."""

    blocks: nn.ModuleList | Iterable[nn.Module]
    order: Order
    embed: Callable[[], Tensor]
    """what the first block reads"""
    finish: Callable[[Tensor], Tensor]
    """what is read off the last block: the memory that the next stack looks across to, or the logits"""
    across: Order | None = None
    """what the cross-attentions are told of that memory"""

    def run(
        self,
        gates: Gates | None = None,
        trace: Trace | None = None,
        memory: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The whole stack, from the embeddings to what is read off it."""
        return self.finish(self.resume(self.embed(), None, gates, trace, memory, cache))

    def resume(
        self,
        x: Stream,
        after: Site | None,
        gates: Gates | None = None,
        trace: Trace | None = None,
        memory: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Stream:
        """The output of the last block, where x holds the output of `after` and of all before it already."""
        for block in self.blocks:
            assert isinstance(block, Block)
            if after is not None and after.layer is not None and block.layer < after.layer:
                continue
            here = after if after is not None and block.layer == after.layer else None
            x = block(x, self.order, memory, self.across, gates, trace, cache, here)
        return x


class Model(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    stacks: tuple[str, ...] = ("decoder",)
    """their names; each later one looks across to the one before it"""
    decodes = True
    """whether it writes an answer token by token"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.start is not None or not self.decodes
        self.config, self.start, self.end = config, config.start, config.end
        self.index = build_index(config.index, config.digits, config.least_first)
        self.tokens = Tokens(config.vocabulary, config.d_model)

    def stack(self, name: str, source: Tensor, written: Tensor, length: int | None = None, first: int = 0) -> StackPass:
        """The stack of that name; `written` are tokens of an answer of `length` from number `first` on, a start token
        before them."""
        raise NotImplementedError

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        """Each encoding, the source's first, with how many tokens it is told of, and how many of these are answer."""
        raise NotImplementedError

    def ranges(self, source: int, answer: int) -> list[tuple[Positions, int]]:
        """Each encoding with how many different numbers, or distances, it is told of."""
        every = self.sequences(source, answer)
        return [(positions, used(type(positions), self.index, *tokens)) for positions, *tokens in every]

    def check_length(self, source: int, answer: int) -> None:
        """Refuses, in a sentence, more tokens than there are numbers or signals for."""
        for positions, *tokens in self.sequences(source, answer):
            self.index.check_length(*tokens)
            positions.check_length(used(type(positions), self.index, *tokens))

    def untrained(self, source: int, answer: int) -> list[int]:
        """The positions whose signal no training step has touched."""
        return sorted({row for positions, count in self.ranges(source, answer) for row in positions.untrained(count)})

    def before_answer(self, source: Tensor) -> int:
        """How many tokens of its last stack come before the answer."""
        return 0

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        answer: Int[Tensor, "batch answer"],
        gates: Gates | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "batch answer token"]:
        """The logits of every answer token, each given the problem and the right tokens before it."""
        return self._run(source, self.shifted(answer), gates, trace)

    def after(
        self, source: Int[Tensor, "batch source"], written: Int[Tensor, "batch query"]
    ) -> Float[Tensor, "batch query token"]:
        """The logits after each token that was written, a start token first."""
        return self._run(source, written)

    def _run(self, source: Tensor, written: Tensor, gates: Gates | None = None, trace: Trace | None = None) -> Tensor:
        *earlier, last = self.stacks
        memory = None
        for name in earlier:
            memory = self.stack(name, source, written).run(gates, trace, memory)
        return self.stack(last, source, written).run(gates, trace, memory)

    def shifted(self, answer: Int[Tensor, "batch answer"]) -> Int[Tensor, "batch answer"]:
        """What is read of an answer: the start token and all but its last token."""
        assert self.start is not None
        return torch.cat((torch.full_like(answer[:, :1], self.start), answer[:, :-1]), dim=1)

    @torch.no_grad()
    def generate(
        self, source: Int[Tensor, "batch source"], length: int, gates: Gates | None = None
    ) -> Int[Tensor, "batch {length}"]:
        """The answer, token by token, each the likeliest after the model's own tokens before it."""
        assert self.start is not None
        *earlier, last = self.stacks
        memory, cache = None, Cache()
        token = source.new_full((len(source), 1), self.start)
        for name in earlier:
            memory = self.stack(name, source, token).run(gates, memory=memory)
        written = []
        for place in range(length):
            logits = self.stack(last, source, token, length, place).run(gates, None, memory, cache)
            token = logits[:, -1:].argmax(-1)
            written.append(token)
        return torch.cat(written, dim=1)
