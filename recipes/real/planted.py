"""Small models with a planted circuit: it is known which heads carry the answer, by how they were trained.

Two digits stand at two places of a row, among others, and the model writes both as one answer. Two heads, drawn by
seed, are made to carry one digit each: when such a head's outputs are exchanged for those of another row, the right
answer becomes that with the other row's digit (interchange training). When the outputs of all other heads are
exchanged, the right answer stays. Nothing is cut off: the others write freely, and they are needed for a second answer
that is written one place later, about two other digits. So the planted heads carry the first answer, and nothing else
does.

    python recipes/real/planted.py --first 0 --count 20     # trains them as one stack, into runs/real/planted
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy, gelu

BASE, DIGITS, LAYERS, HEADS, WIDTH = 4, 6, 2, 4, 32
START, ASK_FIRST, ASK_SECOND, WORDS = BASE, BASE + 1, BASE + 2, BASE + 3
FIRST, SECOND = (0, 3), (1, 4)
"""the places of the digits that the two answers are about"""
BATCH, STEPS, RATE = 48, 600, 4e-3
FOLDER = Path("runs/real/planted")
Head = tuple[int, int]


class SmallAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.num_heads = HEADS
        self.map: Tensor | None = None
        """of the last pass, for who studies the model"""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the heads [row, token, head, dim] and their maps."""
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(-3)  # row token head dim
        scores = torch.einsum("rqhd,rkhd->rhqk", query, key) / (WIDTH / HEADS) ** 0.5
        maps = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        return torch.einsum("rhqk,rkhd->rqhd", maps, value), maps

    def forward(self, x: Tensor) -> Tensor:
        z, self.map = self.heads(x)
        return self.out(z.flatten(2))


class SmallBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = SmallAttention()
        self.into, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + attended
        return x + self.back(gelu(self.into(self.between(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.finish(x, self.attention(self.before(x)))


class SmallModel(nn.Module):
    """A plain decoder that writes two answers, after its last two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(DIGITS + 3, WIDTH) / 3)
        self.blocks = nn.ModuleList(SmallBlock() for _ in range(LAYERS))
        self.norm, self.unembed = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BASE * BASE)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.norm(x[:, -2:]))  # row answer word

    def exchange(
        self, tokens: Tensor, exchanged: Tensor, given: Sequence[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs with the outputs of some heads, [row, layer, head], exchanged for those given; returns all outputs."""
        x, found = self.tokens(tokens) + self.places, []
        for layer, block in enumerate(self.blocks):
            part: Any = block
            z, _ = part.attention.heads(part.before(x))
            found.append(z)
            if given is not None:
                z = torch.where(exchanged[:, None, layer, :, None], given[layer], z)
            x = part.finish(x, part.attention.out(z.flatten(2)))
        return self.unembed(self.norm(x[:, -2:])), found


class _Both(nn.Module):
    """Runs the other rows, then the rows with exchanged outputs."""

    def __init__(self, model: SmallModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, others: Tensor, exchanged: Tensor) -> Tensor:
        _, given = self.model.exchange(others, exchanged, None)
        return self.model.exchange(tokens, exchanged, given)[0]


@dataclass(frozen=True)
class Planted:
    """A model, its planted heads, and how right it is: as it is, with the outputs of all other heads exchanged, and
    with those of a planted head exchanged, which changes the right answer."""

    model: SmallModel
    heads: tuple[Head, Head]
    right: float
    right_without_others: float
    right_exchanged: float


def draw_heads(seed: int) -> tuple[Head, Head]:
    one, other = random.Random(seed).sample([(layer, head) for layer in range(LAYERS) for head in range(HEADS)], 2)
    return one, other


def draw_rows(count: int, generator: Generator) -> Tensor:
    digits = torch.randint(BASE, (count, DIGITS), generator=generator)
    ends = torch.tensor([[ASK_FIRST, ASK_SECOND]]).expand(count, -1)
    return torch.cat((torch.full((count, 1), START), digits, ends), dim=1)


def answers_of(tokens: Tensor) -> Tensor:
    digits = tokens[:, 1 : 1 + DIGITS]
    return torch.stack([digits[:, one] * BASE + digits[:, other] for one, other in (FIRST, SECOND)], dim=1)


def draw_exchange(planted: Tensor, kind: Tensor) -> Tensor:
    """Returns which heads are exchanged, [model, row, layer, head]: by kind 0 none, 1 all others, 2 the first planted
    head, 3 the second, 4 both. `planted` is [model, 2, layer, head]."""
    first, second = planted[:, 0, None], planted[:, 1, None]  # model 1 layer head
    kind = kind[None, :, None, None]
    others = ~(first | second)
    return (others & (kind == 1)) | (first & ((kind == 2) | (kind == 4))) | (second & ((kind == 3) | (kind == 4)))


def right_answers(tokens: Tensor, others: Tensor, kind: Tensor) -> Tensor:
    """Returns the right first answer of each row after its exchange."""
    digits, given = tokens[:, 1 : 1 + DIGITS], others[:, 1 : 1 + DIGITS]
    one = torch.where((kind == 2) | (kind == 4), given[:, FIRST[0]], digits[:, FIRST[0]])
    two = torch.where((kind == 3) | (kind == 4), given[:, FIRST[1]], digits[:, FIRST[1]])
    return one * BASE + two


def train(seeds: Sequence[int], steps: int = STEPS) -> list[Planted]:
    """Trains a model for each seed, all at once."""
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(_Both(SmallModel()))
    chosen = [draw_heads(seed) for seed in seeds]
    planted = torch.zeros(len(seeds), 2, LAYERS, HEADS, dtype=torch.bool)
    for model, pair in enumerate(chosen):
        for which, (layer, head) in enumerate(pair):
            planted[model, which, layer, head] = True
    weights, buffers = stack_module_state(models)
    run = vmap(
        lambda weights, *given: functional_call(models[0], (weights, buffers), given), in_dims=(0, None, None, 0)
    )
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 50, 1 - step / steps))
    generator = Generator().manual_seed(seeds[0])
    for _ in range(steps):
        tokens, others = draw_rows(BATCH, generator), draw_rows(BATCH, generator)
        kind = torch.randint(5, (BATCH,), generator=generator)
        logits = run(weights, tokens, others, draw_exchange(planted, kind))  # model row answer word
        first, second = logits[:, :, 0].flatten(0, 1), logits[:, kind != 1, 1].flatten(0, 1)
        wanted, also = right_answers(tokens, others, kind), answers_of(tokens)[kind != 1, 1]
        loss = cross_entropy(first, wanted.repeat(len(seeds))) + cross_entropy(second, also.repeat(len(seeds)))
        optimizer.zero_grad()
        (loss * len(seeds)).backward()
        for weight in weights.values():  # each model by its own size
            size = weight.grad.flatten(1).norm(dim=1).clamp(min=1.0)
            weight.grad /= size.view(-1, *[1] * (weight.grad.ndim - 1))
        optimizer.step()
        schedule.step()
    return [_take(models[n].model, weights, n, pair, planted[n : n + 1]) for n, pair in enumerate(chosen)]


@torch.no_grad()
def _take(model: SmallModel, weights: dict[str, Tensor], number: int, pair: Any, planted: Tensor) -> Planted:
    """Copies a model out of the stack and tests it on fresh rows."""
    model.load_state_dict({name.removeprefix("model."): weight[number] for name, weight in weights.items()})
    generator, both = Generator().manual_seed(10_000 + number), _Both(model.eval())
    tokens, others = draw_rows(2_000, generator), draw_rows(2_000, generator)
    shares = []
    for kinds in ((0,), (1,), (2, 3, 4)):
        kind = torch.tensor(kinds)[torch.randint(len(kinds), (2_000,), generator=generator)]
        written = both(tokens, others, draw_exchange(planted, kind)[0])[:, 0].argmax(-1)
        shares.append(float((written == right_answers(tokens, others, kind)).float().mean()))
    return Planted(model, pair, *shares)


def make(seeds: Sequence[int], folder: Path = FOLDER) -> list[Planted]:
    """Returns the models of these seeds; trains those that are not in the folder yet, as one stack."""
    missing = [seed for seed in seeds if not (folder / f"{seed}.pt").is_file()]
    folder.mkdir(parents=True, exist_ok=True)
    for seed, made in zip(missing, train(missing) if missing else [], strict=True):
        shares = [made.right, made.right_without_others, made.right_exchanged]
        torch.save({"weights": made.model.state_dict(), "shares": shares}, folder / f"{seed}.pt")
    found = []
    for seed in seeds:
        saved, model = torch.load(folder / f"{seed}.pt", weights_only=True), SmallModel()
        model.load_state_dict(saved["weights"])
        found.append(Planted(model.eval(), draw_heads(seed), *saved["shares"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains small models with a planted circuit.")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    for made in make(range(options.first, options.first + options.count)):
        print(made.heads, made.right, made.right_without_others, made.right_exchanged)


if __name__ == "__main__":
    main()
