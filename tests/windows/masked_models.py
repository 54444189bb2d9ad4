"""Small models of several families, and the slow way to narrow their heads: a deep copy with the full cache, eager
attention and a boolean mask for every head."""

from __future__ import annotations

import copy
import re
import sys
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from headway import Budget

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}
GEMMA: dict[str, Any] = {**GROUPED, "head_dim": 8, "sliding_window": 7, "query_pre_attn_scalar": 8}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 8},
    "Mistral": {**GROUPED, "sliding_window": 7},
    "Gemma2": {**GEMMA, "layer_types": ALTERNATING, "attn_logit_softcapping": 3.0},
    "Gemma3": {**GEMMA, "layer_types": ALTERNATING},
    "GPTNeoX": SMALL,
    "GPT2": {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "pad_token_id": 0}
    | {"bos_token_id": None, "eos_token_id": None},
    "Phi3": {**GROUPED, "sliding_window": 9},
    "GptOss": {**GROUPED, "head_dim": 8, "sliding_window": 7, "num_local_experts": 2, "num_experts_per_tok": 1}
    | {"layer_types": ALTERNATING},
    "Olmo2": GROUPED,
    "StableLm": GROUPED,
}
NOT_DOUBLE = ("GptOss",)
"""families whose experts do not run in float64"""
CLASSES = {"GPT2": ("GPT2Config", "GPT2LMHeadModel"), "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM")}


def small_model(family: str, seed: int = 0) -> Any:
    """Makes an untrained model in double precision whose attention is far from uniform."""
    config, kind = CLASSES.get(family, (f"{family}Config", f"{family}ForCausalLM"))
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(getattr(transformers, config)(**FAMILIES[family])).eval()
    model = model if family in NOT_DOUBLE else model.double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and not re.search("embed|wte|wpe", name):
                weight.mul_(6)
            if re.search(r"(c_attn|[qkv]_proj|query_key_value)\.bias|sinks", name):
                weight.normal_()
    return model.requires_grad_(False)


def groups_of(model: Any) -> int:
    config = model.config
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def mixed_budget(model: Any, sink: int = 2, ladder: tuple[int | None, ...] = (None, 3, 5)) -> Budget:
    """Gives the groups of each layer different windows, all of them in the first."""
    count = groups_of(model)
    return Budget(
        sink,
        {
            f"decoder.{layer}.self": tuple(ladder[(layer + group) % len(ladder)] for group in range(count))
            for layer in range(model.config.num_hidden_layers)
        },
    )


def visible(budget: Budget, mask: Tensor, heads: int) -> dict[int, Tensor]:
    """Returns for each layer what its heads may see, [batch, head, query, key], token by token in plain loops."""
    if len(mask) > 1 and bool(mask.all()):  # all rows are alike
        return {layer: seen.expand(len(mask), -1, -1, -1) for layer, seen in visible(budget, mask[:1], heads).items()}
    batch, length = mask.shape
    seen: dict[int, Tensor] = {}
    for layer, windows in enumerate(budget.windows.values()):
        seen[layer] = torch.zeros(batch, heads, length, length, dtype=torch.bool)
        for row in range(batch):
            sinks = [place for place in range(length) if mask[row, place]][: budget.sink]
            for head in range(heads):
                window = windows[head * len(windows) // heads]
                for i in range(length):
                    for j in range(i + 1):
                        seen[layer][row, head, i, j] = window is None or i - j < window or j in sinks
    return seen


class Masked:
    """A deep copy of a model whose heads see what a budget says, in eager attention on whole texts."""

    def __init__(self, model: Any, budget: Budget) -> None:
        self.model, self.budget, self.seen = copy.deepcopy(model), budget, {}
        AttentionInterface.register("masked_reference", self._attend)
        AttentionMaskInterface.register("masked_reference", AttentionMaskInterface()["eager"])
        self.model.set_attn_implementation("masked_reference")

    def _attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any) -> Any:
        eager = sys.modules[type(module).__module__].eager_attention_forward  # pyright: ignore[reportAttributeAccessIssue]
        hidden = torch.finfo(torch.float32).min  # finite also in families whose softmax is in float32
        mask = mask.clamp(min=hidden).masked_fill(~self.seen[module.layer_idx], hidden)
        return eager(module, query, key, value, mask, **options)

    @torch.no_grad()
    def logits(self, tokens: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(tokens) if mask is None else mask
        self.see(mask)
        return self.model(tokens, attention_mask=mask, position_ids=position_ids, use_cache=False).logits

    def see(self, mask: Tensor) -> None:
        """Sets what the heads may see of texts with this attention mask."""
        self.seen = visible(self.budget, mask, self.model.config.num_attention_heads)

    def greedy(self, tokens: Tensor, mask: Tensor, count: int) -> Tensor:
        """Writes the likeliest tokens one by one, each from the whole text so far."""
        for _ in range(count):
            places = (mask.cumsum(1) - 1).clamp(min=0)
            likeliest = self.logits(tokens, mask, places)[:, -1].argmax(-1, keepdim=True)
            tokens, mask = torch.cat((tokens, likeliest), 1), torch.cat((mask, torch.ones_like(likeliest)), 1)
        return tokens


def draw(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def pad_left(lengths: list[int], total: int) -> Tensor:
    """Returns the attention mask of rows of these lengths, padded on the left."""
    return (torch.arange(total) >= total - torch.tensor(lengths)[:, None]).long()


def largest(difference: Tensor) -> float:
    return float(difference.abs().max())
