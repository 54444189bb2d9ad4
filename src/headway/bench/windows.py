"""A benchmark of the cache of windows: memory and decoding beside the full cache, in one process, on random weights."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from headway.api.caching import cache as make_cache
from headway.attach.proofs import describe_difference, difference_of, limit_of
from headway.bench.row import Row, run_timed
from headway.machine import full_precision_matmul
from headway.progress import Progress
from headway.windows.budget import Budget
from headway.windows.proof import draw_tokens, masked_logits

SINK, WARM, ROUNDS = 4, 4, 8
"""first tokens that narrow groups see; tokens written before time is taken; rounds of decoding, of which the fastest
counts, as other work slows some of them"""
CHUNK = 2_048
"""tokens of a prompt that are read at once"""


@dataclass(frozen=True)
class CacheSize:
    """A model and a text to decode after."""

    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    words: int
    length: int
    batch: int
    new: int
    recent: int
    dtype: str


SIZES = {
    "small": CacheSize(4, 256, 512, 8, 4, 1_000, 4_096, 2, 64, 64, "float32"),
    "1.5B": CacheSize(28, 1_536, 8_960, 12, 2, 151_936, 32_768, 16, 128, 256, "bfloat16"),
}
"""the second is of Qwen2's shape; 16 texts at once, as one text's cache is smaller than the weights"""


@dataclass(frozen=True)
class CacheTimes:
    """Decoding with one kind of cache."""

    bytes: int
    """of the stored keys and values, before decoding"""
    prefill_seconds: float
    step_seconds: float
    """of one token of every text, in the fastest round"""
    tokens_per_second: float
    """of all texts"""


@dataclass(frozen=True)
class CacheComparison:
    """Decoding with windows, with the library's full cache, and with a cache of ours that keeps everything."""

    cache_share: float
    predicted_bytes: int
    """with windows"""
    full_bytes: int
    windows: CacheTimes
    dynamic: CacheTimes
    ours_full: CacheTimes

    def to_json(self) -> dict[str, float | int | dict[str, float | int]]:
        speed = {
            "predicted_over_measured": self.predicted_bytes / self.windows.bytes,
            "speedup_over_dynamic": self.dynamic.step_seconds / self.windows.step_seconds,
            "speedup_over_ours_full": self.ours_full.step_seconds / self.windows.step_seconds,
        }
        return {**asdict(self), **speed}


