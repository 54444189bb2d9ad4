"""The small, correct lab that every mistake of this museum starts from: plain PyTorch, trained in seconds.

An encoder-decoder (`Seq2Seq`) adds two 2-digit numbers, and an encoder (`Sorter`) classifies whether a sequence is
sorted. Each mistake changes one thing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway import Head, Problems, Site, Subject

PLUS, START = 10, 11
HEADS, WIDTH, ROWS = 4, 64, 2000


class Attention(nn.Module):
    """Attention in which each head's output is multiplied by its gate before the output projection mixes the heads."""

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
    def __init__(self, cross: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = Attention(), Attention() if cross else None
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms, self.dropout = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3)), nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        y = self.norms[0](x)
        x = x + self.dropout(self.self_attention(y, y, mask))
        if self.cross_attention is not None and memory is not None:
            x = x + self.dropout(self.cross_attention(self.norms[1](x), memory))
        return x + self.dropout(self.mlp(self.norms[2](x)))


class Seq2Seq(nn.Module):
    def __init__(self, layers: int = 1, dropout: float = 0.0) -> None:
        """`layers` is the number of decoder layers."""
        super().__init__()
        self.tokens = nn.Embedding(13, WIDTH)
        self.source_positions, self.answer_positions = nn.Embedding(12, WIDTH), nn.Embedding(12, WIDTH)
        self.encoder = Block(False, dropout)
        self.decoder = nn.ModuleList(Block(True, dropout) for _ in range(layers))
        self.norm, self.unembed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 13)

    def forward(self, source: Tensor, written: Tensor, causal: bool = True) -> Tensor:
        """Returns the logits after each token written so far, the start token first."""
        memory = self.encoder(self.tokens(source) + self.source_positions.weight[: source.shape[1]])
        length = written.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril() if causal else None
        x = self.tokens(written) + self.answer_positions.weight[:length]
        for block in self.decoder:
            x = block(x, memory, mask)
        return self.unembed(self.norm(x))

    @torch.no_grad()
    def generate(self, source: Tensor, length: int = 3, start: int = START) -> Tensor:
        """Decodes the answer token by token."""
        written = torch.full_like(source[:, :1], start)
        for _ in range(length):
            written = torch.cat((written, self(source, written)[:, -1:].argmax(-1)), dim=1)
        return written[:, 1:]


class Sorter(nn.Module):
    """Classifies a sequence: 1 means sorted."""

    def __init__(self, positions: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, WIDTH), nn.Embedding(max(positions, 1), WIDTH)
        self.has_positions = positions > 0
        self.blocks = nn.ModuleList(Block(False) for _ in range(2))
        self.norm, self.unembed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, source: Tensor, answer: Tensor | None = None) -> Tensor:
        x = self.tokens(source) + (self.positions.weight[: source.shape[1]] if self.has_positions else 0)
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.norm(x).amax(1))[:, None]


