"""Where some contexts are wrong, the accuracy at every length is exact: all sums of a length give the same number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from damaged import damage

from headway.certify.accuracy import LENGTHS
from headway.certify.certificate import certify
from headway.certify.columns import contexts, patterns
from headway.cli import main
from headway.evaluation.intervals import wilson
from headway.models import Decoder, build_model
from headway.runs.config import Overrides
from headway.subjects.own import open_one
from headway.tasks import Addition
from headway.tasks.problems import Columns
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner
from small import small_model

SUMS = 1_000_000


def train_adder(base: int, behind: int, steps: int) -> tuple[Decoder, Addition]:
    """Trains a small adder for a while: some of its contexts are still wrong."""
    options = {"first": "least", "digits": 4, "shortest": 1, "base": base}
    window = {"model": "decoder", "positions": f"window+behind={behind}+ahead=0", "index": "coupled"}
    config = plan("addition", Overrides(**window, **small_model(32)), 0, options)  # pyright: ignore[reportArgumentType]
    task = Addition(**options)  # pyright: ignore[reportArgumentType]
    learner = Learner(build_model(config.model, 0), config.training)
    batches = draw_batches(task, config.training, [0], None, 0, torch.device("cpu"))
    for _ in range(steps):
        learner.step(next(batches))
    model = learner.model.eval()
    assert isinstance(model, Decoder)
    return model, task


@torch.no_grad()
def share_right(model: Decoder, base: int, digits: int) -> float:
    """The slow way: adds all numbers of this many digits."""
    task = Addition(first="least", digits=digits, base=base)
    assert task.count is not None
    problems = task.listing(0, task.count)
    return float((model(problems.source, problems.answer).argmax(-1) == problems.answer).all(1).double().mean())


@pytest.mark.parametrize(("base", "behind", "steps"), [(3, 1, 60), (2, 2, 40)])
def test_the_accuracy_is_that_of_all_sums(base: int, behind: int, steps: int) -> None:
    model, task = train_adder(base, behind, steps)
    found = certify(model, task)
    assert found.wrong
    assert found.accuracy_at_least is not None
    values = {each.length: each.value for each in found.accuracy_at_least}
    assert tuple(values) == LENGTHS
    shares = {digits: share_right(model, base, digits) for digits in (1, 2, 3, 5 if base == 2 else 3)}
    assert {digits: values[digits] for digits in shares} == pytest.approx(shares, abs=1e-12)
    assert 0 < shares[2] < 1
    assert sorted(values.values(), reverse=True) == list(values.values())  # a longer sum has more ways to go wrong


def test_an_untrained_adder_is_wrong_and_says_how_often(tmp_path: Path, capsys) -> None:
    size = ["--d-model", "8", "--d-ff", "8", "--heads", "2", "--layers", "1", "--steps", "1", "--batch", "2"]
    shape = ["--model", "decoder", "--positions", "window+behind=1+ahead=0", "--index", "coupled"]
    options = ["--option", "first=least", "base=2", "digits=3", "shortest=1"]
    assert main(["train", "addition", *shape, *size, *options, "--out", str(tmp_path), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["certify", str(tmp_path), "--json", "--quiet"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] > 0
    assert [entry["length"] for entry in found["accuracy_at_least"]] == list(LENGTHS)
    model = open_one(tmp_path).model
    assert isinstance(model, Decoder)
    assert found["accuracy_at_least"][0]["value"] == pytest.approx(share_right(model, 2, 1), abs=1e-12)
    assert main(["certify", str(tmp_path), "--quiet"]) == 1
    assert "accuracy at least" in capsys.readouterr().out


@torch.no_grad()
def judge_contexts(model: Decoder, task: Addition) -> dict[str, np.ndarray]:
    """Returns whether the model is right in each context, by kind and by the tokens in sight: the operand pair of the
    column and of the one before (10·a + b), the last answer digit and the one before it, as digits of one number."""
    tables: dict[str, np.ndarray] = {}
    assert isinstance(task.local, Columns)
    for kind, (digits, column) in patterns(model, task).items():
        place = "last" if column == digits else "inner"
        name = place if not kind.begins else f"{place} {column}"
        table = tables.setdefault(name, np.zeros(1_000_000, dtype=bool))
        for problems in contexts(task.local, kind, digits, column):
            right = (
                model(problems.source, problems.answer)[:, column].argmax(-1) == problems.answer[:, column]
            ).numpy()
            a, _, b = (each.numpy()[..., ::-1] for each in task.operands(problems))
            pairs = [10 * a[:, at] + b[:, at] if 0 <= at < digits else 0 for at in (column, column - 1)]
            answers = [problems.answer[:, at].numpy() if at >= 0 else 0 for at in (column - 1, column - 2)]
            table[pairs[0] + 100 * pairs[1] + 10_000 * answers[0] + 100_000 * answers[1]] = right
    return tables


def judge_sums(
    tables: dict[str, np.ndarray], lengths: tuple[int, ...], seed: int
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Draws sums column by column and looks every context up. Returns which sums are right when they end after each of
    the lengths, and the operand pairs of the first columns."""
    generator, right, kept = np.random.default_rng(seed), np.ones(SUMS, dtype=bool), []
    before = carry = answer = earlier = np.zeros(SUMS, dtype=np.int32)
    ended = {}
    for column in range(max(lengths) + 1):
        sight = 100 * before + 10_000 * answer + 100_000 * earlier
        if column in lengths:
            ended[column] = right & tables[f"last {column}" if column <= 1 else "last"][sight]
        pair = generator.integers(0, 100, SUMS, dtype=np.int32)
        right = right & tables[f"inner {column}" if column <= 1 else "inner"][pair + sight]
        kept += [pair] if column < min(lengths) else []
        total = pair // 10 + pair % 10 + carry
        before, carry, earlier, answer = pair, total // 10, answer, total % 10
    return ended, np.stack(kept, 1)


