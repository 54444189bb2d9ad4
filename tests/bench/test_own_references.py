"""Every library agrees with zeroing a head's columns in a copy of the model."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headway.bench import own_references
from headway.bench.own_references import OWN_REFERENCES, Measure, as_bridge, as_nnsight, random_tokens
from headway.errors import HeadwayError

transformers = pytest.importorskip("transformers")

LAYERS, HEADS, WIDE, VOCABULARY = 2, 4, 32, 97
PACKAGES = {"transformers": "transformers", "TransformerLens": "transformer_lens", "nnsight": "nnsight"}


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=WIDE, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0
    )
    drawn = transformers.GPT2LMHeadModel(config).eval()
    for parameter in drawn.parameters():
        parameter.data.mul_(5)  # as first drawn, heads say so little that taking one out changes nothing
    return drawn


@torch.no_grad()
def losses(model: Any, tokens: Tensor) -> dict[str, float]:
    """Returns the mean loss over all positions and rows, and at the last position alone."""
    each = cross_entropy(model(tokens).logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return {"full": float(each.mean()), "answer": float(each[:, -1].mean())}


def zeroed_columns(model: Any, tokens: Tensor, measure: Measure) -> Tensor:
    found = []
    for layer in range(LAYERS):
        for head in range(HEADS):
            other = copy.deepcopy(model)
            read = other.transformer.h[layer].attn.c_proj.weight.data.view(HEADS, WIDE // HEADS, WIDE)  # Conv1D: in out
            read[head] = 0
            found.append(losses(other, tokens)[measure])
    return torch.tensor(found) - losses(model, tokens)[measure]


@pytest.mark.parametrize("measure", ["full", "answer"])
@pytest.mark.parametrize("name", OWN_REFERENCES)
def test_an_ablated_head_equals_zeroed_columns(model: Any, name: str, measure: Measure) -> None:
    pytest.importorskip(PACKAGES[name])
    tokens = random_tokens(seed=1, rows=5, length=9, vocabulary=VOCABULARY)
    before, logits = copy.deepcopy(model.state_dict()), model(tokens).logits
    reference = OWN_REFERENCES[name]
    found = reference.sweep(reference.wrap(model), tokens, measure)
    expected = zeroed_columns(model, tokens, measure)
    assert found.shape == (LAYERS * HEADS,)
    assert expected.abs().min() > 1e-4  # every head matters, so that one taken for another is seen
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert torch.equal(model(tokens).logits, logits)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("wrap", "package"), [(as_bridge, "transformer_lens.model_bridge.sources"), (as_nnsight, "nnsight")]
)
def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(
    model: Any, wrap: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HeadwayError, match=r"(transformer_lens|nnsight).*pip install 'headway\[bench\]'") as refused:
        wrap(model)
    assert "\n" not in str(refused.value)


def test_the_model_of_the_bench_has_144_heads_and_is_drawn_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    default = transformers.GPT2Config()
    assert (default.n_layer, default.n_head, default.n_embd, default.vocab_size) == (12, 12, 768, 50257)
    small = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, bos_token_id=0, eos_token_id=0)
    monkeypatch.setattr(transformers, "GPT2Config", lambda: small)
    first, second = own_references.random_gpt2(0), own_references.random_gpt2(0)
    assert not first.training
    assert first.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(random_tokens(0), random_tokens(0))
