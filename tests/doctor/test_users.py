"""Users' models: toy models that are perfect by construction, and styles that must raise no false alarm."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.api.examining import examine_all
from headway.doctor.examination import Examination, examine_subject, find_vetoes
from headway.errors import HeadwayError
from headway.models import Head, Site
from headway.subjects.subject import Subject
from headway.tasks import Problems

START, ROWS = 11, 300


class Oracle(nn.Module):
    """Writes the source backwards, whatever it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        right = source.flip(1)[:, : written.shape[1]]
        right = nn.functional.pad(right, (0, written.shape[1] - right.shape[1]))
        return nn.functional.one_hot(right, 12).float() * 9 * self.weight


def digits(rows: int = ROWS, width: int = 3) -> Tensor:
    return torch.randint(10, (rows, width), generator=torch.Generator().manual_seed(0))


def oracle(**changes: Any) -> Subject:
    model, source = Oracle(), digits()
    subject = Subject(
        model,
        examples=Problems(source, source.flip(1)),
        start=START,
        decode=model,
        generate=lambda problems: problems.source.flip(1),
        score=lambda problems: 1.0,
    )
    return replace(subject, **changes)


def alarms(subject: Subject) -> list[str]:
    return examine_subject(subject).alarms


def run_checks(subject: Subject, *checks: str) -> Examination:
    return examine_subject(subject, checks=checks)


class Classifier(nn.Module):
    """Classifies by a given function of the source."""

    def __init__(self, rule: Any, classes: int) -> None:
        super().__init__()
        self.rule, self.classes, self.weight = rule, classes, nn.Parameter(torch.ones(1))

    def forward(self, source: Tensor, answer: Tensor | None = None) -> Tensor:
        return nn.functional.one_hot(self.rule(source), self.classes)[:, None].float() * 9 * self.weight


def classifier_subject(rule: Any, classes: int, source: Tensor) -> Subject:
    return Subject(Classifier(rule, classes), examples=Problems(source, rule(source)[:, None]))


def test_a_perfect_model_raises_no_alarm_in_any_habit() -> None:
    impossible = torch.zeros(12)
    impossible[10:] = -torch.inf
    source = digits()
    counts = torch.tensor([True, True, True, False]).repeat(ROWS, 1)
    padded = Problems(source, torch.cat((source.flip(1), torch.full((ROWS, 1), START)), 1), counts)
    habits: dict[str, Subject] = {
        "plain": oracle(),
        "tokens that cannot be": oracle(decode=lambda source, written: Oracle()(source, written) + impossible),
        "decoding of int32": oracle(generate=lambda problems: problems.source.flip(1).int()),
        "decoding that goes on": oracle(generate=lambda p: nn.functional.pad(p.source.flip(1), (0, 2))),
        "accuracy in percent": oracle(score=lambda problems: 100.0),
        "padding that is the start token and does not count": oracle(examples=padded),
        "decoding that stops there": oracle(examples=padded, generate=lambda p: p.source.flip(1)),
        "two tokens": classifier_subject(lambda source: (source[:, 0] - source[:, 1]) % 10, 10, digits(width=2)),
        "the first pair of four": classifier_subject(
            lambda source: (source[:, 0] > source[:, 1]).long(), 2, digits(width=4)
        ),
    }
    for name, subject in habits.items():
        assert alarms(subject) == [], name


def test_a_task_that_needs_no_order_is_a_warning_not_a_failure() -> None:
    found = run_checks(classifier_subject(lambda source: source.amax(1), 10, digits(width=5)), "blindness", "converged")
    assert found.checks["blindness"].status == "warn"
    assert found.healthy


def test_few_examples_are_too_few_not_badly_trained() -> None:
    source = digits(40)
    found = run_checks(oracle(examples=Problems(source, source.flip(1))), "converged").checks["converged"]
    assert found.status == "warn"
    assert "40 are too few" in found.meaning


def test_random_decoding_and_batch_norm_are_distinguished() -> None:
    torch.manual_seed(0)
    sampled = oracle(generate=lambda p: torch.where(torch.rand(p.answer.shape) < 0.1, 0, p.source.flip(1)))
    found = run_checks(sampled, "evaluation mode", "given digits")
    assert found.causes == ["evaluation mode"]
    assert "decoded twice" in found.checks["evaluation mode"].meaning

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.oracle = nn.BatchNorm1d(12), Oracle()

        def forward(self, source: Tensor, written: Tensor) -> Tensor:
            logits = self.oracle(source, written)
            return logits + 0 * self.norm(logits[:, 0])[:, None]

    model = Normalised().train()
    before = model.norm.running_mean
    assert before is not None
    before = before.clone()
    found = run_checks(oracle(model=model, decode=model), "evaluation mode").checks["evaluation mode"]
    assert "it fails on 1 problem alone" in found.meaning
    assert torch.equal(model.norm.running_mean, before)  # pyright: ignore[reportArgumentType]


