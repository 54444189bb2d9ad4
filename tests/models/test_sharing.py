"""Variants that share a beginning share its pass, and get the logits that they would get alone."""

from __future__ import annotations

import random

import pytest
import torch

from headway.models import Head, Site, build_model
from headway.models.sites import Closed, site_of
from headway.runs.config import Overrides
from headway.subjects.runner import HeadwayRunner, Runner
from headway.subjects.sharing import Changes, plan_passes
from headway.tasks import create_task
from headway.training.defaults import plan
from small import small_model


def changes(closed: Closed) -> Changes:
    return {site_of(part): frozenset(p for p in closed if site_of(p) == site_of(part)) for part in closed}


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_shared_passes_give_every_variant_its_own_logits(kind: str) -> None:
    """For any sets of heads and feed-forward blocks, in any order, also sets that differ at the first site."""
    torch.manual_seed(0)
    two = {
        "encoder-decoder": small_model(layers=2, decoder_layers=2),
        "decoder": small_model(layers=2, model="decoder"),
    }
    overrides = Overrides(**two[kind])
    config = plan("addition", overrides, 0, {"digits": 2})
    task = create_task("addition", {"digits": 2})
    model = build_model(config.model).eval()
    runner, problems = HeadwayRunner(model), task.testing(0, 7)
    parts = [*runner.heads, *(site for site in runner.sites if site.kind == "feed")]
    chance = random.Random(0)
    sets = [frozenset(chance.sample(parts, chance.randrange(len(parts) + 1))) for _ in range(60)]
    sets += [frozenset(parts[:count]) for count in range(len(parts) + 1)]

    def gates(some):
        (number,) = some
        return {
            site: gate
            for site, gate in closing(runner, sets[number]).items()
            if any(site_of(part) == site for part in sets[number])
        }

    with torch.inference_mode():
        recording = runner.record(problems)
        found = dict(runner.replay_each(recording, [changes(closed) for closed in sets], gates))
        alone = dict(Runner.replay_each(runner, recording, [changes(closed) for closed in sets], gates))
        for number in range(len(sets)):
            whole = runner.run(problems, gates([number]))
            torch.testing.assert_close(found[number], whole, atol=1e-5, rtol=1e-5)
            assert torch.equal(found[number], alone[number])  # no bit differs from a replay by itself


def closing(runner: HeadwayRunner, closed: Closed):
    from headway.models import Gate

    found = dict(runner.close_heads([part for part in closed if isinstance(part, Head)]))
    return found | {part: Gate(torch.zeros(1, 1)) for part in closed if isinstance(part, Site)}


def test_a_chain_of_sets_costs_as_much_as_its_heads_one_by_one() -> None:
    """Removing heads one after another, each set is replayed only from the head that it adds."""
    sites = [Site("decoder", layer) for layer in range(4)]
    heads = [Head(site, number) for site in sites for number in range(2)]
    order = random.Random(1).sample(heads, len(heads))
    chain = [frozenset[Head](order[:count]) for count in range(len(order) + 1)]
    steps = list(plan_passes([changes(frozenset(closed)) for closed in chain], sites))
    assert sorted(step.variant for step in steps) == list(range(len(chain)))
    firsts = sorted(sites.index(step.first) for step in steps if step.first is not None)
    assert firsts == sorted(sites.index(head.site) for head in heads)


def test_pairs_are_replayed_from_their_later_head() -> None:
    sites = [Site("decoder", layer) for layer in range(3)]
    heads = [Head(site, number) for site in sites for number in range(2)]
    pairs = [frozenset[Head]({a, b}) for place, a in enumerate(heads) for b in heads[place + 1 :]]
    singles = [frozenset[Head]({head}) for head in heads]
    steps = {s.variant: s for s in plan_passes([changes(frozenset(c)) for c in [*singles, *pairs]], sites)}
    for number, pair in enumerate(pairs, start=len(singles)):
        assert steps[number].first == max(head.site for head in pair)
