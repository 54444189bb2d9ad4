"""Hugging Face models: every family from a tiny config, compared with eager attention and with zeros."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from families import FAMILIES, GPT2, GROUPED, TWO_STACKS, expected_sites, inputs_of
from references import Unchanged, check_every_head, check_maps, check_rows, randomised

from headway.attach.dispatch import configs_of, request_maps, use_attention
from headway.attach.huggingface import attach_huggingface
from headway.attach.proofs import prove
from headway.errors import HeadwayError
from headway.models import Trace, find_heads

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # DeBERTa's file uses it


def run_of(name: str) -> Any:
    inputs = inputs_of(name)
    return lambda model: model(**inputs)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_attached_and_every_closed_head_is_the_copy_with_zeros(name: str):
    make, way = FAMILIES[name]
    model, run = make(), run_of(name)
    before = [config._attn_implementation for config in configs_of(model)]
    with Unchanged(model, run):
        attached = attach_huggingface(model)
        assert [str(site) for site in attached.sites] == expected_sites(name)
        assert set(attached.ways.values()) == ({way} if name != "T5" else {_way_of_t5()})
        assert len(attached.blocks) == len(attached.sites)
        prove(attached, lambda: run(model))
        check_every_head(attached, run)
        check_rows(attached, run)
        _check_maps_are_eagers(name, attached, run)
    assert [config._attn_implementation for config in configs_of(model)] == before


def _way_of_t5() -> str:
    """Tells how T5 is gated: it dispatches only in later releases."""
    from transformers.models.t5 import modeling_t5

    return "dispatch" if hasattr(modeling_t5, "eager_attention_forward") else "projection"


@torch.no_grad()
def _check_maps_are_eagers(name: str, attached: Any, run: Any) -> None:
    if name == "GPT-OSS":  # a sink takes its part of each row
        trace = Trace()
        attached.run(lambda: run(attached.model), trace=trace)
        assert all((found.sum(-1) < 1).all() for found in trace.maps.values())
    else:
        trace = check_maps(attached, run)
    model = copy.deepcopy(attached.model)  # transformers puts hooks of its own into a model that is asked for its maps
    with use_attention(model, "eager"):
        eager = model(**inputs_of(name), output_attentions=True)
    kinds = {"encoder self": "attentions", "decoder self": "attentions"}
    if name in TWO_STACKS:
        kinds = {"encoder self": "encoder_attentions", "decoder self": "decoder_attentions"}
    for site, found in trace.maps.items():
        field = kinds.get(f"{site.stack} {site.kind}", "cross_attentions")
        torch.testing.assert_close(found, eager[field][site.layer], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name, (_, way) in FAMILIES.items() if way == "dispatch"])
def test_a_family_that_did_not_dispatch_would_be_gated_at_its_projections(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headway.attach.huggingface._can_switch_attention", lambda model: False)
    model: Any = FAMILIES[name][0]()
    run = run_of(name)
    model.set_attn_implementation("eager")
    with Unchanged(model, run):
        attached = attach_huggingface(model)
        assert [str(site) for site in attached.sites] == expected_sites(name)
        assert set(attached.ways.values()) == {"projection"}
        assert prove(attached, lambda: run(model)).unchanged == 0
        check_every_head(attached, run)


def test_attention_that_did_not_run_is_reported():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = randomised(GPT2LMHeadModel(GPT2Config(**GPT2, add_cross_attention=True)))
    assert attach_huggingface(model).idle == tuple(f"transformer.h.{layer}.crossattention" for layer in (0, 1))
    inputs = {**inputs_of("GPT-2"), "encoder_hidden_states": torch.randn(2, 4, 16)}
    attached = attach_huggingface(model, inputs)
    assert [str(site) for site in attached.sites[:2]] == ["decoder.0.self", "decoder.0.cross"]
    assert not attached.idle
    check_every_head(attached, lambda model: model(**inputs))


def test_a_norm_between_heads_and_projection_moves_the_gate_behind_it():
    from transformers import BitNetConfig, BitNetForCausalLM

    model, run = randomised(BitNetForCausalLM(BitNetConfig(**GROUPED))), run_of("Llama")
    attached = attach_huggingface(model)
    assert set(attached.ways.values()) == {"projection"}
    check_every_head(attached, run)
    check_maps(attached, run)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_are_attached_within_their_rounding(dtype: torch.dtype):
    for name in ("GPT-2", "Llama", "T5"):
        model = FAMILIES[name][0]().to(dtype)
        attached = attach_huggingface(model)
        assert prove(attached, lambda model=model, name=name: model(**inputs_of(name))).sites == attached.sites


def test_reading_maps_leaves_nothing_behind_in_a_model_with_its_own_hooks():
    model: Any = FAMILIES["Llama"][0]()
    run = run_of("Llama")
    model.set_attn_implementation("eager")
    with Unchanged(model, run), request_maps(model):
        assert run(model).attentions
    assert run(model).attentions is None
    assert model(**inputs_of("Llama"), output_attentions=True).attentions


def test_padding_on_the_left_is_compared_where_a_position_sees_a_key():
    model = FAMILIES["Llama"][0]()
    attached, inputs = attach_huggingface(model), inputs_of("Llama")
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    assert prove(attached, lambda: model(**inputs)).unchanged < 1e-5  # its own attention, gated
    with pytest.raises(HeadwayError, match=r"at 3 of 18 positions; where a padded position sees no key"):
        attach_huggingface(model, inputs)
    seen = inputs["attention_mask"].bool()
    assert attach_huggingface(model, inputs, logits_of=lambda output: output.logits[seen]).sites == attached.sites


def test_generation_runs_under_gates_and_leaves_no_trace():
    model: Any = FAMILIES["T5"][0]()
    run = run_of("T5")
    inputs = {name: value for name, value in inputs_of("T5").items() if name != "decoder_input_ids"}
    with Unchanged(model, run):
        attached = attach_huggingface(model)
        own = model.generate(**inputs, max_new_tokens=5, do_sample=False)
        opened = attached.run(lambda: model.generate(**inputs, max_new_tokens=5, do_sample=False))
        assert torch.equal(own, opened)


def test_an_exception_in_a_run_restores_everything():
    model: Any = FAMILIES["BERT"][0]()
    run = run_of("BERT")
    with Unchanged(model, run):
        attached = attach_huggingface(model)
        with pytest.raises(RuntimeError, match="stopped"):
            attached.run(lambda: (run(model), (_ for _ in ()).throw(RuntimeError("stopped"))))
        assert model.config._attn_implementation == "sdpa"


def test_a_label_of_an_encoder_decoder_is_ambiguous_and_of_one_stack_is_not():
    both = attach_huggingface(FAMILIES["BART"][0](), proved=False)
    with pytest.raises(HeadwayError, match=r"L1H1 .* encoder\.1\.self\.1, decoder\.1\.self\.1, decoder\.1\.cross\.1"):
        find_heads("L1H1", both.heads)
    one = attach_huggingface(FAMILIES["GPT-2"][0](), proved=False)
    assert [head.label for head in find_heads({1: [0, 3]}, one.heads)] == ["L1H0", "L1H3"]


def test_the_causal_mask_is_kept():
    model = FAMILIES["Llama"][0]()
    attached, inputs, trace = attach_huggingface(model, proved=False), inputs_of("Llama"), Trace()
    attached.run(lambda: model(**inputs), trace=trace)
    assert all((found.triu(1) == 0).all() for found in trace.maps.values())


def test_an_attention_that_lost_its_causal_mask_is_refused():
    from transformers import AttentionInterface

    def careless(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        return AttentionInterface()["sdpa"](module, query, key, value, mask, is_causal=False, **options)

    AttentionInterface.register("careless", careless)  # and no mask function: the causal mask is lost
    model: Any = FAMILIES["GPT-2"][0]()
    model.set_attn_implementation("careless")
    with pytest.raises(HeadwayError, match=r"other logits under its careless attention than under eager, by \d"):
        attach_huggingface(model)
    assert model.config._attn_implementation == "careless"


def test_a_module_that_does_not_dispatch_and_has_no_projection_is_refused_by_name():
    from transformers import XLNetConfig, XLNetModel

    model = XLNetModel(XLNetConfig(vocab_size=40, d_model=16, n_layer=1, n_head=2, d_inner=24)).eval()
    with pytest.raises(HeadwayError, match=r"XLNetRelativeAttention at layer\.0\.rel_attn does not dispatch"):
        attach_huggingface(model)


def test_a_model_that_is_not_from_transformers_is_refused():
    with pytest.raises(HeadwayError, match="attach it with attach_module"):
        attach_huggingface(nn.Linear(2, 2).eval())
    with pytest.raises(HeadwayError, match="training mode"):
        attach_huggingface(FAMILIES["BERT"][0]().train())