@torch.no_grad()
def decode(model: Decoder, task: Addition, pairs: np.ndarray) -> np.ndarray:
    """Really decodes these sums, digit by digit; returns which answers are right."""
    a, b = (torch.tensor(each[:, ::-1].astype(np.int64)) for each in (pairs // 10, pairs % 10))
    problems = task.problems(a, torch.full((len(a),), task.plus), b)
    written = model.generate(problems.source, problems.answer.shape[1])
    return (written == problems.answer).all(1).numpy()


@pytest.mark.slow
def test_a_damaged_adder_is_as_accurate_as_a_million_random_sums_show() -> None:
    """Wrong contexts are planted in the weights. A table of the contexts judges every column of a million sums; that
    the table says what decoding gives is checked on some thousand sums, among them hundreds that it calls wrong."""
    run = open_one("pretrained:certified-adder", "cpu")
    model, task = run.model, run.task
    assert isinstance(model, Decoder)
    assert isinstance(task, Addition)
    damage(model, task)
    found = certify(model, task)
    assert 30 <= found.wrong < 300
    assert found.accuracy_at_least is not None
    values = {each.length: each.value for each in found.accuracy_at_least}
    tables = judge_contexts(model, task)
    ended, pairs = judge_sums(tables, (10, 100, 1_000), seed=0)
    for length, right in ended.items():
        low, high = wilson(int(right.sum()), SUMS).to_json()
        print(
            f"{length} digits: {values[length]:.6f}; {SUMS:,} sums {right.mean():.6f}, interval {low:.6f} to {high:.6f}"
        )
        assert low <= values[length] <= high
    assert 0.1 < values[1_000] < 0.99
    some = np.concatenate((np.arange(2_000), np.flatnonzero(~ended[10])[:500]))
    assert np.array_equal(decode(model, task, pairs[some]), ended[10][some])
    assert (~ended[10][some]).sum() >= 400