def digits(number: Tensor, count: int) -> Tensor:
    return torch.stack([number // 10**place % 10 for place in reversed(range(count))], dim=1)


def sums(rows: int, seed: int, held_out: bool | None = None) -> Problems:
    """Draws sums such as 4 2 + 1 9 = 0 6 1: all of them, only held-out ones, or none of those."""
    a, b = torch.randint(100, (2, 20 * rows), generator=torch.Generator().manual_seed(seed))
    wanted = torch.arange(20 * rows) if held_out is None else (is_held_out(a, b) == held_out).nonzero()[:, 0]
    return encode_sums(a[wanted[:rows]], b[wanted[:rows]])


def encode_sums(a: Tensor, b: Tensor) -> Problems:
    return Problems(torch.cat((digits(a, 2), torch.full((len(a), 1), PLUS), digits(b, 2)), dim=1), digits(a + b, 3))


def is_held_out(a: Tensor, b: Tensor) -> Tensor:
    """Tells which sums are in the tenth that training never shows."""
    return (731 * a + 379 * b) // 7 % 10 == 0


def sequences(rows: int, seed: int, length: int = 6, positive: float = 0.5) -> Problems:
    """Draws sequences of numbers below 20: sorted ones, and shuffled ones."""
    dice = torch.Generator().manual_seed(seed)
    source = torch.randint(20, (rows, length), generator=dice).sort(1).values
    mixed = source.gather(1, torch.rand(rows, length, generator=dice).argsort(1))
    sorted_ = torch.rand(rows, 1, generator=dice) < positive
    source = torch.where(sorted_, source, mixed)
    return Problems(source, (source.diff(dim=1) >= 0).all(1, keepdim=True).long())


def shifted(answer: Tensor, start: int = START) -> Tensor:
    """Returns the decoder's input: the start token and all but the last token of the answer."""
    return torch.cat((torch.full_like(answer[:, :1], start), answer[:, :-1]), dim=1)


def fit(model: nn.Module, loss_at: Callable[[int], Tensor], steps: int, rate: float = 5e-3) -> None:
    """Trains with AdamW, warm-up and decay; `loss_at(step)` is the loss on a fresh batch."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_at(step).backward()
        optimizer.step()
        schedule.step()
    model.eval()


@functools.cache
def trained_adder(seed: int = 0, steps: int = 500, start: int = START, layers: int = 1) -> Seq2Seq:
    torch.manual_seed(seed)
    model = Seq2Seq(layers)

    def loss_at(step: int) -> Tensor:
        problems = sums(128, 10_000 * seed + step, held_out=False)
        logits = model(problems.source, shifted(problems.answer, start))
        return F.cross_entropy(logits.flatten(0, 1), problems.answer.flatten())

    fit(model, loss_at, steps)
    return model


@functools.cache
def trained_without_start(steps: int = 500) -> Seq2Seq:
    """Trains as public code does: the input is the answer without its last digit, the target is without its first."""
    torch.manual_seed(0)
    model = Seq2Seq()

    def loss_at(step: int) -> Tensor:
        problems = sums(128, step, held_out=False)
        logits = model(problems.source, problems.answer[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), problems.answer[:, 1:].flatten())

    fit(model, loss_at, steps)
    return model


@functools.cache
def trained_sorter(seed: int = 0, steps: int = 200) -> Sorter:
    torch.manual_seed(seed)
    model = Sorter()

    def loss_at(step: int) -> Tensor:
        problems = sequences(128, 10_000 * seed + step, 5 + step % 4)
        return F.cross_entropy(model(problems.source)[:, 0], problems.answer[:, 0])

    fit(model, loss_at, steps, 3e-3)
    return model


def attentions(model: Seq2Seq) -> dict[Site, Attention]:
    found = {Site("encoder", 0, "self"): model.encoder.self_attention}
    for layer, block in enumerate(model.decoder):
        assert isinstance(block, Block)
        assert block.cross_attention is not None
        found[Site("decoder", layer, "self")] = block.self_attention
        found[Site("decoder", layer, "cross")] = block.cross_attention
    return found


def heads_of(model: Seq2Seq) -> tuple[Head, ...]:
    return tuple(Head(site, number) for site in attentions(model) for number in range(HEADS))


@torch.no_grad()
def logits_without(model: Seq2Seq, problems: Problems, heads: Collection[Head]) -> Tensor:
    """Returns the logits with these heads ablated."""
    for site, attention in attentions(model).items():
        attention.gates = torch.tensor([float(Head(site, number) not in heads) for number in range(HEADS)])
    logits = model(problems.source, shifted(problems.answer))
    for attention in attentions(model).values():
        attention.gates = torch.ones(HEADS)
    return logits


def exact(predicted: Tensor, problems: Problems) -> float:
    """Returns the share of answers that are right as a whole."""
    return float((predicted == problems.answer).all(1).float().mean())


def adder_subject(model: Seq2Seq) -> Subject:
    """Returns the adder as a subject with everything that the doctor can check, and nothing wrong."""

    def is_unseen(problems: Problems) -> Tensor:
        return is_held_out(*(problems.source[:, at] * 10 + problems.source[:, at + 1] for at in (0, 3)))

    return Subject(
        model,
        examples=sums(ROWS, 1_000_000),
        start=START,
        decode=model,
        generate=lambda problems: model.generate(problems.source),
        forced=lambda problems: model(problems.source, shifted(problems.answer)).argmax(-1),
        score=lambda problems: exact(model.generate(problems.source), problems),
        held_out=is_unseen,
        tables=[model.source_positions.weight, model.answer_positions.weight],
        trained_on=[sums(ROWS, 0, held_out=False)],
        heads=heads_of(model),
        ablate=lambda problems, heads: logits_without(model, problems, heads),
        projections={site: attention.out for site, attention in attentions(model).items()},
    )


def sorter_subject(model: nn.Module, examples: Problems) -> Subject:
    return Subject(
        model,
        examples=examples,
        score=lambda problems: exact(model(problems.source).argmax(-1), problems),
    )
