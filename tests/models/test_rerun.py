"""Replaying a pass from a site on gives the same as a full pass under the same gates."""

from __future__ import annotations

import pytest
import torch

from headway.models import Gate, Site, build_model
from headway.models.rerun import record, replay, sites_of
from headway.runs.config import Overrides
from headway.tasks import create_task
from headway.training.defaults import plan

KINDS = {"encoder-decoder": "addition", "decoder": "addition", "classifier": "sortedness"}


@pytest.fixture(params=KINDS)
def passed(request: pytest.FixtureRequest):
    config = plan(KINDS[request.param], Overrides(model=request.param, d_model=32, d_ff=64, heads=4), seed=0)
    problems = create_task(config.task).testing(seed=0, rows=5)
    return build_model(config.model, seed=3).eval(), problems


def gate(trace_output: torch.Tensor, variants: int, seed: int) -> Gate:
    """Random gates with random replacements, for every row of every variant."""
    torch.manual_seed(seed)
    rows, queries, heads, dim = trace_output.shape
    passed = torch.rand(variants * rows, heads)
    return Gate(passed, torch.randn(variants * rows, queries, heads, dim))


@pytest.mark.parametrize("variants", [1, 3])
@torch.no_grad()
def test_replaying_from_any_site_equals_a_full_pass(passed, variants: int) -> None:
    model, problems = passed
    kept = record(model, problems.source, problems.answer)
    torch.testing.assert_close(kept.logits, model(problems.source, problems.answer))
    assert len(sites_of(model)) == sum(1 for _ in kept.trace.outputs)
    source, answer = problems.source.repeat(variants, 1), problems.answer.repeat(variants, 1)
    for number, site in enumerate(sites_of(model)):
        gates = {site: gate(kept.trace.outputs[site], variants, number)}
        whole = model(source, answer, gates)
        torch.testing.assert_close(replay(model, kept, gates, site, variants), whole, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(whole[: len(problems)], kept.logits, atol=1e-3)


@torch.no_grad()
def test_replaying_from_the_first_of_several_changed_sites_equals_a_full_pass(passed) -> None:
    model, problems = passed
    kept, sites = record(model, problems.source, problems.answer), sites_of(model)
    for first in range(len(sites)):
        gates = {site: gate(kept.trace.outputs[site], 2, first) for site in sites[first::2]}
        whole = model(problems.source.repeat(2, 1), problems.answer.repeat(2, 1), gates)
        torch.testing.assert_close(replay(model, kept, gates, sites[first], 2), whole, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_pass_recorded_under_gates_is_replayed_under_them(passed) -> None:
    model, problems = passed
    sites = sites_of(model)
    plain = record(model, problems.source, problems.answer)
    early, late = sites[0], sites[-1]
    gates = {early: gate(plain.trace.outputs[early], 1, 7)}
    kept = record(model, problems.source, problems.answer, gates)
    more = {**gates, late: gate(plain.trace.outputs[late], 1, 8)}
    whole = model(problems.source, problems.answer, more)
    torch.testing.assert_close(replay(model, kept, more, late), whole, rtol=1e-5, atol=1e-5)


def test_a_gated_feed_forward_block_contributes_nothing(passed) -> None:
    model, problems = passed
    site = next(site for site in sites_of(model) if site.kind == "feed")
    closed = {site: Gate(torch.zeros(1, 1))}
    under = model(problems.source, problems.answer, closed)
    block = next(m for m in model.modules() if getattr(m, "feed_site", None) == site)
    with torch.no_grad():
        for parameter in block.feed.out.parameters():
            parameter.zero_()
    torch.testing.assert_close(model(problems.source, problems.answer), under)
    assert str(site) == f"{site.stack}.0.feed"
    assert Site("decoder", 1, "feed").title == "Decoder feed-forward L1"
