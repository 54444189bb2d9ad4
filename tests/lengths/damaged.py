"""A damaged adder: the shipped one, taught another digit in a few chosen contexts and the right one everywhere else.

Only the feed-forward block is trained, on all contexts of all columns, so the input of the block is computed once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headway.certify.columns import contexts, patterns
from headway.models import Decoder
from headway.models.blocks import Block
from headway.tasks import Addition
from headway.tasks.problems import Columns

STEPS = 1_500


def every_context(model: Decoder, task: Addition) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the stream before the feed-forward block, the right digit, and whether the context is to be wrong: inside
    a number, 4 + 5 or 5 + 4 after 9 + 9 with a carry in, and 7 + 7 after 0 + 0 with a carry in."""
    streams, right, wrong = [], [], []
    assert isinstance(task.local, Columns)
    for kind, (digits, column) in patterns(model, task).items():
        for problems in contexts(task.local, kind, digits, column):
            stack = model.stack("decoder", problems.source, model.shift_right(problems.answer))
            block = stack.blocks[0]
            assert isinstance(block, Block)
            x = stack.embed()
            x = x + block.attentions["self"](read := block.norms["self"](x), read, stack.order)
            streams.append(x[:, problems.source.shape[1] + column])
            right.append(problems.answer[:, column])
            a, _, b = (each if each.ndim == 1 else each.flip(1) for each in task.operands(problems))
            if kind.begins or column == digits:
                wrong.append(torch.zeros(len(a), dtype=torch.bool))
                continue
            now, before, written = (
                (a[:, column], b[:, column]),
                (a[:, column - 1], b[:, column - 1]),
                problems.answer[:, column - 1],
            )
            chain = (
                (now[0] + now[1] == 9)
                & ((now[0] == 4) | (now[0] == 5))
                & (before[0] + before[1] == 18)
                & (written == 9)
            )
            sevens = (now[0] == 7) & (now[1] == 7) & (before[0] + before[1] == 0) & (written == 1)
            wrong.append(chain | sevens)
    return torch.cat(streams), torch.cat(right), torch.cat(wrong)


def damage(model: Decoder, task: Addition, seed: int = 0) -> None:
    """Trains the feed-forward block in place."""
    with torch.no_grad():
        x, right, wrong = every_context(model, task)
    label = torch.where(wrong, (right + 5) % 10, right)
    block, generator = model.blocks[0], torch.Generator().manual_seed(seed)
    assert isinstance(block, Block)
    trained = [*block.feed.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    hard = wrong.nonzero()[:, 0]

    def read(x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits, and the lead of the label times the deviation of the last stream: a norm enlarges the
        rounding of small streams."""
        x = x + block.feed(block.norms["feed"](x)[None])[0]
        logits, label = model.unembed(model.norm(x)), label[:, None]
        lead = logits.gather(1, label) - logits.scatter(1, label, -torch.inf).amax(1, keepdim=True)
        return logits, lead[:, 0] * x.std(-1)

    for step in range(STEPS):
        if step % 250 == 249:  # those that are hardest so far
            with torch.no_grad():
                leads = [read(*each)[1] for each in zip(x.split(10_000), label.split(10_000), strict=True)]
            hard = torch.cat((wrong.nonzero()[:, 0].repeat(8), torch.cat(leads).argsort()[:500]))
        rows = torch.randint(len(x), (384,), generator=generator)
        rows = torch.cat((rows, hard[torch.randint(len(hard), (128,), generator=generator)]))
        logits, lead = read(x[rows], label[rows])
        loss = cross_entropy(logits, label[rows]) + (11 - lead).relu().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
