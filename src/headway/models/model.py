"""What every transformer of Headway is: stacks of blocks, gone through one after another.

A model describes each of its stacks (`stack`): what it reads, what it is told of order, and what is read off its last
block. A whole pass, decoding, a pass resumed at a site (rerun.py) and many sets of closed heads at once (branches.py)
follow from that; whoever has a model need not know which one it is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import PLAIN, Order, PassInputs
from headway.models.blocks import Block, Tokens
from headway.models.sites import Gates, Site, Trace
from headway.positions import Positions, build_index, used
from headway.runs.config import ModelConfig

Source = Int[Tensor, "batch source"]
Answer = Int[Tensor, "batch answer"]
Logits = Float[Tensor, "batch answer token"]


@dataclass(frozen=True)
class StackPass:
    """One stack of blocks on one batch."""

    blocks: nn.ModuleList
    order: Order
    embed: Callable[[], Tensor]  # what the first block reads
    finish: Callable[[Tensor], Tensor]  # from the last block: the memory that the next stack looks at, or the logits
    across: Order | None = None  # what the cross-attentions are told of that memory

    def run(self, inputs: PassInputs = PLAIN, x: Tensor | None = None, after: Site | None = None) -> Tensor:
        """What is read off the stack; begins behind `after` where x holds its output and that of all before it."""
        stream = self.embed() if x is None else x
        for block in self.blocks:
            assert isinstance(block, Block)
            if after is None or after.layer is None or block.layer >= after.layer:
                here = after if after is not None and block.layer == after.layer else None
                stream = block(stream, self.order, self.across, inputs, here)
        return self.finish(stream)


class Model(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    stacks: tuple[str, ...] = ("decoder",)  # their names; each later one looks across to the one before it
    decodes = True  # whether it writes an answer token by token

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

    def reading(
        self, source: Source, blocks: nn.ModuleList, positions: Positions, finish: Callable[[Tensor], Tensor]
    ) -> StackPass:
        """A stack that reads the problem and nothing else."""
        index, _ = self.index.numbers(source)
        positions.check_length(used(type(positions), self.index, source.shape[1], 0))
        order = Order(positions, index, index, positions.causal)
        return StackPass(blocks, order, lambda: positions.embed(self.tokens(source), index), finish)

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

    def forward(self, source: Source, answer: Answer, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        """The logits of every answer token, each given the problem and the right tokens before it."""
        return self.after(source, self.shifted(answer), gates, trace)

    def after(self, source: Source, written: Answer, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        """The logits after each token that was written, a start token first."""
        inputs = PassInputs(gates, trace, self.memory(source, written, gates, trace))
        return self.stack(self.stacks[-1], source, written).run(inputs)

    def memory(self, source: Tensor, written: Tensor, gates: Gates | None, trace: Trace | None) -> Tensor | None:
        """What the last stack looks across to, where it is not the only one."""
        memory = None
        for name in self.stacks[:-1]:
            memory = self.stack(name, source, written).run(PassInputs(gates, trace, memory))
        return memory

    def shifted(self, answer: Answer) -> Answer:
        """What is read of an answer: the start token and all but its last token."""
        assert self.start is not None
        return torch.cat((torch.full_like(answer[:, :1], self.start), answer[:, :-1]), dim=1)

    @torch.no_grad()
    def generate(self, source: Source, length: int, gates: Gates | None = None) -> Int[Tensor, "batch {length}"]:
        """The answer, token by token, each the likeliest after the model's own tokens before it."""
        assert self.start is not None
        token, written = source.new_full((len(source), 1), self.start), []
        inputs = PassInputs(gates, None, self.memory(source, token, gates, None), cache={})
        for place in range(length):
            logits = self.stack(self.stacks[-1], source, token, length, place).run(inputs)
            token = logits[:, -1:].argmax(-1)
            written.append(token)
        return torch.cat(written, dim=1)
