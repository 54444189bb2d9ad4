"""The two models of the engine, each in the ways people write them: attention by hand or PyTorch's own layers, the
causal mask as an argument or built inside, batch first or last. One set of weights serves all of them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway import Site

HEADS, WIDTH, HEAD_WIDTH = 4, 48, 12
SOURCE_ROWS, ANSWER_ROWS, SORTER_ROWS = 12, 8, 40
PLUS, START, PAD, TOKENS = 10, 11, 12, 13
NUMBERS, SORTER_PAD = 20, 20
Kind = Literal["self", "cross"]


def causal_mask(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


class Attention(nn.Module):
    """Attention written by hand; a head's output is multiplied by its gate before the output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gates = torch.ones(HEADS)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            layer(states).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer, states in ((self.query, x), (self.key, context), (self.value, context))
        )
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask) * self.gates[:, None, None]
        return self.out(z.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A layer written by hand, normed before each part; with `cross` it also attends to the encoder's output."""

    def __init__(self, cross: bool, dropout: float) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = Attention(), Attention() if cross else None
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norms, self.dropout = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 + cross)), nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None, keys: Tensor | None = None
    ) -> Tensor:
        """`keys` marks the source tokens that may be attended to."""
        seen = None if keys is None else keys[:, None, None]
        y = self.norms[0](x)
        x = x + self.dropout(self.self_attention(y, y, mask if memory is not None else seen))
        if self.cross_attention is not None and memory is not None:
            x = x + self.dropout(self.cross_attention(self.norms[1](x), memory, seen))
        return x + self.dropout(self.down(F.gelu(self.up(self.norms[-1](x)))))

    @property
    def projections(self) -> dict[Kind, nn.Module]:
        own: dict[Kind, nn.Module] = {"self": self.self_attention.out}
        if self.cross_attention is not None:
            own["cross"] = self.cross_attention.out
        return own


class TorchBlock(nn.Module):
    """The same layer made of PyTorch's own: nn.TransformerEncoderLayer or nn.TransformerDecoderLayer."""

    def __init__(self, cross: bool, dropout: float) -> None:
        super().__init__()
        kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
        self.layer = kind(WIDTH, HEADS, 2 * WIDTH, dropout, F.gelu, batch_first=True, norm_first=True)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None, keys: Tensor | None = None
    ) -> Tensor:
        unseen = None if keys is None else ~keys
        if memory is None:
            return self.layer(x, src_key_padding_mask=unseen)
        return self.layer(x, memory, None if mask is None else ~mask, memory_key_padding_mask=unseen)

    @property
    def projections(self) -> dict[Kind, nn.Module]:
        own: dict[Kind, nn.Module] = {"self": self.layer.self_attn.out_proj}
        if isinstance(self.layer, nn.TransformerDecoderLayer):
            own["cross"] = self.layer.multihead_attn.out_proj
        return own

    def take_weights(self, block: Block) -> None:
        """Copies the weights of a layer that was written by hand."""
        attentions = {"self_attn": block.self_attention, "multihead_attn": block.cross_attention}
        with torch.no_grad():
            for name, attention in attentions.items():
                if attention is not None:
                    own = getattr(self.layer, name)
                    parts = (attention.query, attention.key, attention.value)
                    own.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
                    own.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
                    own.out_proj.load_state_dict(attention.out.state_dict())
        self.layer.linear1.load_state_dict(block.up.state_dict())
        self.layer.linear2.load_state_dict(block.down.state_dict())
        for number, norm in enumerate(block.norms, 1):
            getattr(self.layer, f"norm{number}").load_state_dict(norm.state_dict())


class Adder(nn.Module):
    """An encoder-decoder that adds two numbers."""

    def __init__(self, dropout: float = 0.0, layers: str = "hand") -> None:
        super().__init__()
        block = Block if layers == "hand" else TorchBlock
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.source_positions = nn.Embedding(SOURCE_ROWS, WIDTH)
        self.answer_positions = nn.Embedding(ANSWER_ROWS, WIDTH)
        self.encoder, self.decoder = block(False, dropout), block(True, dropout)
        self.norm, self.unembed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)
        self.mask_inside, self.batch_first, self.has_positions = True, True, True
        self.pad: int | None = None

    def forward(self, source: Tensor, written: Tensor, mask: Tensor | None = None) -> Tensor:
        """Returns the logits after each token written so far."""
        if not self.batch_first:
            source, written = source.T, written.T
        if self.mask_inside:
            mask = causal_mask(written.shape[1])
        keys = None if self.pad is None else source != self.pad
        x = self.tokens(source)
        if self.has_positions:
            x = x + self.source_positions.weight[: source.shape[1]]
        memory = self.encoder(x, keys=keys)
        y = self.tokens(written) + self.answer_positions.weight[: written.shape[1]]
        logits = self.unembed(self.norm(self.decoder(y, mask, memory, keys)))
        return logits if self.batch_first else logits.transpose(0, 1)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def tables(self) -> list[Tensor]:
        source = [self.source_positions.weight] if self.has_positions else []
        return [*source, self.answer_positions.weight]


class Sorter(nn.Module):
    """An encoder that classifies a sequence: 1 means sorted."""

    def __init__(self, dropout: float = 0.0, layers: str = "hand") -> None:
        super().__init__()
        block = Block if layers == "hand" else TorchBlock
        self.tokens, self.positions = nn.Embedding(NUMBERS + 1, WIDTH), nn.Embedding(SORTER_ROWS, WIDTH)
        self.encoder, self.second = block(False, dropout), block(False, dropout)
        self.norm, self.unembed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)
        self.batch_first, self.has_positions = True, True
        self.pad: int | None = None

    def forward(self, source: Tensor, answer: Tensor | None = None) -> Tensor:
        if not self.batch_first:
            source = source.T
        keys = None if self.pad is None else source != self.pad
        x = self.tokens(source)
        if self.has_positions:
            x = x + self.positions.weight[: source.shape[1]]
        x = self.norm(self.second(self.encoder(x, keys=keys), keys=keys))
        if keys is not None:
            x = x.masked_fill(~keys[..., None], -1e4)
        logits = self.unembed(x.amax(1))[:, None]
        return logits if self.batch_first else logits.transpose(0, 1)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        return {"encoder": self.encoder, "second": self.second}

    @property
    def tables(self) -> list[Tensor]:
        return [self.positions.weight] if self.has_positions else []


Lab = Adder | Sorter


def projections_of(model: Lab) -> dict[Site, nn.Module]:
    """Returns the output projection of every site."""
    found = {}
    for layer, (name, block) in enumerate(model.blocks.items()):
        assert isinstance(block, Block | TorchBlock)
        stack, number = ("encoder", layer) if isinstance(model, Sorter) else (name, 0)
        found |= {Site(stack, number, kind): output for kind, output in block.projections.items()}
    return found


def rewrite(model: Lab, layers: str) -> Lab:
    """Returns a copy of a model that was written by hand, made of these layers."""
    dropout = next(m.p for m in model.modules() if isinstance(m, nn.Dropout))
    copy = type(model)(dropout, layers)
    copy.has_positions, copy.pad = model.has_positions, model.pad
    if layers == "hand":
        copy.load_state_dict(model.state_dict())
        return copy
    rest = {key: value for key, value in model.state_dict().items() if key.split(".")[0] not in model.blocks}
    copy.load_state_dict(rest, strict=False)
    for name, block in model.blocks.items():
        other = copy.blocks[name]
        assert isinstance(block, Block)
        assert isinstance(other, TorchBlock)
        other.take_weights(block)
    return copy
