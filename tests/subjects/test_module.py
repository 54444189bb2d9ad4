"""Any nn.Module: PyTorch's own attention, and attention as people write it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from own_attention import HEADS, TOKENS, Apart, Fused, Named, Net
from references import Unchanged, check_every_head, check_maps, check_rows, randomised, traced
from torch import Tensor, nn

from headway.attach.module import attach_module, candidates
from headway.attach.proofs import prove
from headway.errors import HeadwayError
from headway.models import Gate, Site, Trace

TOKEN_ROWS = torch.randint(TOKENS, (2, 5), generator=torch.Generator().manual_seed(1))


def of_tokens(model: nn.Module) -> Tensor:
    return model(TOKEN_ROWS)


HAND_WRITTEN = {
    "fused": (lambda: Net(Fused(), Fused()), "layers.*.proj"),
    "named": (lambda: Net(Named(), Named()), Site("*.linear_out", heads=HEADS)),
    "named, site by site": (
        lambda: Net(Named(), Named()),
        [Site(f"layers.{layer}", output="linear_out", heads=HEADS) for layer in (0, 1)],
    ),
    "heads apart": (lambda: Net(Apart(False), Apart(False)), Site("layers.*", output="output", heads=HEADS)),
    "heads first": (lambda: Net(Apart(True), Apart(True)), Site("layers.*.output", heads=HEADS)),
}


@pytest.mark.parametrize("style", HAND_WRITTEN)
def test_a_closed_head_of_hand_written_attention_is_the_copy_with_zeros(style: str):
    make, sites = HAND_WRITTEN[style]
    model = randomised(make())
    with Unchanged(model, of_tokens):
        attached = attach_module(model, sites, call=lambda: of_tokens(model))
        assert [str(site) for site in attached.sites] == ["layers.0", "layers.1"]
        assert list(attached.blocks.values()) == ["layers.0", "layers.1"]
        assert prove(attached, lambda: of_tokens(model)).unchanged == 0
        check_every_head(attached, of_tokens)
        check_rows(attached, of_tokens)
        traced(attached, of_tokens)


def test_a_returned_map_is_recorded_and_others_are_read_by_a_function():
    model = randomised(Net(Named(), Named()))
    check_maps(attach_module(model, Site("*.linear_out", heads=HEADS)), of_tokens)

    fused: Any = randomised(Net(Fused()))

    def maps(attention: Any, inputs: tuple[Any, ...], output: Any) -> Tensor:
        q, k, _ = attention.qkv(inputs[0]).unflatten(-1, (3, HEADS, -1)).unbind(2)
        return torch.einsum("bqhd,bkhd->bhqk", q, k).div(2).softmax(-1)

    attached = attach_module(fused, "*.proj", maps=maps)
    trace = check_maps(attached, of_tokens)
    value = fused.layers[0].qkv(fused.embed(TOKEN_ROWS)).unflatten(-1, (3, HEADS, -1))[:, :, 2]
    said = torch.einsum("bhqk,bkhd->bqhd", trace.maps[Site("layers.0")], value)
    torch.testing.assert_close(trace.outputs[Site("layers.0")], said, atol=1e-5, rtol=1e-5)


def test_candidates_are_the_sites_a_person_would_name():
    for attention, output in ((Fused(), "proj"), (Named(), "linear_out"), (Apart(True), "output")):
        found = candidates(Net(attention))
        assert [(site.stack, site.output) for site in found] == [("layers.0", output)]
    assert candidates(nn.TransformerEncoderLayer(8, 2))[0].stack == "self_attn"


def test_a_replacement_takes_the_place_of_a_closed_head():
    model = randomised(Net(Named(), Named()))
    attached, call = attach_module(model, Site("*.linear_out", heads=HEADS)), lambda: of_tokens(model)
    site, trace = attached.sites[0], Trace()
    plain = attached.run(call, trace=trace)
    own = Gate(torch.zeros(1, HEADS), trace.outputs[site])
    torch.testing.assert_close(attached.run(call, {site: own}), plain, atol=1e-6, rtol=0)


class Translator(nn.Module):
    """An nn.Transformer that uses all of its arguments."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 12)
        self.body = nn.Transformer(12, 3, 2, 2, 16, batch_first=batch_first)
        self.head, self.batch_first = nn.Linear(12, TOKENS), batch_first

    def forward(self, source: Tensor, answer: Tensor) -> Tensor:
        padded = torch.zeros_like(source, dtype=torch.bool)
        padded[1, -2:] = True
        mask = nn.Transformer.generate_square_subsequent_mask(answer.shape[1]).isinf()
        x, y = self.embed(source), self.embed(answer)
        if not self.batch_first:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        said = self.body(
            x, y, tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=padded, memory_key_padding_mask=padded
        )
        return self.head(said if self.batch_first else said.transpose(0, 1))


