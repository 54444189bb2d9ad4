"""Facts about the transformers: the ways of computing attention agree, gates do what they say, order enters
only where it is let in, and decoding with a cache is decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Attention, Classifier, EncoderDecoder, Gate, Head, Model, Site, Trace, build_model, heads_of
from headway.models import attention as attention_module
from headway.models.attention import PassInputs
from headway.runs.config import ModelConfig, Overrides
from headway.tasks import Addition, Problems, Sortedness, Task
from headway.training.defaults import plan

ADDITION, SORTEDNESS = Addition(), Sortedness()
KINDS = {
    "encoder-decoder": (ADDITION, Overrides(model="encoder-decoder")),
    "decoder": (ADDITION, Overrides(model="decoder")),
    "mean": (SORTEDNESS, Overrides(pooling="mean")),
    "max": (SORTEDNESS, Overrides(pooling="max")),
    "violation": (SORTEDNESS, Overrides(pooling="violation")),
    "causal": (SORTEDNESS, Overrides(positions="none-causal")),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Task, Model, Problems]:
    task, overrides = KINDS[request.param]
    model = build_model(plan(task.name, overrides, seed=0).model, seed=1).double().eval()
    return task, model, task.testing(0, 6)


def logits(model: Model, problems: Problems, **asked: object) -> Tensor:
    return model(problems.source, problems.answer, **asked)


def test_the_adder_has_24_heads_at_6_sites() -> None:
    model = build_model(plan("addition", Overrides(), seed=0).model)
    heads = heads_of(model)
    assert len(heads) == 24
    assert len({head.site for head in heads}) == 6
    assert Head.parse("decoder.1.cross.2") in heads
    assert Head.parse("decoder.1.cross.2").title == "Decoder cross L1 H2"
    assert all(Head.parse(str(head)) == head for head in heads)


@pytest.mark.parametrize("name", ["decoder.1.cross", "decoder.x.cross.2", "middle.0.self.1", ""])
def test_an_invalid_head_name_is_refused(name: str) -> None:
    with pytest.raises(HeadwayError, match="is not the name of a head"):
        Head.parse(name)


def test_fused_and_plain_attention_agree(kind: tuple[Task, Model, Problems], monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, problems = kind
    plain = logits(model, problems)
    monkeypatch.setattr(attention_module, "FEW_KEYS", 0)
    fused = logits(model, problems)
    traced = logits(model, problems, trace=Trace())
    assert (plain - fused).abs().max() < 1e-6
    assert (plain - traced).abs().max() < 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_fused_and_plain_attention_agree_in_single_precision(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 50, 4, 12, 32).unbind(0)
    index = torch.arange(12)[None]
    order = attention_module.Order(None, index, index, causal)
    plain, _ = attention_module.attend(query, key, value, 0.25, order.bias, wants_map=False)
    mapped, _ = attention_module.attend(query, key, value, 0.25, order.bias, wants_map=True)
    monkeypatch.setattr(attention_module, "FEW_KEYS", 0)
    fused, _ = attention_module.attend(query, key, value, 0.25, order.bias, wants_map=False)
    assert torch.equal(plain, mapped)
    assert (plain - fused).abs().max() < 1e-6


def test_gates_give_the_same_on_the_fused_path(
    kind: tuple[Task, Model, Problems], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model, problems = kind
    gates = {head.site: Gate(torch.rand(6, 4, dtype=torch.float64)) for head in heads_of(model)}
    plain = logits(model, problems, gates=gates)
    monkeypatch.setattr(attention_module, "FEW_KEYS", 0)
    assert (plain - logits(model, problems, gates=gates)).abs().max() < 1e-9


def test_open_gates_change_no_bit(kind: tuple[Task, Model, Problems]) -> None:
    _, model, problems = kind
    sites = {head.site for head in heads_of(model)}
    gates = {site: Gate(torch.ones(6, 4, dtype=torch.float64)) for site in sites}
    assert torch.equal(logits(model, problems), logits(model, problems, gates=gates))


def test_a_closed_gate_equals_zeroing_the_projections_columns(kind: tuple[Task, Model, Problems]) -> None:
    _, model, problems = kind
    for module in [m for m in model.modules() if isinstance(m, Attention)]:
        shut = torch.ones(1, 4, dtype=torch.float64)
        shut[0, 2] = 0
        gated = logits(model, problems, gates={module.site: Gate(shut)})
        kept = module.out.weight.detach().clone()
        with torch.no_grad():
            module.out.weight[:, 2 * module.dim : 3 * module.dim] = 0
            zeroed = logits(model, problems)
            module.out.weight.copy_(kept)
        assert (gated - zeroed).abs().max() < 1e-9
        assert (gated - logits(model, problems)).abs().max() > 1e-6


def test_a_gate_row_affects_only_its_own_problem(kind: tuple[Task, Model, Problems]) -> None:
    _, model, problems = kind
    site = heads_of(model)[0].site
    rows = torch.ones(6, 4, dtype=torch.float64)
    rows[3] = 0
    changed = (logits(model, problems, gates={site: Gate(rows)}) - logits(model, problems)).abs().amax((1, 2))
    assert changed[3] > 1e-6
    assert changed[[0, 1, 2, 4, 5]].max() < 1e-12


def test_a_closed_gate_passes_the_replacement(kind: tuple[Task, Model, Problems]) -> None:
    """Replacing every head's output by what it was changes nothing."""
    _, model, problems = kind
    trace = Trace()
    before = logits(model, problems, trace=trace)
    shut = {site: Gate(torch.zeros(1, z.shape[2], dtype=torch.float64), z) for site, z in trace.outputs.items()}
    assert (logits(model, problems, gates=shut) - before).abs().max() < 1e-9


