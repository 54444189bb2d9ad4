"""Every kind of ablation equals the slow, obvious way, problem by problem."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from headway.attach.opening import prepare_subject
from headway.errors import HeadwayError
from headway.evaluation.exact import check_greedy
from headway.evaluation.verdicts import losses_of, right
from headway.heads import ablations as module
from headway.heads.ablations import Resample
from headway.heads.together import measure_pairs
from headway.heads.variants import Variants
from headway.models import Attention, Gate, Head, Site, Trace, build_model, heads_of
from headway.runs.config import Overrides
from headway.subjects.own import subject_of
from headway.subjects.runner import HeadwayRunner
from headway.subjects.splits import Split
from headway.subjects.subject import Subject
from headway.tasks import Addition, Sortedness
from headway.training.defaults import plan

ROWS = 40


@pytest.fixture(scope="module")
def subject(adder) -> Subject:
    return subject_of(adder)


@pytest.fixture(scope="module")
def problems(subject: Subject):
    return subject.draw(ROWS, 5, False)


def attention_at(model: torch.nn.Module, site: Site) -> Attention:
    return next(m for m in model.modules() if isinstance(m, Attention) and m.site == site)


def test_closing_nothing_changes_nothing(subject: Subject, problems) -> None:
    outcome = Variants(subject)(problems, [frozenset()])
    with torch.no_grad():
        logits = subject.model(problems.source, problems.answer)
    assert torch.equal(outcome.right[0], right(logits, problems))
    torch.testing.assert_close(outcome.loss[0], losses_of(logits, problems))


def test_a_closed_head_is_one_whose_columns_of_the_output_projection_are_zero(subject: Subject, problems) -> None:
    outcome = Variants(subject)(problems, [frozenset({head}) for head in subject.heads])
    for number, head in enumerate(subject.heads):
        model = copy.deepcopy(subject.model)
        site = attention_at(model, head.site)
        with torch.no_grad():
            site.out.weight[:, head.number * site.dim : (head.number + 1) * site.dim] = 0
            logits = model(problems.source, problems.answer)
        assert torch.equal(outcome.right[number], right(logits, problems))
        torch.testing.assert_close(outcome.loss[number], losses_of(logits, problems), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def slow_outcomes(subject: Subject, problems, closed, fills) -> tuple[list[bool], list[float]]:
    """Runs the whole model on one problem at a time, with every gate written out."""
    verdicts, losses = [], []
    for row in range(len(problems)):
        own = problems[row : row + 1]
        gates = {}
        for site in {part.site if isinstance(part, Head) else part for part in closed}:
            heads = 1 if site.kind == "feed" else 4
            open_ = [float(site not in closed and Head(site, n) not in closed) for n in range(heads)]
            gates[site] = Gate(torch.tensor([open_]), fills(site, row))
        logits = subject.model(own.source, own.answer, gates)
        verdicts.append(bool(right(logits, own)[0]))
        losses.append(float(losses_of(logits, own)[0]))
    return verdicts, losses


def some_variants(subject: Subject) -> list[frozenset]:
    heads = subject.heads
    return [
        frozenset({heads[2]}),
        frozenset({heads[0], heads[13], heads[23]}),
        frozenset({Site("decoder", 0, "feed")}),
        frozenset({Site("encoder", 1, "self"), heads[20]}),
    ]


def outputs(subject: Subject, problems) -> dict[Site, torch.Tensor]:
    trace = Trace()
    with torch.no_grad():
        subject.model(problems.source, problems.answer, None, trace)
    return trace.outputs


def test_mean_ablation_is_the_mean_at_each_position_over_held_out_problems(
    subject: Subject, problems, adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEAN_OVER", 60)
    ran = Variants(subject, "mean", seed=3)
    donors = subject.draw(60, Split.MEANS.seed(3), True)
    assert adder.task.held_out(donors).all()
    said = outputs(subject, donors)
    outcome = ran(problems, some_variants(subject))
    for number, closed in enumerate(some_variants(subject)):
        expected = slow_outcomes(subject, problems, closed, lambda site, row: said[site].mean(0, keepdim=True))
        assert outcome.right[number].tolist() == expected[0]
        assert outcome.loss[number].tolist() == pytest.approx(expected[1], rel=1e-3, abs=1e-4)


def test_resample_ablation_takes_the_output_of_another_problem(subject: Subject, problems) -> None:
    ran = Variants(subject, "resample", seed=3)
    outcome = ran(problems, some_variants(subject))
    said = outputs(subject, ran.ablation.donors(problems))
    for number, closed in enumerate(some_variants(subject)):
        expected = slow_outcomes(subject, problems, closed, lambda site, row: said[site][row : row + 1])
        assert outcome.right[number].tolist() == expected[0]
        assert outcome.loss[number].tolist() == pytest.approx(expected[1], rel=1e-3, abs=1e-4)


def test_donors_are_other_problems_in_an_order_independent_of_labels() -> None:
    for task, options in ((Sortedness(), {}), (Addition(digits=1), {"digits": 1})):
        config = plan(task.name, Overrides(d_model=16, heads=2, d_ff=32), 0, options)
        model = build_model(config.model)
        own = prepare_subject(Subject(
            model, heads=tuple(heads_of(model)), examples=lambda rows, seed, held, task=task: task.testing(seed, rows)
        ))  # fmt: skip
        problems = own.draw(400, 0, False)
        donors = Resample(own, 0).donors(problems)
        assert not (donors.source == problems.source).all(1).any()
        if task.classes is not None:
            assert 0.4 < (donors.answer == problems.answer).float().mean() < 0.6


def test_naming_one_head_closes_one_head(subject: Subject, problems) -> None:
    few = replace(subject, heads=subject.heads[2:3])
    ours = Variants(few)(problems, [frozenset(few.heads)])
    assert torch.equal(ours.right, Variants(subject)(problems, [frozenset(few.heads)]).right)


def test_a_head_that_the_model_does_not_have_is_refused(subject: Subject) -> None:
    with pytest.raises(HeadwayError, match=r"names decoder\.7\.self\.0, which its model does not have"):
        Variants(replace(subject, heads=(Head(Site("decoder", 7, "self"), 0),)))


def test_variants_on_top_of_a_base_close_both(subject: Subject, problems) -> None:
    base, more = frozenset(subject.heads[:3]), some_variants(subject)
    ran = Variants(subject)
    on_top, at_once = ran(problems, more, base), ran(problems, [closed | base for closed in more])
    assert torch.equal(on_top.right, at_once.right)
    torch.testing.assert_close(on_top.loss, at_once.loss, rtol=1e-4, atol=1e-4)


def test_decoding_gives_the_one_pass_verdict_under_every_single_ablation(subject: Subject, problems, adder) -> None:
    wrong = 0
    for head in subject.heads:
        found = check_greedy(adder.model, [problems], ROWS, HeadwayRunner(adder.model).close_heads([head]))
        assert found.mismatches == 0
        wrong += ROWS - int(Variants(subject)(problems, [frozenset({head})]).right.sum())
    assert wrong > 0  # the ablations do something


def test_two_identical_heads_back_each_other_up(subject: Subject) -> None:
    model = copy.deepcopy(subject.model)
    site = attention_at(model, Site("encoder", 0, "self"))
    needed, spare = slice(2 * site.dim, 3 * site.dim), slice(0, site.dim)  # head 2 costs much, head 0 nothing
    with torch.no_grad():
        site.query[spare], site.key_value[:, spare] = site.query[needed], site.key_value[:, needed]
        site.out.weight[:, needed] /= 2
        site.out.weight[:, spare] = site.out.weight[:, needed]
    planted = {Head(site.site, 0), Head(site.site, 2)}
    heads = tuple(head for head in subject.heads if head.site == site.site)
    changed = prepare_subject(replace(subject, model=model, heads=heads))
    found = measure_pairs(Variants(changed), subject.draw(200, 1, False))
    assert set(found[0].heads) == planted
    assert found[0].backup > 0.3
    assert found[1].backup < 0.1