def translated(model: nn.Module) -> Tensor:
    return model(torch.arange(14).view(2, 7) % TOKENS, TOKEN_ROWS)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_every_head_of_nn_transformer_is_found_and_closed(batch_first: bool):
    model = randomised(Translator(batch_first))
    with Unchanged(model, translated):
        attached = attach_module(model, call=lambda: translated(model))
        assert len(attached.heads) == 3 * 2 * 3
        assert [site.kind for site in attached.sites[2:]] == ["self", "cross"] * 2
        check_every_head(attached, translated)
        check_rows(attached, translated)
        trace = check_maps(attached, translated)
        causal = trace.maps[attached.sites[2]]
        assert (causal.triu(1) == 0).all()
        assert (trace.maps[attached.sites[0]][1, :, :, -2:] == 0).all()


class Reader(nn.Module):
    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.embed, self.padded = nn.Embedding(TOKENS, 12), padded
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(12, TOKENS)

    def forward(self, source: Tensor) -> Tensor:
        hidden = torch.zeros_like(source, dtype=torch.bool)
        hidden[1, -2:] = True
        return self.head(self.body(self.embed(source), src_key_padding_mask=hidden if self.padded else None))


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_of_an_encoder_is_off_under_gates_and_on_again_after(padded: bool):
    model = randomised(Reader(padded))
    with Unchanged(model, of_tokens), torch.no_grad():
        attached = attach_module(model)
        proof = prove(attached, lambda: of_tokens(model))
        assert bool(proof.notes) == padded  # the fast path writes zeros where a row is padded
        first = attach_module(model, call=lambda: of_tokens(model), logits_of=lambda logits: logits[:, :3])
        assert first.sites == attached.sites
        check_maps(attached, of_tokens)
        if not padded:
            check_every_head(attached, of_tokens)
        with pytest.raises(RuntimeError, match="stopped"):
            attached.run(lambda: (_ for _ in ()).throw(RuntimeError("stopped")))
        assert torch.backends.mha.get_fastpath_enabled()


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "keys of another width": {"kdim": 8, "vdim": 6},
    "a bias row": {"add_bias_kv": True},
    "a zero row": {"add_zero_attn": True},
    "both, batch first": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [None, "bool", "float", "three", "padding", "both"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_the_gated_multihead_attention_is_pytorchs_own(kind: str, mask: str | None, need_weights: bool):
    model = randomised(nn.MultiheadAttention(12, 3, **KINDS[kind]))
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 5, 12, generator=generator)
    key = torch.randn(2, 7, KINDS[kind].get("kdim", 12), generator=generator)
    value = torch.randn(2, 7, KINDS[kind].get("vdim", 12), generator=generator)
    if not model.batch_first:
        query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
    hidden = torch.rand(6, 5, 7, generator=generator) < 0.3
    hidden[:, :, 0] = False
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])
    masks: dict[str | None, dict[str, Tensor]] = {
        None: {},
        "bool": {"attn_mask": hidden[0]},
        "float": {"attn_mask": torch.zeros(5, 7).masked_fill(hidden[0], -2.0)},
        "three": {"attn_mask": hidden},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
    }

    def run(of: nn.Module) -> tuple[Tensor, Tensor | None]:
        return of(query, key, value, need_weights=need_weights, average_attn_weights=False, **masks[mask])

    model = nn.ModuleDict({"only": model}).eval()
    attached = attach_module(model, call=lambda: run(model["only"]))
    trace = Trace()
    said, weights = attached.run(lambda: run(model["only"]), trace=trace)
    own, own_weights = run(model["only"])
    torch.testing.assert_close(said, own, atol=1e-6, rtol=1e-6)
    if own_weights is not None and weights is not None:
        assert torch.equal(trace.maps[attached.sites[0]], own_weights)
        assert torch.equal(weights, own_weights)


