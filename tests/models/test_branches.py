"""Many sets of closed heads in one pass: the same logits as each set by itself."""

from __future__ import annotations

import pytest
import torch

from headway.heads.pruning import remove_heads
from headway.models import Gate, Model, Trace, build_model, heads_of
from headway.models.branches import Branches
from headway.runs.config import Overrides
from headway.subjects.runner import HeadwayRunner
from headway.tasks import Problems, create_task
from headway.training.defaults import plan


def subject(name: str) -> tuple[Model, Problems]:
    kinds = {"encoder-decoder": ("addition", {}), "decoder": ("addition", {"model": "decoder"})}
    task, asked = kinds.get(name, ("sortedness", {}))
    config = plan(task, Overrides(layers=2, d_model=16, heads=2, **asked), 0, None)
    return build_model(config.model, 0).eval(), create_task(task).testing(3, 5)


def closed_in(model: Model, number: int) -> list:
    heads = heads_of(model)
    return [head for place, head in enumerate(heads) if number >> (len(heads) - 1 - place) & 1]


@torch.no_grad()
@pytest.mark.parametrize("name", ["encoder-decoder", "decoder", "classifier"])
def test_every_set_has_the_logits_it_has_alone(name: str) -> None:
    model, problems = subject(name)
    sets = torch.arange(0, 2 ** len(heads_of(model)), 5 if name == "encoder-decoder" else 1)
    found = Branches(model).logits(problems.source, problems.answer, sets)
    assert len(found) == len(sets)
    for place in range(0, len(sets), max(1, len(sets) // 60)):
        gates = HeadwayRunner(model).close_heads(closed_in(model, int(sets[place])))
        expected = model(problems.source, problems.answer, gates)
        torch.testing.assert_close(found[place], expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_closed_head_may_be_replaced_by_its_mean() -> None:
    model, problems = subject("encoder-decoder")
    trace = Trace()
    model(problems.source, problems.answer, None, trace)
    means = {site: said.mean(0, keepdim=True) for site, said in trace.outputs.items() if site.kind != "feed"}
    sets = torch.tensor([0, 1, 77, 1023, 2 ** len(heads_of(model)) - 1])
    found = Branches(model, replacements=means).logits(problems.source, problems.answer, sets)
    for place, number in enumerate(sets.tolist()):
        gates = HeadwayRunner(model).close_heads(closed_in(model, number))
        gates = {site: Gate(gate.passed, means[site]) for site, gate in gates.items()}
        torch.testing.assert_close(found[place], model(problems.source, problems.answer, gates), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_site_without_heads_is_skipped() -> None:
    model, problems = subject("encoder-decoder")
    config = plan("addition", Overrides(layers=2, d_model=16, heads=2), 0, None).model
    heads = heads_of(model)
    pruned, _ = remove_heads(model, config, heads[2:4])
    found = Branches(pruned).logits(problems.source, problems.answer, torch.tensor([0, 5]))
    for place, number in enumerate((0, 5)):
        gates = HeadwayRunner(pruned).close_heads(closed_in(pruned, number))
        torch.testing.assert_close(found[place], pruned(problems.source, problems.answer, gates), rtol=1e-5, atol=1e-5)
