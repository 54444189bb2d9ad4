"""Narrowed heads of Headway's own models equal attention written out with a mask for each head."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Attention, Gate, Model, Order, Site, build_model, heads_of
from headway.models.branches import Branches
from headway.models.rerun import record, replay
from headway.models.sites import Narrowing
from headway.runs.config import Overrides
from headway.tasks import create_task
from headway.training.defaults import plan

KINDS = [
    ("encoder-decoder", "addition", "sinusoidal"),
    ("decoder", "addition", "rope"),
    ("classifier", "sortedness", "alibi"),
    ("classifier", "sortedness", "window"),
]
SINK, RECENTS = 1, [1, 3, 100, 2]


@pytest.fixture(params=KINDS, ids=" ".join)
def made(request: pytest.FixtureRequest):
    kind, task, positions = request.param
    config = plan(task, Overrides(model=kind, positions=positions, d_model=32, d_ff=64, heads=4), seed=0)
    return build_model(config.model, seed=3).eval(), create_task(config.task).testing(seed=0, rows=3)


def narrowed_copy(model: Model, recents: dict[Site, list[int]]) -> Model:
    """Returns a deep copy whose self-attention is written out: one row, head, query and key after the other."""
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, Attention) and module.site in recents:
            write_out(module, recents[module.site])
    return other


def write_out(attention: Attention, recents: list[int]) -> None:
    def head_outputs(
        x: Tensor, context: Tensor, order: Order, cache: object = None, wants_map: bool = False, dropout: object = None
    ) -> tuple[Tensor, None]:
        query = (x @ attention.query.T).unflatten(-1, (attention.heads, attention.dim)).transpose(1, 2)
        key, value = attention.keys_values(context, None)
        if order.positions is not None:
            query, key = order.positions.rotate(query, key, order.query_index, order.key_index)
        scores = query @ key.transpose(-1, -2) * attention.dim**-0.5
        scores = scores if order.bias is None else scores + order.bias
        z = torch.zeros_like(query)
        rows, heads, tokens, _ = query.shape
        for row in range(rows):
            for head in range(heads):
                for at in range(tokens):
                    own = scores[row, head, at]
                    near = [key for key in range(tokens) if key < SINK or abs(at - key) < recents[head]]
                    seen = [key for key in near if own[key] > -torch.inf] or [
                        key for key in range(tokens) if own[key] > -torch.inf
                    ]
                    z[row, head, at] = own[seen].softmax(0) @ value[row, head, seen]
        return z.transpose(1, 2), None

    attention.head_outputs = head_outputs  # type: ignore[method-assign]


def self_sites(model: Model) -> list[Site]:
    return list(dict.fromkeys(head.site for head in heads_of(model) if head.site.kind == "self"))


def gates_of(recents: dict[Site, list[int]]) -> dict[Site, Gate]:
    return {
        site: Gate(torch.tensor([[float(each == 100) for each in own]]), narrowing=Narrowing(SINK, torch.tensor([own])))
        for site, own in recents.items()
    }


@torch.no_grad()
def test_narrowed_heads_equal_attention_written_out(made) -> None:
    model, problems = made
    recents = dict.fromkeys(self_sites(model), RECENTS)
    expected = narrowed_copy(model, recents)(problems.source, problems.answer)
    plain = model(problems.source, problems.answer)
    narrowed = model(problems.source, problems.answer, gates_of(recents))
    torch.testing.assert_close(narrowed, expected, rtol=1e-5, atol=1e-5)
    assert (narrowed - plain).abs().max() > 1e-3
    wide = {site: Gate(torch.zeros(1, 4), narrowing=Narrowing(0, torch.full((1, 4), 100))) for site in recents}
    torch.testing.assert_close(model(problems.source, problems.answer, wide), plain, rtol=1e-5, atol=1e-5)
    opened = {
        site: Gate(torch.ones(1, 4), narrowing=Narrowing(0, torch.ones(1, 4, dtype=torch.long))) for site in recents
    }
    assert torch.equal(model(problems.source, problems.answer, opened), plain)


@torch.no_grad()
def test_a_replay_from_any_site_equals_a_whole_pass(made) -> None:
    model, problems = made
    recording, sites = record(model, problems.source, problems.answer), self_sites(model)
    for place, first in enumerate(sites):
        recent = torch.randint(1, 5, (2 * len(problems), 4), generator=torch.Generator().manual_seed(place))
        passed = (recent > 2).float()
        gates = {site: Gate(passed, narrowing=Narrowing(SINK, recent)) for site in sites[place:]}
        whole = model(problems.source.repeat(2, 1), problems.answer.repeat(2, 1), gates)
        torch.testing.assert_close(replay(model, recording, gates, first, 2), whole, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_decoding_with_a_cache_narrows_as_a_whole_pass_does() -> None:
    config = plan("addition", Overrides(model="decoder", positions="rope", d_model=32, d_ff=64, heads=4), seed=0)
    model = build_model(config.model, seed=3).eval()
    problems = create_task(config.task).testing(seed=0, rows=3)
    gates = gates_of(dict.fromkeys(self_sites(model), RECENTS))
    written = model.generate(problems.source, problems.answer.shape[1], gates)
    assert torch.equal(written, model(problems.source, written, gates).argmax(-1))
    assert not torch.equal(written, model.generate(problems.source, problems.answer.shape[1]))


@torch.no_grad()
def test_one_pass_for_many_sets_narrows_as_gates_do() -> None:
    config = plan("sortedness", Overrides(positions="alibi", d_model=32, d_ff=64, heads=4, layers=2), seed=0)
    model = build_model(config.model, seed=3).eval()
    problems, heads = create_task(config.task).testing(seed=0, rows=3), heads_of(model)
    sets = torch.tensor([0, 3, 17, 200, 255])
    found = Branches(model, window=(SINK, 2)).logits(problems.source, problems.answer, sets)
    for number, logits in zip(sets.tolist(), found, strict=True):
        gates = {}
        for site in self_sites(model):
            closed = [number >> (len(heads) - 1 - place) & 1 for place, head in enumerate(heads) if head.site == site]
            passed = torch.tensor([[1.0 - each for each in closed]])
            gates[site] = Gate(passed, narrowing=Narrowing(SINK, torch.full((1, 4), 2)))
        torch.testing.assert_close(logits, model(problems.source, problems.answer, gates), rtol=1e-5, atol=1e-5)


def test_cross_attention_is_refused() -> None:
    config = plan("addition", Overrides(d_model=32, d_ff=64, heads=4), seed=0)
    model, problems = build_model(config.model).eval(), create_task(config.task).testing(seed=0, rows=2)
    with pytest.raises(HeadwayError, match="another sequence, in which no token is recent"):
        model(problems.source, problems.answer, gates_of({Site("decoder", 0, "cross"): RECENTS}))
