"""The adder of averaging heads: what each head sees, decoding in linear time, and what its config must be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.errors import HeadwayError
from headway.heads.pruning import remove_heads
from headway.models import AveragingDecoder, Gate, Model, Site, build_model, heads_of
from headway.models.sites import Trace
from headway.positions import POSITIONS, Shape
from headway.positions.one_each import OneEach
from headway.runs.config import ModelConfig, RunConfig
from headway.subjects.own import Run, open_one

ATTENTION, FEED = Site("decoder", 0, "self"), Site("decoder", 0, "feed")
SHIPPED = ("smallest-adder", "smallest-adder-table")


@pytest.fixture(scope="module", params=SHIPPED)
def run(request: pytest.FixtureRequest) -> Run:
    return open_one(f"pretrained:{request.param}")


def untrained(config: ModelConfig) -> Model:
    return build_model(config, 3).eval()


def test_every_number_is_trained_and_there_are_few() -> None:
    counts = [sum(each.numel() for each in open_one(f"pretrained:{name}").model.parameters()) for name in SHIPPED]
    assert counts == [6, 15]
    for name in SHIPPED:
        model = open_one(f"pretrained:{name}").model
        assert not list(model.buffers())
        assert all(each.requires_grad for each in model.parameters())


def test_one_head_averages_the_column_the_other_the_one_to_its_right_with_the_last_digit(run: Run) -> None:
    problems = run.task.read("123+456", length=3)  # read as 0 1 2 3 0 + 0 4 5 6 0 and 0 9 7
    trace = Trace()
    run.model(problems.source, problems.answer, trace=trace)
    maps = trace.maps[ATTENTION][0]  # head query key
    own, right = ({int(key): float(row[key]) for key in row.nonzero()[:, 0]} for row in maps[:, 12])
    assert own == {2: 0.5, 8: 0.5}  # 2 and 5, when 9 was written
    assert list(right) == [3, 9, 12]  # 3, 6 and that 9
    assert list(right.values()) == pytest.approx([1 / 3] * 3)


def test_linear_decoding_writes_what_whole_passes_write(run: Run) -> None:
    open_gates = {ATTENTION: Gate(torch.ones(1, 2))}
    for model in (run.model, untrained(run.config.model)):
        for length in (1, 2, 7):
            source = run.task.testing(0, 40, length=length).source
            quick, slow = model.generate(source, length + 1), model.generate(source, length + 1, open_gates)
            assert torch.equal(quick, slow)
            written = torch.full_like(source[:, :1], model.start or 0)
            for _ in range(length + 1):
                written = torch.cat((written, model.decode(source, written)[:, -1:].argmax(-1)), dim=1)
            assert torch.equal(quick, written[:, 1:])


def test_a_closed_head_matters_in_decoding(run: Run) -> None:
    problems, closed = run.task.testing(0, 40, length=5), {ATTENTION: Gate(torch.tensor([[0.0, 1.0]]))}
    assert not torch.equal(run.model.generate(problems.source, 6, closed), problems.answer)


def test_gathered_keys_give_what_all_keys_give(run: Run) -> None:
    problems, trace = run.task.testing(0, 3, length=40), Trace()
    gathered = run.model(problems.source, problems.answer)
    assert torch.equal(run.model(problems.source, problems.answer, trace=trace).argmax(-1), gathered.argmax(-1))
    torch.testing.assert_close(run.model(problems.source, problems.answer, trace=Trace()), gathered)


def test_sums_longer_than_any_in_training_and_no_wrong_one_by_an_untrained_model(run: Run) -> None:
    problems = run.task.testing(0, 5, probe="carry-chain", length=3_000)
    assert torch.equal(run.model.generate(problems.source, 3_001), problems.answer)
    assert torch.equal(run.model(problems.source, problems.answer).argmax(-1), problems.answer)
    assert not torch.equal(untrained(run.config.model)(problems.source, problems.answer).argmax(-1), problems.answer)


def test_a_pruned_head_leaves_the_gated_answers(run: Run) -> None:
    problems = run.task.testing(0, 50, length=4)
    for head in heads_of(run.model):
        smaller, config = remove_heads(run.model, run.config.model, [head])
        gate = torch.ones(1, 2).index_fill(1, torch.tensor([head.number]), 0.0)
        gated = run.model(problems.source, problems.answer, {ATTENTION: Gate(gate)})
        assert config.pruned == str(head)
        torch.testing.assert_close(smaller(problems.source, problems.answer), gated)
    with pytest.raises(HeadwayError, match="needs at least one of them"):
        remove_heads(run.model, run.config.model, heads_of(run.model))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"index": "sequential"}, "it needs sums padded to one more digit, and the index coupled"),
        ({"least_first": False}, "least significant digit first"),
        ({"end": 13}, "sums padded to one more digit"),
        ({"d_model": 2}, "one layer, d_model 1, 2 heads and the positions one-each"),
        ({"heads": 3}, "one layer, d_model 1, 2 heads"),
        ({"positions": "none"}, "the positions one-each"),
    ],
)
def test_other_configs_are_refused(changed: dict, reason: str, run: Run) -> None:
    with pytest.raises(HeadwayError, match=reason):
        build_model(replace(run.config.model, **changed))


def test_a_head_sees_one_distance_and_the_encoding_is_not_offered_to_other_models() -> None:
    seen = OneEach(Shape(1, 2, 9)).of_distance(torch.arange(-2, 3))
    assert (seen == 0).tolist() == [[False, False, False, True, False], [False, False, True, False, False]]
    assert bool((seen[seen != 0] == -torch.inf).all())
    assert OneEach.name not in POSITIONS


def test_configs_of_other_models_keep_their_hash() -> None:
    run = open_one("pretrained:certified-adder")
    assert "points" not in run.config.to_json()["model"]
    table = open_one("pretrained:smallest-adder-table").config
    assert RunConfig.from_json(table.to_json()) == table
    assert isinstance(build_model(table.model), AveragingDecoder)
