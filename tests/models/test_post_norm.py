"""Everything that is right for pre-norm models is right for post-norm ones: gates, replays, branches, pruning."""

from __future__ import annotations

import copy
import itertools
from typing import Any, cast

import pytest
import torch

from headway.bench.reference import TextbookTransformer
from headway.heads.pruning import remove_heads
from headway.models import Attention, Head, Model, build_model, heads_of
from headway.models.attention import apply_gate
from headway.models.branches import Branches
from headway.models.rerun import record, replay, sites_of
from headway.models.sites import Gate
from headway.positions.sinusoidal import sinusoids
from headway.runs.config import Overrides
from headway.subjects.runner import HeadwayRunner
from headway.tasks import Problems, create_task
from headway.training.defaults import plan

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "encoder-decoder": ("addition", {"layers": 2, "decoder_layers": 2, "positions": "sinusoidal"}),
    "decoder": ("addition", {"layers": 2, "model": "decoder"}),
    "classifier": ("sortedness", {"layers": 2}),
}


def made(kind: str) -> tuple[Model, Problems]:
    """Returns an untrained post-norm model whose norms are not the identity, and some problems."""
    name, asked = KINDS[kind]
    config = plan(name, Overrides(norm="post", d_model=16, heads=2, d_ff=32, **asked), 0).model
    model = build_model(config, seed=3).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model, create_task(name, {}).testing(7, 12)


def zeroed(model: Model, heads: list[Head]) -> Model:
    """Returns a deep copy in which the columns of these heads in the output projections are zero: slow and obvious."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for module in other.modules():
            if isinstance(module, Attention):
                for head in (head for head in heads if head.site == module.site):
                    module.out.weight[:, head.number * module.dim : (head.number + 1) * module.dim] = 0
    return other


def few_sets(model: Model) -> list[list[Head]]:
    heads = heads_of(model)
    return [[], heads[:1], heads[-1:], heads[1:3], heads[::2], heads]


@torch.no_grad()
def test_a_post_norm_adder_is_the_textbook_transformer() -> None:
    """With the same weights it computes what `nn.Transformer` computes with its defaults, but for its last norms."""
    model, problems = made("encoder-decoder")
    table, ours = sinusoids(torch.arange(16), 16), cast(Any, model)
    theirs: Any = TextbookTransformer(14, 12, (16, 2, 2, 2, 32), (table, table)).double().eval()
    theirs.transformer.encoder.norm = theirs.transformer.decoder.norm = None
    theirs.embed.load_state_dict(ours.tokens.state_dict())
    theirs.unembed.load_state_dict(ours.unembed.state_dict())
    for layers, blocks in (
        (theirs.transformer.encoder.layers, ours.encoder),
        (theirs.transformer.decoder.layers, ours.decoder),
    ):
        for layer, block in zip(layers, blocks, strict=True):
            norms = [layer.norm1, layer.norm2, *([layer.norm3] if "cross" in block.attentions else [])]
            attentions = {"self": layer.self_attn, "cross": getattr(layer, "multihead_attn", None)}
            for kind, norm in zip((*block.attentions, "feed"), norms, strict=True):
                norm.load_state_dict(block.norms[kind].state_dict())
            layer.linear1.load_state_dict(block.feed.into.state_dict())
            layer.linear2.load_state_dict(block.feed.out.state_dict())
            for kind, site in block.attentions.items():
                attentions[kind].in_proj_weight.copy_(torch.cat((site.query, *site.key_value)))
                attentions[kind].in_proj_bias.zero_()
                attentions[kind].out_proj.load_state_dict(site.out.state_dict())
    expected = theirs(problems.source, problems.answer)
    torch.testing.assert_close(model(problems.source, problems.answer), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_closed_head_is_a_zeroed_projection_and_a_pruned_head(kind: str) -> None:
    model, problems = made(kind)
    expected = model(problems.source, problems.answer)
    for heads in few_sets(model):
        expected = zeroed(model, heads)(problems.source, problems.answer)
        gated = model(problems.source, problems.answer, HeadwayRunner(model).close_heads(heads))
        torch.testing.assert_close(gated, expected, rtol=1e-10, atol=1e-12)
        pruned, _ = remove_heads(model, model.config, heads)
        torch.testing.assert_close(
            pruned.double()(problems.source, problems.answer), expected, rtol=1e-4, atol=1e-5
        )  # its weights are float32
    assert not torch.allclose(expected, model(problems.source, problems.answer))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_replay_from_any_site_is_the_whole_pass(kind: str) -> None:
    model, problems = made(kind)
    recording = record(model, problems.source, problems.answer)
    torch.testing.assert_close(recording.logits, model(problems.source, problems.answer), rtol=1e-10, atol=1e-12)
    for site in sites_of(model):
        heads = recording.trace.outputs[site].shape[2]
        filled = torch.full((1, 1, heads, recording.trace.outputs[site].shape[3]), 0.5, dtype=torch.float64)
        gates = {site: Gate(torch.zeros(len(problems), heads, dtype=torch.float64), filled)}
        whole = model(problems.source, problems.answer, gates)
        torch.testing.assert_close(replay(model, recording, gates, site), whole, rtol=1e-10, atol=1e-12)
        assert not torch.allclose(whole, recording.logits)
        assert torch.equal(apply_gate(recording.trace.outputs[site], None), recording.trace.outputs[site])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_branches_are_the_gated_passes(kind: str) -> None:
    model, problems = made(kind)
    heads = heads_of(model)
    bits = {head: 1 << (len(heads) - 1 - place) for place, head in enumerate(heads)}
    sets = {sum(bits[head] for head in some): some for some in itertools.chain(few_sets(model), [heads[2:]])}
    numbers = torch.tensor(sorted(sets))
    found = Branches(model, torch.float64).logits(problems.source, problems.answer, numbers)
    for number, logits in zip(numbers.tolist(), found, strict=True):
        expected = zeroed(model, list(sets[number]))(problems.source, problems.answer)
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@torch.no_grad()
def test_greedy_decoding_reads_what_one_pass_reads(kind: str) -> None:
    model, problems = made(kind)
    written = model.generate(problems.source, problems.answer.shape[1])
    assert torch.equal(model(problems.source, written).argmax(-1), written)