def test_heads_contributions_and_bias_sum_to_the_attention_output() -> None:
    torch.manual_seed(0)
    site = Site("encoder", 0, "self")
    module = Attention(site, 32, 8, range(4)).double()
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    index = torch.arange(5)[None]
    order = attention_module.Order(None, index, index, causal=False)
    trace = Trace()
    whole = module(x, x, order, PassInputs(trace=trace))
    parts = trace.outputs[site].flatten(2).split(8, dim=2)
    columns = module.out.weight.split(8, dim=1)
    total = sum(part @ column.T for part, column in zip(parts, columns, strict=True)) + module.out.bias
    assert (whole - total).abs().max() < 1e-12


def test_maps_are_distributions_no_larger_than_the_problem() -> None:
    model = build_model(plan("addition", Overrides(), seed=0).model)
    trace = Trace()
    logits(model, ADDITION.testing(0, 3), trace=trace)
    shapes = {str(site): tuple(found.shape[1:]) for site, found in trace.maps.items()}
    assert shapes["encoder.1.self"] == (4, 7, 7)
    assert shapes["decoder.0.self"] == (4, 4, 4)
    assert shapes["decoder.1.cross"] == (4, 4, 7)
    for found in trace.maps.values():
        assert torch.allclose(found.sum(-1), torch.ones_like(found.sum(-1)), atol=1e-6)


@pytest.mark.parametrize("name", ["encoder-decoder", "decoder"])
def test_a_later_answer_token_never_changes_an_earlier_logit(name: str) -> None:
    task, overrides = KINDS[name]
    model = build_model(plan(task.name, overrides, seed=0).model)
    problems = task.testing(0, 20)
    before = logits(model, problems)
    for place in range(4):
        changed = problems.answer.clone()
        changed[:, place] = (changed[:, place] + 1) % 10
        assert torch.equal(model(problems.source, changed)[:, : place + 1], before[:, : place + 1])


@pytest.mark.parametrize("name", ["encoder-decoder", "decoder"])
def test_decoding_with_a_cache_equals_decoding_without(name: str) -> None:
    task, overrides = KINDS[name]
    model = build_model(plan(task.name, overrides, seed=0).model).double()
    problems = task.testing(0, 50)
    written = torch.zeros_like(problems.answer)
    for place in range(4):
        written[:, place] = model(problems.source, written)[:, place].argmax(-1)
    assert torch.equal(model.generate(problems.source, 4), written)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]


def test_without_positions_order_cannot_be_seen() -> None:
    model = build_model(plan("sortedness", Overrides(positions="none"), seed=0).model).double()
    sequences = SORTEDNESS.testing(0, 40).source
    assert (model(sequences) - model(sequences[:, torch.randperm(16)])).abs().max() < 1e-12


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none-causal"])
def test_with_positions_or_a_causal_mask_order_can_be_seen(positions: str) -> None:
    model = build_model(plan("sortedness", Overrides(positions=positions), seed=0).model).double()
    sequences = SORTEDNESS.testing(0, 40).source
    assert (model(sequences) - model(sequences.flip(1))).abs().max() > 1e-3


def test_the_weights_depend_on_the_seed_alone() -> None:
    config = plan("addition", Overrides(), seed=0).model
    first = build_model(config, seed=3).state_dict()
    torch.randn(7)
    again, other = build_model(config, seed=3).state_dict(), build_model(config, seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["tokens.weight"], other["tokens.weight"])


@pytest.mark.parametrize("name", KINDS)
def test_models_survive_save_and_from_pretrained(name: str, tmp_path) -> None:
    task, overrides = KINDS[name]
    model = build_model(plan(task.name, overrides, seed=0).model, seed=5).eval()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(str(tmp_path))
    problems = task.testing(0, 10)
    assert torch.equal(logits(model, problems), logits(again, problems))
    assert again.config == model.config


@pytest.mark.parametrize(
    ("kind", "source", "answer", "expected"),
    [
        ("encoder-decoder", 7, 4, []),
        ("encoder-decoder", 9, 5, [4, 7, 8]),  # row 4 of the answer's table, rows 7 and 8 of the source's
        ("decoder", 7, 4, []),
        ("decoder", 9, 5, [11, 12, 13]),
    ],
)
def test_positions_that_training_never_reached_are_known(
    kind: Any, source: int, answer: int, expected: list[int]
) -> None:
    model = build_model(plan("addition", Overrides(model=kind, positions="learned"), seed=0).model)
    assert model.untrained(source, answer) == expected


def test_heads_that_do_not_divide_the_width_are_refused_with_those_that_do() -> None:
    with pytest.raises(HeadwayError, match="5 heads do not divide d_model 128; heads can be 1, 2, 4, 8, 16"):
        ModelConfig("classifier", vocabulary=10, trained=8, trained_answer=1, heads=5, classes=2)


def test_kinds_that_do_not_fit_the_task_are_refused() -> None:
    with pytest.raises(HeadwayError, match="sortedness answers with a class"):
        plan("sortedness", Overrides(model="decoder"), seed=0)
    assert isinstance(build_model(plan("sortedness", Overrides(), seed=0).model), Classifier)
    assert isinstance(build_model(plan("addition", Overrides(), seed=0).model), EncoderDecoder)
