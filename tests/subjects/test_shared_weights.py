"""Layers that share weights: a site for each pass. The reference is the same ALBERT with a copy of the weights for
every layer, where a head has columns of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from references import Unchanged, randomised

from headway.attach.huggingface import attach_huggingface
from headway.attach.projections import weight_of
from headway.attach.proofs import prove
from headway.attach.readers import reader_of
from headway.attach.runner import UserRunner
from headway.attach.zeroing import save_without
from headway.errors import HeadwayError
from headway.heads.variants import Variants
from headway.models import Gate, Head, Site, Trace
from headway.subjects.subject import Subject
from headway.tasks import Problems

LAYERS, HEADS, MASK = 4, 2, 3
SHAPES = {"one group": (1, 1), "two groups": (2, 1), "a group of two layers": (1, 2)}


def albert(groups: int, inner: int) -> Any:
    from transformers import AlbertConfig, AlbertForMaskedLM

    shape: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": HEADS, "intermediate_size": 24, "vocab_size": 40}
    config = AlbertConfig(
        num_hidden_layers=LAYERS, num_hidden_groups=groups, inner_group_num=inner, embedding_size=8, **shape
    )
    return randomised(AlbertForMaskedLM(config))


def apart(model: Any) -> Any:
    """Builds the same model with weights of its own for every layer, by walking through both."""
    config = model.config.to_dict() | {"num_hidden_groups": LAYERS}
    copy = type(model)(type(model.config)(**config)).eval()
    shared, own = model.albert.encoder, copy.albert.encoder
    copy.load_state_dict(model.state_dict(), strict=False)
    for layer in range(LAYERS):
        group = layer // (LAYERS // len(shared.albert_layer_groups))
        own.albert_layer_groups[layer].load_state_dict(shared.albert_layer_groups[group].state_dict())
    return copy


def tokens() -> Tensor:
    found = torch.randint(4, 40, (4, 7), generator=torch.Generator().manual_seed(0))
    found[:, 2] = MASK
    return found


@torch.no_grad()
def zeroed(model: Any, layer: int, inner: int, head: int) -> Tensor:
    copy = apart(model)
    weight = weight_of(copy.albert.encoder.albert_layer_groups[layer].albert_layers[inner].attention.dense)
    assert weight is not None
    weight[:, head * 8 : head * 8 + 8] = 0
    return copy(input_ids=tokens()).logits


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_each_pass_is_a_site_whose_closed_head_is_a_zeroed_head_of_that_pass_only(shape: str) -> None:
    groups, inner = SHAPES[shape]
    model = albert(groups, inner)
    with Unchanged(model, lambda model: model(input_ids=tokens())):
        attached = attach_huggingface(model)
        assert [str(site) for site in attached.sites] == [f"encoder.{n}.self" for n in range(LAYERS * inner)]
        prove(attached, lambda: model(input_ids=tokens()))
        whole = model(input_ids=tokens()).logits
        torch.testing.assert_close(apart(model)(input_ids=tokens()).logits, whole, atol=1e-5, rtol=1e-5)
        for number, site in enumerate(attached.sites):
            for head in range(HEADS):
                passed = torch.ones(1, HEADS)
                passed[0, head] = 0
                gated = attached.run(lambda: model(input_ids=tokens()).logits, {site: Gate(passed)})
                expected = zeroed(model, number // inner, number % inner, head)
                torch.testing.assert_close(gated, expected, atol=1e-5, rtol=1e-5)
                assert (gated - whole).abs().max() > 1e-4


@torch.no_grad()
def test_each_pass_has_a_map_and_an_output_of_its_own() -> None:
    model = albert(1, 1)
    attached, trace = attach_huggingface(model), Trace()
    attached.run(lambda: model(input_ids=tokens()), trace=trace)
    model.set_attn_implementation("eager")
    expected = model(input_ids=tokens(), output_attentions=True).attentions
    for site, found in zip(attached.sites, expected, strict=True):
        torch.testing.assert_close(trace.maps[site], found, atol=1e-5, rtol=1e-5)
        assert trace.outputs[site].shape == (4, 7, HEADS, 8)


def runner_of(shape: str) -> UserRunner:
    model = albert(*SHAPES[shape])
    return UserRunner(attach_huggingface(model), reader_of(model, MASK))


def problems() -> Problems:
    return Problems(tokens(), torch.tensor([[5], [6], [7], [8]]))


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_a_replay_skips_earlier_passes_and_equals_the_whole(shape: str) -> None:
    runner = runner_of(shape)
    recording, ran = runner.record(problems()), []
    for name, module in runner.model.named_modules():
        if name.endswith(".ffn"):
            module.register_forward_pre_hook(lambda *_: ran.append(1))
    for number, site in enumerate(runner.sites):
        passed = 1 - torch.eye(HEADS)
        ran.clear()
        stacked = runner.replay(recording, {site: Gate(passed.repeat_interleave(4, dim=0))}, site, HEADS)
        inner = SHAPES[shape][1]
        assert len(ran) == inner * (LAYERS - number // inner)
        for head in range(HEADS):
            whole = runner.run(problems(), {site: Gate(passed[head : head + 1])})
            torch.testing.assert_close(stacked[4 * head : 4 * head + 4], whole, atol=1e-5, rtol=1e-5)


def test_a_study_closes_the_heads_of_one_pass() -> None:
    runner = runner_of("one group")
    subject = Subject(runner.model, examples=problems(), metric="loss").with_runner(runner)
    assert len(subject.heads) == LAYERS * HEADS
    outcome = Variants(subject)(problems(), [frozenset(), *(frozenset({head}) for head in subject.heads)])
    for number, head in enumerate(subject.heads, start=1):
        logits = zeroed(runner.model, number - 1 >> 1, 0, head.number)[:, 2]
        expected = nn.functional.cross_entropy(logits, problems().answer[:, 0], reduction="none")
        torch.testing.assert_close(outcome.loss[number], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_of_one_pass_is_saved_with_weights_for_every_pass(shape: str, tmp_path: Path) -> None:
    from transformers import AlbertForMaskedLM

    runner = runner_of(shape)
    subject = Subject(runner.model, examples=problems(), metric="loss").with_runner(runner)
    gone = [subject.heads[0], subject.heads[5]]
    assert save_without(subject, gone, problems(), tmp_path / "one") < 1e-5
    loaded: Any = AlbertForMaskedLM.from_pretrained(tmp_path / "one")
    assert loaded.config.num_hidden_groups == LAYERS
    inner = SHAPES[shape][1]
    layer = loaded.albert.encoder.albert_layer_groups[2 // inner].albert_layers[2 % inner]
    assert not layer.attention.dense.weight[:, 8:].any()
    assert layer.attention.dense.weight[:, :8].any()
    every = [Head(site, 1) for site in runner.sites]
    save_without(subject, every, problems(), tmp_path / "all")
    assert AlbertForMaskedLM.from_pretrained(tmp_path / "all").config.num_hidden_groups == SHAPES[shape][0]


class Passes(nn.Module):
    """Runs an attention as often as it is told."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.more = model, 0

    def forward(self, input_ids: Tensor) -> Any:
        model: Any = self.model
        output = model(input_ids=input_ids)
        for _ in range(self.more):
            layer = model.albert.encoder.albert_layer_groups[0].albert_layers[0]
            layer.attention(torch.zeros(1, 3, 16), None)
        return output


@torch.no_grad()
def test_another_number_of_passes_is_refused() -> None:
    model = albert(1, 1)
    attached, more = attach_huggingface(model), Passes(model)
    attached.run(lambda: more(tokens()), {Site("encoder", 3): Gate(torch.zeros(1, HEADS))})
    more.more = 1
    with pytest.raises(HeadwayError, match="ran 5 times in this pass, and 4 times in the pass that it was attached on"):
        attached.run(lambda: more(tokens()))
