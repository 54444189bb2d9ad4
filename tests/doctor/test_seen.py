"""Labs that were seen: two or more mistakes at once, of which one used to switch off the check for another. Each is
written as its authors wrote it, in plain PyTorch."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway.doctor import patient as patient_module
from headway.doctor.examination import Examination, examine_subject, find_vetoes
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks import Problems

MUSEUM = Path(__file__).parents[2] / "recipes" / "mistakes"


@pytest.fixture(scope="module")
def lab() -> Iterator[Any]:
    sys.path.insert(0, str(MUSEUM))
    yield importlib.import_module("lab")
    sys.path.remove(str(MUSEUM))


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses just enough problems to show a mistake."""
    monkeypatch.setattr(patient_module, "ROWS", 400)
    monkeypatch.setattr(patient_module, "FEW", 130)
    monkeypatch.setattr(patient_module, "ALONE", 10)


def examine(subject: Subject) -> Examination:
    return examine_subject(subject)


def accuracy(predicted: Tensor, answer: Tensor) -> float:
    return float((predicted == answer).all(1).float().mean())


@functools.cache
def train_without_zero(lab: Any) -> Any:
    """Trains as many labs do: `ignore_index=0`, since 0 is the padding of the batch, and also a digit."""
    torch.manual_seed(0)
    model = lab.Seq2Seq()

    def loss_at(step: int) -> Tensor:
        batch = lab.sums(128, step, held_out=False)
        logits = model(batch.source, lab.shifted(batch.answer))
        return F.cross_entropy(logits.reshape(-1, 13), batch.answer.reshape(-1), ignore_index=0)

    lab.fit(model, loss_at, 250)
    return model


def given_first_digit(lab: Any, **changes: Any) -> Subject:
    """The target is answer[:, 1:] and the input answer[:, :-1], so the first digit is never predicted."""
    model = lab.trained_without_start(300)

    def generate(problems: Problems) -> Tensor:
        return torch.cat((problems.answer[:, :1], _continue(model, problems.source, problems.answer[:, :1])), dim=1)

    subject = replace(
        lab.adder_subject(model),
        start=None,
        generate=generate,
        forced=lambda p: model(p.source, p.answer[:, :-1]).argmax(-1),
        score=lambda p: accuracy(model(p.source, p.answer[:, :-1]).argmax(-1), p.answer[:, 1:]),
        ablate=None,
    )
    return replace(subject, **changes)


def _continue(model: Any, source: Tensor, first: Tensor) -> Tensor:
    written = first
    for _ in range(2):
        next_token = model(source, written)[:, -1].argmax(-1)
        written = torch.cat([written, next_token.unsqueeze(1)], dim=1)
    return written[:, 1:]


def test_a_given_digit_does_not_hide_a_missing_mask(lab: Any) -> None:
    model = lab.trained_without_start(300)

    def forced(problems: Problems) -> Tensor:
        return model(problems.source, problems.answer[:, :-1], causal=False).argmax(-1)

    found = examine(given_first_digit(lab, forced=forced))
    assert {"given digits", "causality"} <= set(found.causes)
    assert "it sees the answer" in found.checks["causality"].meaning


def test_a_given_digit_does_not_hide_a_metric_that_ignores_a_token(lab: Any) -> None:
    model = lab.trained_without_start(300)

    def score(problems: Problems) -> float:
        predicted, target = model(problems.source, problems.answer[:, :-1]).argmax(-1), problems.answer[:, 1:]
        mask = target != 0
        return ((predicted == target) & mask).sum().item() / mask.sum().item()

    found = examine(given_first_digit(lab, score=score))
    assert {"given digits", "metric"} <= set(found.causes)
    assert "over tokens other than 0" in found.checks["metric"].meaning


def test_a_given_digit_does_not_hide_dependence_on_the_batch(lab: Any) -> None:
    model = lab.trained_without_start(300)

    def forced(problems: Problems) -> Tensor:
        logits = model(problems.source, problems.answer[:, :-1])
        return (logits - logits.mean(0)).argmax(-1)  # "to remove the bias"

    found = examine(given_first_digit(lab, forced=forced))
    assert {"given digits", "evaluation mode"} <= set(found.causes)


