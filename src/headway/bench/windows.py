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

SINK, WARM = 4, 4
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
    decode_seconds: float
    tokens_per_second: float


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
            "speedup_over_dynamic": self.dynamic.decode_seconds / self.windows.decode_seconds,
            "speedup_over_ours_full": self.ours_full.decode_seconds / self.windows.decode_seconds,
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
    """Reads a prompt in chunks and decodes greedily after it, with each kind of cache."""
    from transformers import DynamicCache

    budget = half_budget(size)
    full = Budget.uniform(SINK, None, dict.fromkeys(budget.windows, size.groups))
    prompt = draw_tokens(model, size.batch, size.length)
    with Progress("decoding with three caches", quiet) as watch:
        dynamic = _decode(model, prompt, DynamicCache(config=model.config), size, device)
        watch(1, 3)
        with make_cache(model, full) as cache:
            ours_full = _decode(model, prompt, cache, size, device)
        watch(2, 3)
        with make_cache(model, budget) as cache:
            predicted = cache.predict_bytes(size.length, size.batch)
            whole = cache.predict_bytes(size.length, size.batch, full=True)
            windows = _decode(model, prompt, cache, size, device)
        watch(3, 3)
    return CacheComparison(predicted / whole, predicted, whole, windows, dynamic, ours_full)


def _decode(model: Any, prompt: Tensor, cache: Any, size: CacheSize, device: torch.device) -> CacheTimes:
    def prefill() -> Tensor:
        for start in range(0, size.length, CHUNK):
            hidden = model.base_model(prompt[:, start : start + CHUNK], past_key_values=cache).last_hidden_state
        return model.get_output_embeddings()(hidden[:, -1:]).argmax(-1)

    def write(token: Tensor, count: int) -> Tensor:
        for _ in range(count):
            token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
        return token

    begun = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    token, read = run_timed(prefill, device)
    if device.type == "cuda":
        stored = torch.cuda.memory_allocated(device) - begun - token.nbytes
    elif (stored := getattr(cache, "nbytes", None)) is None:
        stored = sum(each.nbytes for layer in cache.layers for each in (layer.keys, layer.values))
    token = write(token, WARM)
    _, seconds = run_timed(lambda: write(token, size.new), device)
    return CacheTimes(stored, read, seconds, size.batch * size.new / seconds)


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
        found.windows.decode_seconds,
        f"transformers' DynamicCache: {size.new} tokens after {size.length:,}, {size.batch} texts at once",
        found.dynamic.decode_seconds,
        same_result=same,
        largest_difference=difference,
        size=name,
        dtype=size.dtype,
        **found.to_json(),
    )