class Heads(nn.Module):
    """Four heads, each a quarter of the output projection's input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(16, 12)

    def forward(self, source: Tensor, written: Tensor, z: Tensor | None = None) -> Tensor:
        z = self.spread(source, written) if z is None else z
        return self.out(z)

    def spread(self, source: Tensor, written: Tensor) -> Tensor:
        return torch.sin(source.float().sum(1)[:, None, None] + torch.arange(16.0)).expand(-1, written.shape[1], -1)


def test_gates_take_any_sound_ablation() -> None:
    model, site = Heads(), Site("encoder", 0, "self")

    def ablate(into: Tensor) -> Any:
        def closed(problems: Problems, heads: Collection[Head]) -> Tensor:
            z = model.spread(problems.source, problems.answer).clone()
            for head in heads:
                z[..., 4 * head.number : 4 * head.number + 4] = into[4 * head.number : 4 * head.number + 4]
            return model(problems.source, problems.answer, z)

        return closed

    every = tuple(Head(site, number) for number in range(4))
    base = {"model": model, "decode": model, "projections": {site: model.out}}
    for heads in (every, every[:2]):
        for into in (torch.zeros(16), torch.full((16,), 0.3)):
            found = run_checks(oracle(**base, heads=heads, ablate=ablate(into)), "gates").checks["gates"]
            assert found.status == "pass", found.meaning

    def half(problems: Problems, heads: Collection[Head]) -> Tensor:
        return ablate(torch.zeros(16))(problems, [head for head in heads if head.number])

    found = run_checks(oracle(**base, heads=every, ablate=half), "gates").checks["gates"]
    assert "ablating encoder.0.self.0 does not zero its columns" in found.meaning


def test_a_leak_is_detected_despite_infinite_logits() -> None:
    def leaks(source: Tensor, written: Tensor) -> Tensor:
        logits = Oracle()(source, written) + written.roll(-1, 1)[..., None] * torch.arange(12)
        return logits.index_fill(2, torch.tensor([10]), -torch.inf)

    assert run_checks(oracle(decode=leaks), "causality").checks["causality"].status == "fail"


def test_a_warning_hides_no_failure_from_a_study() -> None:
    torch.manual_seed(0)
    source = digits(1000, 4)
    answer = (torch.rand(1000, 1) < 0.35).long()
    model = Classifier(lambda given: (given[:, 0] < 1).long(), 2)
    found = find_vetoes(Subject(model, examples=Problems(source, answer)), "lengths")
    assert [each["check"] for each in found] == ["converged"]


def test_a_subject_that_cannot_be_examined_gives_a_one_line_error() -> None:
    with pytest.raises(HeadwayError, match=r"\(NaN\)"):
        examine_subject(oracle(decode=lambda s, w: Oracle()(s, w) * torch.nan))


def test_a_table_without_gradients_costs_only_the_check_of_positions() -> None:
    tables, trained_on = [nn.Parameter(torch.zeros(3, 2))], Problems(digits(), digits())
    found = examine_subject(oracle(tables=tables, trained_on=trained_on, decode=torch.no_grad()(Oracle())))
    assert "answers without gradients" in found.checks["positions"].meaning
    assert found.checks["positions"].status == "warn"
    assert found.checks["converged"].status == "pass"


def test_a_subject_rejects_invalid_arguments() -> None:
    for changes, words in (
        ({"max_drop": 0.0}, "max_drop is 0.0"),
        ({"claimed_on": 1}, "on 1 examples"),
    ):
        with pytest.raises(HeadwayError, match=words):
            oracle(**changes)


def test_submissions_with_packages_of_the_same_name_do_not_collide(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "src").mkdir(parents=True)  # a folder without an __init__.py
        (tmp_path / name / "src" / "model.py").write_text(f"NAME = {name!r}\n")
        (tmp_path / name / "subject.py").write_text("from src import model\nraise ValueError(model.NAME)\n")
    before = list(sys.path)
    found = examine_all([f"{tmp_path}/*/subject.py:build"])
    refused = [each.to_json()["refused"] for each in found]
    assert "ValueError: one" in refused[0]
    assert "ValueError: two" in refused[1]
    assert [path for path in sys.path if str(tmp_path) in path] == [path for path in before if str(tmp_path) in path]
