"""The textbook study of heads gives the same numbers as Headway's, only more slowly."""

from __future__ import annotations

import pytest
import torch

from headway.bench import heads as bench
from headway.bench.reference import TextbookCopy
from headway.heads.variants import Variants
from headway.subjects.own import subject_of


@torch.no_grad()
def test_an_adder_in_pytorchs_own_modules_has_the_same_logits(adder) -> None:
    problems = adder.task.testing(seed=2, rows=100)
    textbook = TextbookCopy(adder.model).eval()
    ours = adder.model(problems.source, problems.answer)
    torch.testing.assert_close(textbook(problems.source, problems.answer), ours, rtol=1e-4, atol=1e-4)


def test_both_studies_find_the_same_accuracies_and_the_textbook_restores_the_weights(adder) -> None:
    subject = subject_of(adder)
    problems = subject.draw(60, 3, False)
    textbook = TextbookCopy(adder.model).eval()
    before = {name: tensor.clone() for name, tensor in textbook.state_dict().items()}
    theirs = bench.textbook_study(textbook, subject, adder.task, problems)
    assert theirs == Variants(subject)(problems, [frozenset(), *(frozenset({h}) for h in subject.heads)]).accuracy
    assert min(theirs) < 0.9
    for name, tensor in textbook.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_bench_row_compares_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SUMS", 40)
    monkeypatch.setattr(bench, "sweeps", lambda seed, device: {})
    row = bench.head_study(0, torch.device("cpu"), quiet=True)
    assert row.same_result
    assert row.details["heads"] == 24
