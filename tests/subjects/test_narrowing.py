"""Narrowed heads: passes under gates equal a deep copy whose attention has a mask for each head, built by loops."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from families import CAUSAL_ONES, FAMILIES, GROUPED, TOKENS, TWO_STACKS, WORDS, inputs_of
from references import randomised

from headway.attach.huggingface import attach_huggingface
from headway.attach.intervention import Attached
from headway.attach.module import attach_module
from headway.attach.narrowing import prove_narrowing
from headway.attach.proofs import logits_in
from headway.attach.readers import read_causal
from headway.errors import HeadwayError
from headway.models import Gate, Site
from headway.models.sites import Narrowing
from headway.tasks import Problems

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`")
SINK = 2
RECENTS = (1, 3, 100, 2)
"""of the heads of a site: their own token, a few, everything, two"""
NARROWED = ("BERT", "T5", "Whisper", *CAUSAL_ONES, "OPT", "Phi-3")


def make(name: str) -> nn.Module:
    """Makes a tiny model of a family, with random weights."""
    if name in FAMILIES:
        return FAMILIES[name][0]()
    import transformers

    if name == "OPT":
        sizes: dict[str, Any] = {
            **TOKENS,
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        config = transformers.OPTConfig(ffn_dim=24, word_embed_proj_dim=16, max_position_embeddings=32, **sizes)
        return randomised(transformers.OPTForCausalLM(config))
    return randomised(transformers.Phi3ForCausalLM(transformers.Phi3Config(**GROUPED, sliding_window=4)))


def padded_inputs(name: str) -> dict[str, Tensor]:
    """Returns inputs with one row that begins with padding, except where a family has no mask."""
    inputs = inputs_of(name)
    if "attention_mask" in inputs:
        seen = torch.ones_like(inputs["attention_mask"])
        seen[1, :3] = 0
        inputs["attention_mask"] = seen
    return inputs


def sees(query: int, key: int, recent: int, real: list[bool]) -> bool:
    """States the rule: a token sees the first real tokens of its row, and those less than `recent` places away."""
    first = [place for place, is_real in enumerate(real) if is_real][:SINK]
    return key in first or abs(query - key) < recent


def hide(mask: Tensor | None, recents: list[int], real: list[list[bool]], tokens: int) -> Tensor:
    """Returns a mask to add to the scores of every head, by loops."""
    least = torch.finfo(torch.float32).min
    table = torch.zeros(len(real), len(recents), tokens, tokens)
    for row in range(len(real)):
        for head, recent in enumerate(recents):
            for query in range(tokens):
                for key in range(tokens):
                    if mask is not None:
                        table[row, head, query, key] = mask[row % len(mask), 0, query, key]
                    if not sees(query, key, recent, real[row]):
                        table[row, head, query, key] = least
    return table


def masked_copy(attached: Attached, recents: dict[Site, list[int]], real: list[list[bool]]) -> nn.Module:
    """Returns a deep copy, with eager attention, whose attention modules are given a mask for each head."""
    model: Any = copy.deepcopy(attached.model)
    model.set_attn_implementation("eager")
    for site, own in recents.items():
        module = model.get_submodule(attached.owners[site])

        def forward(*inputs: Any, own: list[int] = own, before: Any = module.forward, **named: Any) -> Any:
            given = inspect.signature(before).bind(*inputs, **named)
            name = "attention_mask" if "attention_mask" in inspect.signature(before).parameters else "mask"
            tokens = next(each for each in [*inputs, *named.values()] if isinstance(each, Tensor)).shape[1]
            given.arguments[name] = hide(given.arguments.get(name), own, real, tokens)
            return before(*given.args, **given.kwargs)

        module.forward = forward
    return model


def gates_of(recents: dict[Site, list[int]]) -> dict[Site, Gate]:
    return {
        site: Gate(torch.tensor([[float(each == 100) for each in own]]), narrowing=Narrowing(SINK, torch.tensor([own])))
        for site, own in recents.items()
    }


def recents_of(attached: Attached, stack: str) -> dict[Site, list[int]]:
    chosen = [site for site in attached.sites if site.kind == "self" and site.stack == stack]
    return {site: list((RECENTS * 2)[: attached.width[site]]) for site in chosen}


@pytest.mark.parametrize("name", NARROWED)
@torch.no_grad()
def test_narrowed_heads_equal_a_copy_with_a_mask_for_each_head(name: str) -> None:
    model, inputs = make(name), padded_inputs(name)
    attached = attach_huggingface(model)
    stack = "encoder" if name == "BERT" else "decoder"
    recents = recents_of(attached, stack)
    tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    assert tokens is not None
    real = inputs.get("attention_mask", torch.ones_like(tokens)) if name not in TWO_STACKS else torch.ones_like(tokens)
    expected = logits_in(masked_copy(attached, recents, real.bool().tolist())(**inputs, use_cache=False))
    plain = logits_in(attached.run(lambda: model(**inputs, use_cache=False)))
    narrowed = logits_in(attached.run(lambda: model(**inputs, use_cache=False), gates_of(recents)))
    shown = real.bool()
    assert (narrowed - expected)[shown].abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))
    assert (narrowed - plain)[shown].abs().max() > 1e-3  # narrowing does something
    for width in (100, tokens.shape[1]):
        wide = {site: [width] * len(own) for site, own in recents.items()}
        closed = {
            site: Gate(torch.zeros(1, len(own)), narrowing=Narrowing(0, torch.tensor([own])))
            for site, own in wide.items()
        }
        same = logits_in(attached.run(lambda closed=closed: model(**inputs, use_cache=False), closed))
        assert (same - plain)[shown].abs().max() <= 1e-5 * max(1.0, float(plain.abs().max()))
    opened = {
        site: Gate(torch.ones(1, len(own)), narrowing=Narrowing(0, torch.ones(1, len(own), dtype=torch.long)))
        for site, own in recents.items()
    }
    again = logits_in(attached.run(lambda: model(**inputs, use_cache=False), opened))
    assert torch.equal(again[shown], plain[shown])


@pytest.mark.parametrize("name", ["T5", "Whisper", "BART"])
def test_cross_attention_is_refused(name: str) -> None:
    model = FAMILIES[name][0]()
    attached = attach_huggingface(model)
    site = next(site for site in attached.sites if site.kind == "cross")
    with pytest.raises(HeadwayError, match="another sequence, in which no token is recent"):
        attached.run(lambda: model(**inputs_of(name)), gates_of({site: [1] * attached.width[site]}))


class Masked(nn.Module):
    """Attention written by hand that is given a mask, or none."""

    def __init__(self, given: bool) -> None:
        super().__init__()
        self.query_key_value, self.linear_out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.given, self.heeds = given, True

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.query_key_value(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / 2
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = scores.masked_fill(hidden if mask is None or not self.heeds else mask == 0, -torch.inf)
        return self.linear_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, mask)


class Small(nn.Module):
    def __init__(self, given: bool, leaks: bool = False) -> None:
        super().__init__()
        self.words, self.attention, self.out = nn.Embedding(20, 16), Masked(given), nn.Linear(16, 20)
        self.leaks = leaks

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        mask = torch.ones(1, 1, tokens.shape[1], tokens.shape[1]).tril() if self.attention.given else None
        x = x + self.attention(x, mask) + (x.cumsum(1) if self.leaks else 0)
        return self.out(x)[:, -1:]


def small(given: bool, leaks: bool = False) -> tuple[Small, Attached, Problems]:
    torch.manual_seed(0)
    model, tokens = Small(given, leaks).eval(), torch.randint(20, (3, 7))
    attached = attach_module(model, Site("attention", output="linear_out", heads=4), call=lambda: model(tokens))
    return model, attached, Problems(tokens, tokens[:, :1])


@torch.no_grad()
def test_a_hand_written_module_is_narrowed_through_its_mask() -> None:
    model, attached, problems = small(given=True)
    site = attached.sites[0]
    narrowed = attached.run(lambda: model(problems.source), gates_of({site: [1, 3, 100, 2]}))
    own = copy.deepcopy(model)
    shown = hide(None, [1, 3, 100, 2], [[True] * 7] * 3, 7) == 0
    own.attention.forward = lambda x, mask=None: own.attention.attend(x, shown.tril().float())  # type: ignore[method-assign]
    assert (narrowed - own(problems.source)).abs().max() <= 1e-5
    prove_narrowing(attached, lambda model, source, _: model(source), problems, attached.sites)


def test_a_module_without_a_mask_or_that_does_not_heed_it_is_refused() -> None:
    model, attached, problems = small(given=False)
    with pytest.raises(HeadwayError, match="is not given a mask"):
        attached.run(lambda: model(problems.source), gates_of({attached.sites[0]: [1, 3, 100, 2]}))
    model, attached, problems = small(given=True)
    model.attention.heeds = False
    with pytest.raises(HeadwayError, match="does not heed a narrower mask"):
        prove_narrowing(attached, lambda model, source, _: model(source), problems, attached.sites)


def test_a_model_that_also_mixes_tokens_without_heads_is_not_refused() -> None:
    _, attached, problems = small(given=True, leaks=True)
    prove_narrowing(attached, lambda model, source, _: model(source), problems, attached.sites)


class ByHand(nn.Module):
    """The attention of a MultiheadAttention, one head and one row after the other, with a mask for each head."""

    def __init__(self, attention: nn.MultiheadAttention, recents: list[int], real: list[list[bool]]) -> None:
        super().__init__()
        self.attention, self.recents, self.real = attention, recents, real

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        rows, tokens, width = x.shape
        heads, dim = self.attention.num_heads, width // self.attention.num_heads
        assert self.attention.in_proj_weight is not None
        query, key, value = (x @ self.attention.in_proj_weight.T + self.attention.in_proj_bias).chunk(3, -1)
        z = torch.zeros_like(x)
        for row in range(rows):
            for head in range(heads):
                part = slice(head * dim, (head + 1) * dim)
                for at in range(tokens):
                    seen = [
                        other
                        for other in range(tokens)
                        if self.real[row][other]
                        and (other <= at or not causal)
                        and sees(at, other, self.recents[head], self.real[row])
                    ] or [other for other in range(tokens) if self.real[row][other]]
                    scores = torch.stack([query[row, at, part] @ key[row, other, part] for other in seen])
                    weights = (scores / dim**0.5).softmax(0)
                    z[row, at, part] = sum(w * value[row, other, part] for w, other in zip(weights, seen, strict=True))
        return z @ self.attention.out_proj.weight.T + self.attention.out_proj.bias


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "padding"])
@torch.no_grad()
def test_multihead_attention_equals_attention_by_hand(batch_first: bool, mask: str) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    attached = attach_module(attention, [Site("", kind="self")])
    x, recents, real = torch.randn(2, 6, 16), [1, 3, 100, 2], [[True] * 6, [True] * 6]
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    options: dict[str, Any] = {}
    if mask == "padding":
        real[1] = [False] * 2 + [True] * 4
        options["key_padding_mask"] = ~torch.tensor(real)
    elif mask != "none":
        options["attn_mask"] = later if mask == "bool" else torch.zeros(6, 6).masked_fill(later, -torch.inf)
        options["is_causal"] = mask == "float"
    given = x if batch_first else x.transpose(0, 1)
    found = attached.run(
        lambda: attention(given, given, given, need_weights=False, **options)[0], gates_of({attached.sites[0]: recents})
    )
    found = found if batch_first else found.transpose(0, 1)
    expected = ByHand(attention, recents, real)(x, causal=mask in ("bool", "float"))
    shown = torch.tensor(real)
    torch.testing.assert_close(found[shown], expected[shown], atol=1e-5, rtol=1e-5)


def test_multihead_cross_attention_is_refused() -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    attached = attach_module(attention, [Site("", kind="self")])
    with pytest.raises(HeadwayError, match="another sequence"):
        attached.run(
            lambda: attention(torch.randn(1, 3, 16), torch.randn(1, 5, 16), torch.randn(1, 5, 16)),
            gates_of({attached.sites[0]: [1, 1, 1, 1]}),
        )


@pytest.mark.parametrize("name", ["Llama", "GPT-OSS", "BLOOM", "Mistral", "Gemma 2"])
def test_narrowing_is_proved_on_a_models_own_problems(name: str) -> None:
    model: Any = FAMILIES[name][0]()
    attached = attach_huggingface(model)
    tokens = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(3))
    prove_narrowing(attached, read_causal, Problems(tokens[:, :7], tokens[:, 7:]), attached.sites)
