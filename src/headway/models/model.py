"""Model: the parent of Headway's transformers, which are stacks of blocks run one after another.

A model describes each of its stacks (`stack`): its embedding, its positions, and the readout after its last block. The
forward pass, decoding, replay from a site (rerun.py) and passes for many sets of closed heads (branches.py) follow from
that description, so no caller needs to know which model it has.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import PLAIN, Order, PassInputs
from headway.models.blocks import Block, Tokens
from headway.models.dropout import EMBEDDINGS, Dropout
from headway.models.sites import Gates, Site, Trace
from headway.positions import Positions, build_index, count_indices
from headway.runs.config import ModelConfig

Source = Int[Tensor, "batch source"]
Answer = Int[Tensor, "batch answer"]
Logits = Float[Tensor, "batch answer token"]


@dataclass(frozen=True)
class StackPass:
    """A stack of blocks with everything needed to run it on one batch."""

    blocks: nn.ModuleList
    order: Order
    embed: Callable[[], Tensor]  # returns the input of the first block
    finish: Callable[[Tensor], Tensor]  # maps the last block's output to the next stack's memory or to logits
    cross_order: Order | None = None  # the order of the cross-attentions

    def run(self, inputs: PassInputs = PLAIN, x: Tensor | None = None, after: Site | None = None) -> Tensor:
        """Returns the readout of the stack; with `after`, x is the stream after that site, where the pass resumes."""
        stream = self.embed() if x is None else x
        if inputs.dropout is not None:
            opening = self.blocks[0]
            assert isinstance(opening, Block)
            stream = inputs.dropout(stream, opening.place + EMBEDDINGS)
        for block in self.blocks:
            assert isinstance(block, Block)
            if after is None or after.layer is None or block.layer >= after.layer:
                here = after if after is not None and block.layer == after.layer else None
                stream = block(stream, self.order, self.cross_order, inputs, here)
        return self.finish(stream)


class Model(nn.Module, PyTorchModelHubMixin, library_name="headway"):
    stacks: tuple[str, ...] = ("decoder",)  # names of the stacks; each attends to the output of the one before it
    decodes = True  # whether it writes an answer token by token

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.start is not None or not self.decodes
        self.config, self.start, self.end = config, config.start, config.end
        self.index = build_index(config.index, config.digits, config.least_first)
        self.tokens = Tokens(config.vocabulary, config.d_model)

    def stack(self, name: str, source: Tensor, written: Tensor, length: int | None = None, first: int = 0) -> StackPass:
        """Returns the stack of that name. `written` are the decoder inputs of an answer of `length` tokens, from input
        number `first` on; input 0 is the start token."""
        raise NotImplementedError

    def stack_tokens(self, name: str, source: Tensor, written: Tensor) -> Tensor:
        """Returns the tokens that the stack of that name reads."""
        return source if name == "encoder" else written

    def source_stack(
        self, source: Source, blocks: nn.ModuleList, positions: Positions, finish: Callable[[Tensor], Tensor]
    ) -> StackPass:
        """Returns a stack that reads only the problem."""
        index, _ = self.index.numbers(source)
        positions.check_length(count_indices(type(positions), self.index, source.shape[1], 0))
        order = Order(positions, index, index, positions.causal)
        return StackPass(blocks, order, lambda: positions.embed(self.tokens(source), index), finish)

    def sequences(self, source: int, answer: int) -> list[tuple[Positions, int, int]]:
        """Returns each encoding, the source's first, with the number of its tokens and how many of them are answer."""
        raise NotImplementedError

    def ranges(self, source: int, answer: int) -> list[tuple[Positions, int]]:
        """Returns each encoding with the number of different indices, or distances, that it meets."""
        every = self.sequences(source, answer)
        return [(positions, count_indices(type(positions), self.index, *tokens)) for positions, *tokens in every]

    def check_length(self, source: int, answer: int) -> None:
        """Raises where there are more tokens than indices or position signals."""
        for positions, *tokens in self.sequences(source, answer):
            self.index.check_length(*tokens)
            positions.check_length(count_indices(type(positions), self.index, *tokens))

    def untrained(self, source: int, answer: int) -> list[int]:
        """Returns the positions whose signal training never updated."""
        return sorted({row for positions, count in self.ranges(source, answer) for row in positions.untrained(count)})

    def tokens_before_answer(self, source: Tensor) -> int:
        """Returns how many tokens precede the answer in the last stack."""
        return 0

    def forward(
        self,
        source: Source,
        answer: Answer,
        gates: Gates | None = None,
        trace: Trace | None = None,
        dropout: Dropout | None = None,
    ) -> Logits:
        """Returns the logits of every answer token, each given the problem and the right tokens before it."""
        written = self.shift_right(answer)
        inputs = PassInputs(gates, trace, self.memory(source, written, gates, trace, dropout), dropout=dropout)
        return self.stack(self.stacks[-1], source, written).run(inputs)

    def decode(self, source: Source, written: Answer, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        """Returns the next-token logits after each decoder input; the first input is the start token."""
        inputs = PassInputs(gates, trace, self.memory(source, written, gates, trace))
        return self.stack(self.stacks[-1], source, written).run(inputs)

    def memory(
        self,
        source: Tensor,
        written: Tensor,
        gates: Gates | None,
        trace: Trace | None,
        dropout: Dropout | None = None,
    ) -> Tensor | None:
        """Returns the memory that the last stack attends to, or None where there is only one stack."""
        memory = None
        for name in self.stacks[:-1]:
            memory = self.stack(name, source, written).run(PassInputs(gates, trace, memory, dropout=dropout))
        return memory

    def shift_right(self, answer: Answer) -> Answer:
        """Returns the decoder inputs for an answer: the start token and all but its last token."""
        assert self.start is not None
        return torch.cat((torch.full_like(answer[:, :1], self.start), answer[:, :-1]), dim=1)

    @torch.no_grad()
    def generate(self, source: Source, length: int, gates: Gates | None = None) -> Int[Tensor, "batch {length}"]:
        """Decodes the answer greedily, token by token."""
        assert self.start is not None
        token, written = source.new_full((len(source), 1), self.start), []
        inputs = PassInputs(gates, None, self.memory(source, token, gates, None), cache={})
        for place in range(length):
            logits = self.stack(self.stacks[-1], source, token, length, place).run(inputs)
            token = logits[:, -1:].argmax(-1)
            written.append(token)
        return torch.cat(written, dim=1)
