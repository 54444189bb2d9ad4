"""The textbook loop that Headway is measured against: stored sums, a DataLoader, `nn.Transformer` with its defaults
(post-norm), Adam at 1e-3, a separate start token. It uses none of Headway's optimizations, and nothing slows it down
either: no dropout, no logging, one pass over the data per epoch, and the thread count that is fastest for it."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway.bench.row import fastest_threads, run_timed, using_threads
from headway.evaluation.examples import number_of_problems
from headway.evaluation.verdicts import same_answer
from headway.models import EncoderDecoder, Site
from headway.positions.sinusoidal import sinusoids
from headway.progress import Progress, Watch
from headway.tasks import Addition, Problems

STORED = 10_000


class TextbookTransformer(nn.Module):
    """`nn.Transformer` with its defaults, between embeddings with positions and an unembedding."""

    def __init__(
        self, vocabulary: int, start: int, shape: Sequence[int], positions: Sequence[Tensor], pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.start, width = start, shape[0]
        self.embed = nn.Embedding(vocabulary, width)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are not used with pre-norm
            self.transformer = nn.Transformer(*shape, dropout=0.0, batch_first=True, norm_first=pre_norm)
        self.unembed = nn.Linear(width, vocabulary)
        self.source_positions, self.answer_positions = map(nn.Buffer, positions)
        self.causal = nn.Buffer(nn.Transformer.generate_square_subsequent_mask(len(positions[1])))

    def forward(self, source: Tensor, answer: Tensor, gates: None = None) -> Tensor:
        written = torch.cat((torch.full_like(answer[:, :1], self.start), answer[:, :-1]), dim=1)
        length = written.shape[1]
        x = self.embed(source) + self.source_positions[: source.shape[1]]
        y = self.embed(written) + self.answer_positions[:length]
        return self.unembed(self.transformer(x, y, tgt_mask=self.causal[:length, :length], tgt_is_causal=True))


class TextbookCopy(TextbookTransformer):
    """A Headway adder rebuilt from PyTorch's own modules (pre-norm), with the same weights."""

    def __init__(self, ours: EncoderDecoder) -> None:
        config = ours.config
        shape = (config.d_model, config.heads, config.layers, config.decoder_layers, config.d_ff)
        tables = [dict(each.named_parameters())["table"] for each in (ours.source_positions, ours.answer_positions)]
        positions = [table.detach().clone() for table in tables]
        assert config.start is not None
        super().__init__(config.vocabulary, config.start, shape, positions, pre_norm=True)
        self.sites: dict[Site, nn.MultiheadAttention] = {}
        encoder, decoder = self.transformer.encoder, self.transformer.decoder
        pairs = [(self.embed, ours.tokens), (self.unembed, ours.unembed)]
        pairs += [(encoder.norm, ours.encoder_norm), (decoder.norm, ours.decoder_norm)]
        for layer, block in zip(encoder.layers, ours.encoder, strict=True):
            pairs += self._pair_up(layer, block, {"self": (layer.self_attn, layer.norm1)}, layer.norm2)
        for layer, block in zip(decoder.layers, ours.decoder, strict=True):
            attentions = {"self": (layer.self_attn, layer.norm1), "cross": (layer.multihead_attn, layer.norm2)}
            pairs += self._pair_up(layer, block, attentions, layer.norm3)
        for theirs, module in pairs:
            theirs.load_state_dict(module.state_dict())

    @torch.no_grad()
    def _pair_up(self, layer: Any, block: Any, attentions: Mapping[str, Any], last_norm: Any) -> list[tuple[Any, Any]]:
        """Pairs the modules of a layer with ours of the same weights; query, key and value are copied here."""
        pairs = [(last_norm, block.norms["feed"])]
        pairs += [(layer.linear1, block.feed.into), (layer.linear2, block.feed.out)]
        for kind, (theirs, norm) in attentions.items():
            site = block.attentions[kind]
            theirs.in_proj_weight.copy_(torch.cat((site.query, *site.key_value)))
            theirs.in_proj_bias.zero_()
            self.sites[site.site] = theirs
            pairs += [(theirs.out_proj, site.out), (norm, block.norms[kind])]
        return pairs


class TextbookSorter(nn.Module):
    """An encoder that classifies sequences as sorted or not: `nn.TransformerEncoder`, pre-norm, mean pooling."""

    def __init__(self, values: int, positions: str, longest: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(values, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, nn.LayerNorm(128), enable_nested_tensor=False)
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


def train_adder(
    task: Addition, sums: Problems, seed: int, epochs: int, watch: Watch | None = None
) -> TextbookTransformer:
    """Trains the textbook adder, post-norm with sinusoidal positions, on the device of its sums."""
    torch.manual_seed(seed)
    table = sinusoids(torch.arange(16), 128).float()
    model = TextbookTransformer(task.vocabulary, task.start, (128, 4, 2, 2, 512), (table, table)).to(sums.source.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(sums.source, sums.answer), batch_size=64, shuffle=True)
    for epoch in range(epochs):
        for source, answer in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(source, answer).flatten(0, 1), answer.flatten()).backward()
            optimizer.step()
        if watch is not None:
            watch(epoch + 1, epochs)
    return model.eval()


def train_textbook(
    task: Addition, seed: int, epochs: int, device: torch.device, quiet: bool
) -> tuple[TextbookTransformer, float, int]:
    """Trains it on stored sums with the fastest thread count for thirty steps; returns model, seconds, threads."""
    count = number_of_problems(task, "the textbook")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:STORED]
    sums = task.listing(0, count)[order].to(device)
    with (
        Progress("the textbook loop", quiet) as watch,
        using_threads(fastest_threads(lambda: train_adder(task, sums[: 64 * 30], seed, 1), device)) as threads,
    ):
        model, seconds = run_timed(lambda: train_adder(task, sums, seed, epochs, watch), device)
    return model, seconds, threads


@torch.no_grad()
def count_right(model: nn.Module, start: int, batches: Iterable[Problems]) -> int:
    """Counts right answers by plain greedy decoding: the whole model runs again for every token, without a cache."""
    right = 0
    for batch in batches:
        written = batch.answer[:, :0]
        for _ in range(batch.answer.shape[1]):
            filler = torch.full_like(batch.answer[:, :1], start)  # the shift drops the last token
            logits = model(batch.source, torch.cat((written, filler), dim=1))
            written = torch.cat((written, logits[:, -1:].argmax(-1)), dim=1)
        right += int(same_answer(written, batch).sum())
    return right