def test_impossible_requests_give_a_one_line_error():
    model = randomised(Net(Named(), Fused()))
    with pytest.raises(HeadwayError, match=r"layers\.0 cannot have 5 heads: its output projection .* reads 12 numbers"):
        attach_module(model, Site("layers.0", output="linear_out", heads=5))
    with pytest.raises(HeadwayError, match=r"name its sites, such as Site\('layers\.0', out"):
        attach_module(model)
    with pytest.raises(HeadwayError, match=r"the number of heads of layers\.0 is not known"):
        attach_module(model, "layers.0")
    with pytest.raises(HeadwayError, match=r"unknown module 'layer\.0'; did you mean 'layers\.0'"):
        attach_module(model, "layer.0")
    with pytest.raises(HeadwayError, match="no module of Net matches"):
        attach_module(model, "*.out")
    with pytest.raises(HeadwayError, match="training mode"):
        attach_module(Net(Fused()).train(), "*.proj")
    with pytest.raises(HeadwayError, match="two sites"):
        attach_module(model, [Site("layers.1"), Site("layers.1.proj", heads=3)])


def test_a_site_that_never_fires_is_named():
    model = randomised(Net(Named()))
    model.spare = Fused()
    model.eval()
    attached = attach_module(model, [Site("layers.0", heads=HEADS), Site("spare")])
    with pytest.raises(HeadwayError, match=r"spare never fires: its output projection spare\.proj was not called"):
        prove(attached, lambda: of_tokens(model))


class Shuffled(Fused):
    """Uses its map after the projection, so that closing a head differs from zeroed columns."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.proj(x) * self.proj.weight.sum()


def test_a_gate_that_differs_from_zeroed_columns_is_refused():
    model = randomised(Net(Shuffled()))
    with pytest.raises(HeadwayError, match=r"closing layers\.0\.0 differs from zeroing its columns in layers\.0\.proj"):
        attach_module(model, "*.proj", call=lambda: of_tokens(model))


def test_gates_of_the_wrong_shape_and_nested_runs_are_refused():
    model = randomised(Net(Fused(), Fused()))
    attached, call = attach_module(model, "*.proj"), lambda: of_tokens(model)
    site = attached.sites[0]
    with Unchanged(model, of_tokens):
        with pytest.raises(HeadwayError, match="not a site of this model"):
            attached.run(call, {Site("elsewhere"): Gate(torch.ones(1, 3))})
        with pytest.raises(HeadwayError, match=r"the gate of layers\.0 has 4 heads, the site 3"):
            attached.run(call, {site: Gate(torch.ones(1, 4))})
        with pytest.raises(HeadwayError, match="the model ran 2 rows"):
            attached.run(call, {site: Gate(torch.ones(3, 3))})
        with pytest.raises(HeadwayError, match="already running under gates"):
            attached.run(lambda: attached.run(call))
        with pytest.raises(HeadwayError, match=r"layers\.0 ran 2 times in one call"):
            attached.run(lambda: (call(), call()), trace=Trace())
        attached.run(lambda: (call(), call()))
