"""The textbook loop, written plainly: what ours is measured against.

Stored sums, a DataLoader, `nn.Transformer` as it comes (post-norm), Adam at 1e-3, a start token of its own.
No trick of ours is in it, and nothing that would slow it down either: no dropout, no logging, one pass of
the data an epoch, and the thread count that is fastest for it.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway.models import EncoderDecoder, Site
from headway.positions.sinusoidal import sinusoids
from headway.progress import Watch
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
        written = torch.cat((torch.full_like(answer[:, :1], self.start), answer[:, :-1]), dim=1)
        x = self.embed(source) + self.positions[: source.shape[1]]
        y = self.embed(written) + self.positions[: written.shape[1]]
        return self.unembed(self.transformer(x, y, tgt_mask=self.causal, tgt_is_causal=True))


class TextbookCopy(nn.Module):
    """An adder of ours in the modules that PyTorch ships, with the same weights: `nn.Transformer`, pre-norm."""

    def __init__(self, ours: EncoderDecoder) -> None:
        super().__init__()
        config, self.shifted = ours.config, ours.shifted
        self.embed = nn.Embedding(config.vocabulary, config.d_model)
        shape = (config.d_model, config.heads, config.layers, config.decoder_layers, config.d_ff)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pre-norm has no nested tensors, it says
            self.transformer = nn.Transformer(*shape, dropout=0.0, batch_first=True, norm_first=True)
        self.unembed = nn.Linear(config.d_model, config.vocabulary)
        self.source_positions = nn.Parameter(ours.source_positions.table.detach().clone())  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        self.answer_positions = nn.Parameter(ours.answer_positions.table.detach().clone())  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        self.embed.load_state_dict(ours.tokens.state_dict())
        self.unembed.load_state_dict(ours.unembed.state_dict())
        self.transformer.encoder.norm.load_state_dict(ours.encoder_norm.state_dict())  # pyright: ignore[reportOptionalMemberAccess]
        self.transformer.decoder.norm.load_state_dict(ours.decoder_norm.state_dict())  # pyright: ignore[reportOptionalMemberAccess]
        self.sites: dict[Site, nn.MultiheadAttention] = {}
        for layer, block in zip(self.transformer.encoder.layers, ours.encoder, strict=True):
            self._take(layer, block, {"self": (layer.self_attn, layer.norm1)}, layer.norm2)
        for layer, block in zip(self.transformer.decoder.layers, ours.decoder, strict=True):
            attentions = {"self": (layer.self_attn, layer.norm1), "cross": (layer.multihead_attn, layer.norm2)}
            self._take(layer, block, attentions, layer.norm3)

    @torch.no_grad()
    def _take(self, layer: Any, block: Any, attentions: dict[str, Any], last_norm: Any) -> None:
        for kind, (theirs, norm) in attentions.items():
            site = block.attentions[kind]
            theirs.in_proj_weight.copy_(torch.cat((site.query, *site.key_value)))
            theirs.in_proj_bias.zero_()
            theirs.out_proj.load_state_dict(site.out.state_dict())
            norm.load_state_dict(block.norms[kind].state_dict())
            self.sites[site.site] = theirs
        last_norm.load_state_dict(block.norms["feed"].state_dict())
        layer.linear1.load_state_dict(block.feed.into.state_dict())
        layer.linear2.load_state_dict(block.feed.out.state_dict())

    def forward(self, source: Tensor, answer: Tensor) -> Tensor:
        written = self.shifted(answer)
        x = self.embed(source) + self.source_positions[: source.shape[1]]
        y = self.embed(written) + self.answer_positions[: written.shape[1]]
        causal = nn.Transformer.generate_square_subsequent_mask(written.shape[1], device=source.device)
        return self.unembed(self.transformer(x, y, tgt_mask=causal, tgt_is_causal=True))


class TextbookSorter(nn.Module):
    """An encoder that says whether a sequence is sorted: `nn.TransformerEncoder`, pre-norm, mean pooling."""

    def __init__(self, values: int, positions: str, longest: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(values, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pre-norm has no nested tensors, it says
            self.encoder = nn.TransformerEncoder(layer, 4, norm=nn.LayerNorm(128))
        self.head = nn.Linear(128, 2)
        tables = {
            "sinusoidal": sinusoids(torch.arange(longest), 128).float(),
            "learned": torch.randn(longest, 128) * 0.5,
            "none": torch.zeros(longest, 128),
        }
        self.positions = nn.Parameter(tables[positions], requires_grad=positions == "learned")

    def forward(self, source: Tensor) -> Tensor:
        x = self.embed(source) + self.positions[: source.shape[1]]
        return self.head(self.encoder(x).mean(1))


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
