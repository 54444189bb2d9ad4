"""References that ablate the heads of a GPT-2 one by one, for studies of a user's model. Three are written as in each
library's documentation: a hook on the plain transformers model, TransformerLens, nnsight. Each runs one forward
pass of the whole model per head, on the same weights, and nothing slows it down: no gradients, no KV cache, heads
zeroed in place, and the last token, which predicts nothing, not read. Wrapping a model is separate from ablating its
heads, so that only the latter is timed."""

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from headway.errors import HeadwayError

Measure = Literal["full", "answer"]  # the loss of every token after the first, or of the last alone
Tokens = Int[Tensor, "row token"]
Increases = Float[Tensor, " head"]  # the increase in loss without each head, by layer


@dataclass(frozen=True)
class OwnReference:
    description: str
    wrap: Callable[[Any], Any]  # wraps a transformers GPT-2, without changing it, for `sweep`
    sweep: Callable[[Any, Tokens, Measure], Increases]


def random_gpt2(seed: int = 0) -> Any:
    """Makes a model of the size of GPT-2 small with random weights, so that nothing is downloaded."""
    transformers = _optional("transformers")
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()


def random_tokens(seed: int = 0, rows: int = 8, length: int = 32, vocabulary: int = 50257) -> Tokens:
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def hook_loop(model: Any, tokens: Tokens, measure: Measure) -> Increases:
    """Ablates with transformers alone: a hook before each output projection zeroes the output of one head."""
    width = model.config.n_embd // model.config.n_head

    def loss() -> Tensor:
        return _loss(model(tokens[:, :-1], use_cache=False).logits, tokens, measure)

    def without(layer: int, head: int) -> Tensor:
        def zero(_: Any, inputs: tuple[Tensor]) -> None:
            inputs[0][..., head * width : (head + 1) * width] = 0

        with model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(zero):
            return loss()

    heads = product(range(model.config.n_layer), range(model.config.n_head))
    return torch.stack([without(*head) for head in heads]) - loss()


def as_bridge(model: Any) -> Any:
    """Wraps a copy in TransformerLens, which replaces modules; without a tokenizer nothing is looked up on the Hub."""
    sources = _optional("transformer_lens.model_bridge.sources")
    return sources.build_bridge_from_module(copy.deepcopy(model), type(model).__name__, hf_config=model.config).eval()


@torch.inference_mode()
def transformer_lens_loop(bridge: Any, tokens: Tokens, measure: Measure) -> Increases:
    def loss(*hooks: tuple[str, Callable[..., Tensor]]) -> Tensor:
        return _loss(bridge.run_with_hooks(tokens[:, :-1], fwd_hooks=list(hooks), use_cache=False), tokens, measure)

    def without(layer: int, head: int) -> Tensor:
        def zero(z: Float[Tensor, "row token head channel"], hook: Any) -> Tensor:
            z[:, :, head] = 0
            return z

        return loss((f"blocks.{layer}.attn.hook_z", zero))

    heads = product(range(bridge.cfg.n_layers), range(bridge.cfg.n_heads))
    return torch.stack([without(*head) for head in heads]) - loss()


def as_nnsight(model: Any) -> Any:
    """Wraps a copy in nnsight, so that its hooks stay off the model; from here on nnsight gives every object of the
    process a `save`."""
    return _optional("nnsight").NNsight(copy.deepcopy(model))


@torch.inference_mode()
def nnsight_loop(model: Any, tokens: Tokens, measure: Measure) -> Increases:
    width = model.config.n_embd // model.config.n_head

    def without(layer: int, head: int) -> Tensor:
        with model.trace(tokens[:, :-1], use_cache=False):
            model.transformer.h[layer].attn.c_proj.input[..., head * width : (head + 1) * width] = 0
            logits = model.output.logits.save()
        return _loss(logits, tokens, measure)

    with model.trace(tokens[:, :-1], use_cache=False):
        whole = model.output.logits.save()
    heads = product(range(model.config.n_layer), range(model.config.n_head))
    return torch.stack([without(*head) for head in heads]) - _loss(whole, tokens, measure)


OWN_REFERENCES = {
    "transformers": OwnReference(
        "transformers: a forward pre-hook on c_proj zeroes the head, one pass per head", lambda model: model, hook_loop
    ),
    "TransformerLens": OwnReference(
        "TransformerLens: a hook on hook_z zeroes the head, run_with_hooks per head", as_bridge, transformer_lens_loop
    ),
    "nnsight": OwnReference("nnsight: the head of c_proj.input set to 0, one trace per head", as_nnsight, nnsight_loop),
}


def _loss(logits: Float[Tensor, "row place vocabulary"], tokens: Tokens, measure: Measure) -> Tensor:
    """Computes the loss from the logits at all positions; the answer's are the last."""
    if measure == "answer":
        return cross_entropy(logits[:, -1], tokens[:, -1])
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = str(error).splitlines()[0]
        raise HeadwayError(f"this reference needs more packages ({missing}): pip install 'headway[bench]'") from error