def make_model(size: CacheSize, device: torch.device, seed: int = 0) -> Any:
    """Makes a model with random weights and grouped queries."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=size.words,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.groups,
        max_position_embeddings=size.length + 2 * size.new,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(getattr(torch, size.dtype)).eval()


def half_budget(size: CacheSize, recent: int | None = None) -> Budget:
    """Narrows every other group of every layer."""
    sites = range(size.layers)
    levels = {f"decoder.{n}.self": tuple((n + group) % 2 == 0 for group in range(size.groups)) for n in sites}
    return Budget.of_levels(SINK, (recent or size.recent, None), levels)


@torch.no_grad()
def compare_caches(model: Any, size: CacheSize, device: torch.device, quiet: bool = True) -> CacheComparison:
    """Reads a prompt in chunks with each kind of cache, then decodes greedily with all of them in turns."""
    from transformers import DynamicCache

    budget = half_budget(size)
    full = Budget.uniform(SINK, None, dict.fromkeys(budget.windows, size.groups))
    prompt = draw_tokens(model, size.batch, size.length)
    with make_cache(model, full) as ours_full, make_cache(model, budget) as windows:
        runs = [
            _CacheRun(model, cache, size, device) for cache in (DynamicCache(config=model.config), ours_full, windows)
        ]
        with Progress("decoding with three caches", quiet) as watch:
            for number, run in enumerate(runs):
                run.read(prompt)
                watch(number + 1, len(runs) + ROUNDS)
            for number in range(ROUNDS):
                for run in runs:
                    run.write(max(1, size.new // ROUNDS))
                watch(len(runs) + number + 1, len(runs) + ROUNDS)
        predicted = windows.predict_bytes(size.length, size.batch)
        whole = windows.predict_bytes(size.length, size.batch, full=True)
    dynamic, ours, narrow = (run.times for run in runs)
    return CacheComparison(predicted / whole, predicted, whole, narrow, dynamic, ours)


class _CacheRun:
    """One cache, which reads a prompt and then writes a few tokens at a time."""

    def __init__(self, model: Any, cache: Any, size: CacheSize, device: torch.device) -> None:
        self.model, self.cache, self.size, self.device = model, cache, size, device
        self.bytes, self.read_seconds, self.steps = 0, 0.0, list[float]()

    def read(self, prompt: Tensor) -> None:
        """Reads the prompt in chunks and stores the bytes that the cache then takes; writes a few tokens to warm up."""

        def prefill() -> Tensor:
            for chunk in prompt[:, :-1].split(CHUNK, dim=1):
                self.model.base_model(chunk, past_key_values=self.cache)
            return self.model(prompt[:, -1:], past_key_values=self.cache).logits.argmax(-1)

        on_gpu = self.device.type == "cuda"
        begun = torch.cuda.memory_allocated(self.device) if on_gpu else 0
        self.token, self.read_seconds = run_timed(prefill, self.device)
        if on_gpu:
            self.bytes = torch.cuda.memory_allocated(self.device) - begun - self.token.nbytes
        elif (stored := getattr(self.cache, "nbytes", None)) is not None:
            self.bytes = stored
        else:
            self.bytes = sum(each.nbytes for layer in self.cache.layers for each in (layer.keys, layer.values))
        self.write(WARM)
        self.steps.clear()

    def write(self, count: int) -> None:
        def decode() -> None:
            for _ in range(count):
                logits = self.model(self.token, past_key_values=self.cache).logits
                self.token = logits[:, -1:].argmax(-1)

        self.steps.append(run_timed(decode, self.device)[1] / count)

    @property
    def times(self) -> CacheTimes:
        return CacheTimes(self.bytes, self.read_seconds, min(self.steps), self.size.batch / min(self.steps))


@torch.no_grad()
@full_precision_matmul()
def equals_masked(model: Any, size: CacheSize, recent: int = 8, tokens: int = 64) -> tuple[bool, str]:
    """Tells whether a text read in a chunk and token by token gives the logits of the masked model, and how nearly."""
    text, budget = draw_tokens(model, 2, tokens), half_budget(size, recent)
    mask = torch.ones_like(text)
    mask[1, : tokens // 4] = 0
    with make_cache(model, budget) as cache:
        half = tokens // 2
        parts = [model(text[:, :half], attention_mask=mask[:, :half], past_key_values=cache).logits]
        for n in range(half, tokens):
            parts.append(model(text[:, [n]], attention_mask=mask[:, : n + 1], past_key_values=cache).logits)
    real = mask.bool()
    masked, found = masked_logits(model, budget, text, mask)[real], torch.cat(parts, dim=1)[real]
    return difference_of(masked, found) <= limit_of(masked), describe_difference(masked, found)


def window_cache(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times decoding with half of the key-value groups narrowed, against the library's full cache."""
    name = "1.5B" if device.type == "cuda" else "small"
    size = SIZES[name]
    checked = make_model(SIZES["small"], device, seed)
    same, difference = equals_masked(checked, SIZES["small"])
    model = checked if name == "small" else make_model(size, device, seed)
    found = compare_caches(model, size, device, quiet)
    return Row(
        found.windows.step_seconds,
        f"transformers' DynamicCache: a token of {size.batch} texts after {size.length:,}, fastest of {ROUNDS} rounds",
        found.dynamic.step_seconds,
        same_result=same,
        largest_difference=difference,
        size=name,
        dtype=size.dtype,
        **found.to_json(),
    )
