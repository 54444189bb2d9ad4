"""One pass gives the same verdict as decoding; counts add up; intervals have their coverage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import binom

from headway.api import evaluate
from headway.errors import HeadwayError
from headway.evaluation import examples as examples_module
from headway.evaluation.exact import all_trainable_right, check_greedy, evaluate_all, evaluate_sample
from headway.evaluation.examples import sample_problems
from headway.evaluation.intervals import wilson
from headway.evaluation.verdicts import right, same_answer
from headway.models import build_model
from headway.runs.config import Overrides
from headway.tasks import Addition, Sortedness
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner

CPU = torch.device("cpu")


def half_trained(task: Addition, steps: int, model: str = "encoder-decoder") -> Any:
    """A model that is right on some problems and wrong on others."""
    options = {name: getattr(task, name) for name in ("digits", "operators", "first", "natural")}
    small = {"d_model": 64, "d_ff": 128, "batch": 64, "warmup": 20} | (
        {"layers": 1, "decoder_layers": 1} if model == "encoder-decoder" else {}
    )
    config = plan("addition", Overrides(model=model, steps=steps, **small), 0, options)  # pyright: ignore[reportArgumentType]
    learner = Learner(build_model(config.model, 0), config.training)
    batches = draw_batches(task, config.training, [config.seed], None, 0, CPU)
    for _ in range(steps):
        learner.step(next(batches))
    return learner.model.eval()


@pytest.mark.parametrize(
    ("task", "model"),
    [
        (Addition(digits=1), "encoder-decoder"),
        (Addition(digits=1), "decoder"),
        (Addition(digits=2, operators="+-", natural=True), "encoder-decoder"),
        (Addition(digits=2, first="least", natural=True), "decoder"),
    ],
    ids=str,
)
def test_greedy_and_one_pass_give_the_same_verdict_on_every_problem(task: Addition, model: str) -> None:
    trained = half_trained(task, 120, model)
    problems = task.listing(0, task.count or 0)
    with torch.inference_mode():
        in_one_pass = right(trained(problems.source, problems.answer), problems)
        decoded = same_answer(trained.generate(problems.source, problems.answer.shape[1]), problems)
    assert torch.equal(in_one_pass, decoded)
    assert 0.02 < float(in_one_pass.double().mean()) < 0.999  # both verdicts occur


def test_counts_add_up_and_equal_a_plain_loop() -> None:
    task = Addition(digits=1)
    model = half_trained(task, 60)
    found = evaluate_all(model, task)
    wrong = held_out = 0
    for number in range(100):
        problem = task.listing(number, number + 1)
        answer = model(problem.source, problem.answer).argmax(-1)
        missed = answer.tolist() != problem.answer.tolist()
        wrong += missed
        held_out += bool(task.held_out(problem))
    assert (found.examples, found.errors, found.held_out.examples) == (100, wrong, held_out)
    assert found.interval is None
    for name in ("carries", "longest carry chain", "propagated carries", "answer length"):
        mine = [stratum for stratum in found.strata if stratum.stratum.startswith(f"{name}=")]
        assert sum(stratum.examples for stratum in mine) == 100
        assert sum(stratum.errors for stratum in mine) == wrong


def test_tokens_after_the_end_token_do_not_count() -> None:
    task = Addition(digits=1, natural=True)
    problems = task.listing(0, 3)  # 0 + 0, 0 + 1, 0 + 2: one digit, the end, and one token to spare
    logits = torch.nn.functional.one_hot(problems.answer, task.vocabulary).float()
    logits[0, 2] = logits[0, 2].roll(1)
    logits[1, 1] = logits[1, 1].roll(1)
    assert right(logits, problems).tolist() == [True, False, True]


@pytest.mark.parametrize(("examples", "expected"), [(900, [100] * 9), (11, [2, 2, 1, 1, 1, 1, 1, 1, 1])])
def test_a_sample_is_spread_evenly_over_the_training_lengths(examples: int, expected: list[int]) -> None:
    drawn = sample_problems(Sortedness(), examples, seed=0, length=None, probe="default", device=CPU)
    assert [(chunk.source.shape[1], len(chunk)) for chunk in drawn] == list(zip(range(8, 17), expected, strict=True))


def test_chunks_hold_the_problems_of_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Sortedness()
    whole = task.testing(0, 500, length=12)
    monkeypatch.setattr(examples_module, "CHUNK_TOKENS", 1000)
    chunks = list(sample_problems(task, 500, seed=0, length=12, probe="default", device=CPU))
    assert len(chunks) > 5
    assert torch.equal(torch.cat([chunk.source for chunk in chunks]), whole.source)


def test_without_positions_the_answer_is_right_exactly_half_the_time() -> None:
    """On every probe and length, whatever the weights: by symmetry, both sequences of a pair look the same."""
    model = build_model(plan("sortedness", Overrides(positions="none"), 0).model, seed=4).double()
    for probe, length in (("one-inversion", 8), ("one-inversion", 64), ("descending", 16)):
        assert evaluate_sample(model, Sortedness(), 400, probe=probe, length=length).exact_match == 0.5


def test_wilson_is_the_published_formula_and_covers() -> None:
    z = 1.959963984540054
    for correct, n in ((0, 10), (7, 10), (995, 1000)):
        p = correct / n
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
        found = wilson(correct, n)
        assert found.low == pytest.approx(centre - half, abs=1e-12)
        assert found.high == pytest.approx(centre + half, abs=1e-12)
    truth, n = 0.97, 400
    covered = sum(binom.pmf(k, n, truth) for k in range(n + 1) if wilson(k, n).low <= truth <= wilson(k, n).high)
    assert covered > 0.93


def test_the_shipped_adder_is_right_and_decoding_agrees(adder) -> None:
    found = evaluate(adder, examples=4_000, greedy=400)
    assert found.errors == 0
    assert found.greedy is not None
    assert found.greedy.mismatches == 0


@pytest.mark.slow
def test_every_one_of_a_million_sums_is_right(adder) -> None:
    found = evaluate(adder, all=True)
    assert (found.examples, found.errors) == (1_000_000, 0)


def test_perfection_and_a_single_error_are_both_detected() -> None:
    """One-digit sums are memorised, so held-out ones stay wrong: they must not keep a run going."""
    task = Addition(digits=1)
    model = half_trained(task, 200)
    found = evaluate_all(model, task)
    assert found.errors == found.held_out.errors > 0
    assert all_trainable_right(model, task)
    with torch.no_grad():
        model.unembed.bias[7] += 1.05 * smallest_lead_over(7, model, task)
    found = evaluate_all(model, task)
    assert found.errors > found.held_out.errors
    assert not all_trainable_right(model, task)


def smallest_lead_over(token: int, model: Any, task: Addition) -> float:
    """Returns how much the logit of `token` must rise before the first trainable answer changes."""
    problems = task.listing(0, task.count or 0)
    problems = problems[(~task.held_out(problems)).nonzero()[:, 0]]
    logits = model(problems.source, problems.answer).detach()
    lead = logits.gather(-1, problems.answer[..., None])[..., 0] - logits[..., token]
    return float(lead[problems.answer != token].min())


def test_requests_that_contradict_themselves_are_refused(adder) -> None:
    with pytest.raises(HeadwayError, match="leave out `examples`"):
        evaluate(adder, all=True, examples=5)
    with pytest.raises(HeadwayError, match="at least 1"):
        evaluate(adder, examples=0)
    with pytest.raises(HeadwayError, match="did you mean 'carry-heavy'"):
        evaluate(adder, examples=5, probe="carry-hevy")
    classifier = build_model(plan("sortedness", Overrides(), 0).model)
    with pytest.raises(HeadwayError, match="nothing to decode"):
        check_greedy(classifier, [Sortedness().testing(0, 5)], 5)
    with pytest.raises(HeadwayError, match="10\\^18 problems"):
        evaluate_all(adder.model, Addition(digits=9))
