"""The textbook loop, written plainly: what ours is measured against.

Stored sums, a DataLoader, `nn.Transformer` as it comes (post-norm), Adam at 1e-3, a start token of its own.
No trick of ours is in it, and nothing that would slow it down either: no dropout, no logging, one pass of
the data an epoch, and the thread count that is fastest for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway.evaluation.exact import Watch
from headway.positions.sinusoidal import sinusoids
from headway.tasks import Addition, Problems


class TextbookAdder(nn.Module):
    positions: Tensor
    causal: Tensor

    def __init__(self, task: Addition) -> None:
        super().__init__()
        self.start = task.start
        self.embed = nn.Embedding(task.vocabulary, 128)
        self.transformer = nn.Transformer(128, 4, 2, 2, 512, dropout=0.0, batch_first=True)
        self.unembed = nn.Linear(128, task.vocabulary)
        self.register_buffer("positions", sinusoids(torch.arange(16), 128).float())
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(4))

    def forward(self, source: Tensor, answer: Tensor, gates: None = None) -> Tensor:
        start = torch.full_like(answer[:, :1], self.start)
        written = torch.cat((start, answer[:, :-1]), dim=1)
        x = self.embed(source) + self.positions[: source.shape[1]]
        y = self.embed(written) + self.positions[: written.shape[1]]
        return self.unembed(self.transformer(x, y, tgt_mask=self.causal, tgt_is_causal=True))


@dataclass(frozen=True)
class Textbook:
    model: TextbookAdder
    seconds: float
    threads: int


def train_textbook(
    task: Addition, sums: Problems, seed: int, epochs: int, threads: int | None = None, watch: Watch | None = None
) -> Textbook:
    """Trains the textbook adder where its sums are; without `threads`, with as many as make it fastest."""
    threads = threads or _fastest_threads(task, sums)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model = TextbookAdder(task).to(sums.source.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(sums.source, sums.answer), batch_size=64, shuffle=True)
    began = time.perf_counter()
    for epoch in range(epochs):
        for source, answer in loader:
            optimizer.zero_grad()
            logits = model(source, answer)
            nn.functional.cross_entropy(logits.flatten(0, 1), answer.flatten()).backward()
            optimizer.step()
        if watch is not None:
            watch(epoch + 1, epochs)
    seconds = time.perf_counter() - began
    torch.set_num_threads(before)
    return Textbook(model.eval(), seconds, threads)


def _fastest_threads(task: Addition, sums: Problems) -> int:
    """The best of 1, 2, 4 … up to the cores there are, by the time of thirty steps."""
    few, most = sums[: 64 * 30], torch.get_num_threads()
    choices = [n for n in (1, 2, 4, 8) if n <= most]
    train_textbook(task, few, seed=0, epochs=1, threads=most)  # warm
    return min(choices, key=lambda n: train_textbook(task, few, seed=0, epochs=1, threads=n).seconds)


@torch.no_grad()
def decode_textbook(model: TextbookAdder | nn.Module, start: int, source: Tensor, length: int) -> Tensor:
    """Greedy decoding as it is usually written: the whole model again for every token, no cache."""
    written = source.new_full((len(source), 0), 0)
    for _ in range(length):
        filler = source.new_full((len(source), 1), start)  # the shift drops the last token
        logits = model(source, torch.cat((written, filler), dim=1))
        written = torch.cat((written, logits[:, -1:].argmax(-1)), dim=1)
    return written