def test_a_start_token_that_is_kept_and_is_a_digit(lab: Any) -> None:
    model = lab.trained_adder(start=0, steps=300)

    def generate(problems: Problems) -> Tensor:
        written = torch.zeros(len(problems), 1, dtype=torch.long)
        for _ in range(problems.answer.shape[1] - 1):
            written = torch.cat([written, model(problems.source, written)[:, -1:].argmax(-1)], dim=1)
        return written

    found = examine(
        replace(
            lab.adder_subject(model),
            start=0,
            generate=generate,
            forced=lambda p: model(p.source, lab.shifted(p.answer, 0)).argmax(-1),
            score=lambda p: accuracy(generate(p), p.answer),
            ablate=None,
        )
    )
    assert set(found.causes) == {"greedy", "start token"}
    assert "one place late" in found.checks["greedy"].meaning
    assert "written[:, 1:]" in found.checks["greedy"].remedy
    assert found.checks["start token"].status == "warn"  # nothing but the shift is wrong with what it decodes


def test_decoding_that_begins_with_the_commonest_digit_of_each_batch_of_64(lab: Any) -> None:
    model = lab.trained_without_start(300)

    def generate(problems: Problems) -> Tensor:
        answers = []
        for batch in (problems[at : at + 64] for at in range(0, len(problems), 64)):
            first = torch.full_like(batch.answer[:, :1], batch.answer[:, 0].bincount().argmax().item())
            answers.append(torch.cat([first, _continue(model, batch.source, first)], dim=1))
        return torch.cat(answers)

    drawn, dice = lab.sums(1000, 7), torch.Generator().manual_seed(0)
    small, large = ((drawn.answer[:, 0] == digit).nonzero()[:, 0] for digit in (0, 1))
    batches = [
        torch.cat((small[at : at + 40 - 16 * (at // 40 % 2)], large[at : at + 24 + 16 * (at // 40 % 2)]))
        for at in range(0, 280, 40)
    ]
    sums = drawn[torch.cat([batch[torch.randperm(64, generator=dice)] for batch in batches])]  # 40 of 64, or 24
    subject = given_first_digit(
        lab,
        examples=lambda rows, seed, held_out: sums,
        generate=generate,
        score=lambda p: accuracy(generate(p), p.answer),
    )
    found = examine(subject)
    assert {"evaluation mode", "given digits"} == set(found.causes)
    hypothesis = str(found.checks["greedy"].evidence["hypothesis"])
    assert "the commonest first token of each batch of 64" in hypothesis, hypothesis
    assert found.checks["metric"].status == "pass"  # of what is decoded in batches


@pytest.mark.slow
def test_a_loss_that_ignores_a_digit_is_one_that_is_never_said(lab: Any) -> None:
    found = examine(replace(lab.adder_subject(train_without_zero(lab)), ablate=None))
    assert found.causes == ["never said"]
    assert found.explained["converged"] == "never said"
    assert "ignore_index=0" in found.checks["never said"].remedy
    untrained = examine_subject(lab.adder_subject(lab.Seq2Seq()), checks=("never said", "converged"))
    assert untrained.causes == ["converged"]
    assert untrained.checks["never said"].evidence["hidden_by"] == "converged"


def test_every_row_compared_with_the_first_rows_prediction(lab: Any) -> None:
    model = lab.trained_adder()

    def forced(problems: Problems) -> Tensor:
        return model(problems.source, lab.shifted(problems.answer))[0].argmax(-1)  # meant to unpack a tuple

    def score(problems: Problems) -> float:
        return (forced(problems) == problems.answer).all(1).float().mean().item()

    found = examine(replace(lab.adder_subject(model), forced=forced, score=score))
    assert found.causes == ["evaluation mode"]
    assert "the first row's" in found.checks["evaluation mode"].meaning
    expanded = replace(lab.adder_subject(model), forced=lambda p: forced(p).expand(len(p), -1))
    assert examine_subject(expanded, checks=("evaluation mode",)).causes == ["evaluation mode"]


@pytest.mark.parametrize("zeroes", ["rows", "columns"])
def test_rows_instead_of_columns_whatever_the_width_of_the_ablation(lab: Any, zeroes: str) -> None:
    model = lab.trained_without_start(300)

    @torch.no_grad()
    def ablate(problems: Problems, heads: Collection[Head]) -> Tensor:
        kept = {site: attention.out.weight.clone() for site, attention in lab.attentions(model).items()}
        for head in heads:
            weight, part = lab.attentions(model)[head.site].out.weight, slice(16 * head.number, 16 * head.number + 16)
            weight[part if zeroes == "rows" else (slice(None), part)] = 0
        logits = model(problems.source, problems.answer[:, :-1])  # two of three tokens
        for site, attention in lab.attentions(model).items():
            attention.out.weight.copy_(kept[site])
        return logits

    found = examine_subject(given_first_digit(lab, ablate=ablate), checks=("gates",)).checks["gates"]
    assert found.status == ("fail" if zeroes == "rows" else "pass"), found.meaning
    assert ("rows are zeroed" in found.meaning) == (zeroes == "rows")


def test_an_overlap_that_chance_gives_is_no_mistake(lab: Any) -> None:
    dice = torch.Generator().manual_seed(0)
    every = torch.randperm(10_000, generator=dice)

    def subject(seen: int) -> Subject:
        test = torch.cat((every[:seen], every[5000 : 5400 - seen]))
        trained = lab.encode_sums(every[:130] // 100, every[:130] % 100)  # 1.3% of all sums
        examples = lab.encode_sums(test // 100, test % 100)
        return replace(lab.adder_subject(lab.trained_adder()), examples=examples, trained_on=trained, held_out=None)

    by_chance = examine_subject(subject(6), checks=("overlap",)).checks["overlap"]
    assert by_chance.status == "pass", by_chance.meaning
    assert "1.3% would be by chance" in by_chance.meaning
    assert examine_subject(subject(30), checks=("overlap",)).checks["overlap"].status == "warn"


class MaskIsArgument:
    """Makes a lab whose model has no mask unless it is passed, as nn.Transformer has none."""

    def __init__(self, lab: Any, layers: int = 1) -> None:
        class Model(lab.Seq2Seq):
            def forward(self, source: Tensor, written: Tensor, causal: bool = False) -> Tensor:
                return super().forward(source, written, causal)

            def generate(self, source: Tensor, length: int = 3, start: int = 11) -> Tensor:
                written = torch.full_like(source[:, :1], start)
                for _ in range(length):
                    written = torch.cat((written, self(source, written, causal=True)[:, -1:].argmax(-1)), dim=1)
                return written[:, 1:]

        self.model = Model(layers)
        self.model.load_state_dict(lab.trained_adder(layers=layers).state_dict())
        self.model.eval()


@pytest.mark.parametrize("has_forced", [True, False])
def test_the_one_line_decode_of_a_model_whose_mask_is_an_argument(lab: Any, has_forced: bool) -> None:
    model = MaskIsArgument(lab).model
    forced: Callable[[Problems], Tensor] = lambda p: model(p.source, lab.shifted(p.answer), causal=True).argmax(-1)  # noqa: E731
    subject = replace(
        lab.adder_subject(lab.trained_adder()),
        model=model,
        decode=lambda source, written: model(source, written),
        generate=lambda p: model.generate(p.source),
        forced=forced if has_forced else None,
        score=lambda p: accuracy(model.generate(p.source), p.answer),
        tables=(),
        ablate=None,
    )
    found = examine(subject)
    assert found.alarms == []
    assert "run prefix by prefix" in found.checks["causality"].meaning


def test_a_start_token_that_is_a_digit_is_a_warning_where_everything_else_is_right(lab: Any) -> None:
    model = lab.trained_adder(start=0, steps=300)
    mended = replace(
        lab.adder_subject(model),
        start=0,
        generate=lambda p: model.generate(p.source, start=0),
        forced=lambda p: model(p.source, lab.shifted(p.answer, 0)).argmax(-1),
        score=lambda p: accuracy(model.generate(p.source, start=0), p.answer),
        ablate=None,
    )
    found = examine(mended)
    assert found.alarms == ["start token"]
    assert found.healthy
    assert find_vetoes(mended, "heads") == ()
    given = replace(mended, forced=lambda p: model(p.source, lab.shifted(p.answer, 0)).argmax(-1)[:, 1:])
    assert examine(given).checks["start token"].status == "fail"
    assert find_vetoes(given, "heads")
