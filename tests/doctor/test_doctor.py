"""The doctor: nothing to say of the healthy, and of each mistake its cause, in words with a number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.cli import main
from headway.doctor import decoding as decoding_module
from headway.doctor import patient as patient_module
from headway.doctor.decoding import decoded
from headway.doctor.examination import CHECKS, Examination, examine_subject
from headway.doctor.patient import Patient
from headway.models import EncoderDecoder, build_model
from headway.runs.config import Wishes
from headway.subjects.own import open_one, subject_of
from headway.subjects.subject import Subject
from headway.tasks import Problems, Sortedness
from headway.training.defaults import plan


@pytest.fixture(scope="module")
def adder() -> Subject:
    return subject_of(open_one("pretrained:adder"))


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as show each mistake."""
    monkeypatch.setattr(patient_module, "ROWS", 200)
    monkeypatch.setattr(decoding_module, "FEW", 40)


def model_of(subject: Subject) -> EncoderDecoder:
    assert isinstance(subject.model, EncoderDecoder)
    return subject.model


def classifier(positions: str) -> Subject:
    """Not trained: what it says is of no use, but it is said of the order or not."""
    wishes = Wishes(positions=positions, d_model=32, heads=4, d_ff=64, layers=1)
    config = plan("sortedness", wishes, 0)
    model, task = build_model(config.model, 0).eval(), Sortedness()
    return Subject("untrained", model, (), lambda rows, seed, held_out: task.independent(seed, rows))


@pytest.mark.parametrize("name", ["adder", "certified-adder"])
def test_the_healthy_raise_no_alarm(name: str) -> None:
    found = headway.examine(f"pretrained:{name}")
    assert found.healthy
    assert found.alarms == []
    assert {check for check, each in found.checks.items() if each.status == "skipped"} == {
        "padding", "resolution", "together",
    }  # fmt: skip


def started_with(subject: Subject, token: int | None) -> Callable[[Problems], Tensor]:
    """Decoding that begins with another token; None for the commonest first token of the batch."""

    def generate(problems: Problems) -> Tensor:
        first = int(problems.answer[:, 0].mode().values) if token is None else token
        return decoded(Patient(subject), problems, torch.full_like(problems.answer[:, 0], first))

    return generate


def one_late(subject: Subject) -> Callable[[Problems], Tensor]:
    def generate(problems: Problems) -> Tensor:
        start = torch.full_like(problems.answer[:, :1], 12)
        return torch.cat((start, model_of(subject).generate(problems.source, 4)[:, :-1]), dim=1)

    return generate


def unmasked(subject: Subject) -> Callable[[Tensor, Tensor], Tensor]:
    def decode(source: Tensor, written: Tensor) -> Tensor:
        model = model_of(subject)
        own, across = model.orders(source, written.shape[1])
        return model.decode(written, model.encode(source), (replace(own, causal=False), across))

    return decode


def fed(subject: Subject) -> Callable[[Problems], Tensor]:
    def generate(problems: Problems) -> Tensor:
        return torch.cat((problems.answer[:, :1], model_of(subject).generate(problems.source, 4)[:, 1:]), dim=1)

    return generate


def over_tokens(subject: Subject, zero_counts: bool) -> Callable[[Problems], float]:
    def score(problems: Problems) -> float:
        said = model_of(subject)(problems.source, problems.answer).argmax(-1)
        said[:50, 0] = 9  # a few wrong, so that the ways of counting differ
        same = said == problems.answer
        return float((same if zero_counts else same[problems.answer != 0]).float().mean())

    return score


class Deaf(nn.Module):
    """Takes gates and does not use them."""

    def __init__(self, model: nn.Module, noise: float = 0.0) -> None:
        super().__init__()
        self.model, self.noise = model, noise

    def forward(self, source: Tensor, answer: Tensor, gates: object = None) -> Tensor:
        logits = self.model(source, answer)
        return logits + self.noise * torch.randn_like(logits)


def broken(name: str, subject: Subject) -> Subject:
    """The healthy adder, studied with one mistake."""
    made = {
        "starts with the digit 0": lambda: replace(subject, generate=started_with(subject, 0)),
        "starts with the batch's commonest": lambda: replace(subject, generate=started_with(subject, None)),
        "start token kept": lambda: replace(subject, generate=one_late(subject)),
        "no causal mask": lambda: replace(subject, decode=unmasked(subject), score=None),
        "first digit given": lambda: replace(subject, generate=fed(subject)),
        "three of four predicted": lambda: replace(
            subject, forced=lambda problems: model_of(subject)(problems.source, problems.answer).argmax(-1)[:, 1:]
        ),
        "dropout": lambda: replace(subject, model=Deaf(subject.model, 1.0), decode=None, heads=(), score=None),
        "gates not wired": lambda: replace(subject, model=Deaf(subject.model), decode=None),
        "all heads claimed": lambda: replace(subject, claimed=subject.heads),
        "too few examples": lambda: replace(classifier("sinusoidal"), claimed_on=100),
        "padded": lambda: replace(subject, pad=0),
        "seen before": lambda: replace(subject, held_out=None, trained_on=subject.examples(200, 1_000, False)[:60]),
        "rows never trained": lambda: replace(subject, untrained=lambda problems: [16, 17]),
        "never learned": lambda: classifier("sinusoidal"),
        "no positions": lambda: classifier("none"),
        "one class": lambda: replace(classifier("sinusoidal"), sets=one_class),
    }
    return made[name]()


def one_class() -> dict[str, Problems]:
    problems = Sortedness().independent(0, 300)
    return {"long": problems[(problems.answer[:, 0] == 0).nonzero()[:, 0]]}


MISTAKES = {  # what is wrong: the check that must name it, what its words hold, and other alarms that may follow
    "starts with the digit 0": ("greedy", r"begins with token 0, training with 12", set()),
    "starts with the batch's commonest": ("evaluation mode", r"decoded alone, \d+ of 20", {"greedy"}),
    "start token kept": ("greedy", r"one place late", set()),
    "no causal mask": ("causality", r"up to \d", {"greedy", "converged", "floor", "gates"}),
    "first digit given": ("given digits", r"token 0 is given", set()),
    "three of four predicted": ("given digits", r"predicts 3 of 4 tokens, the first 1 are given", set()),
    "dropout": ("evaluation mode", r"differ by \d", {"converged", "greedy", "blindness"}),
    "gates not wired": ("gates", r"closing all 24 heads moves no logit by more than 0", set()),
    "all heads claimed": ("together", r"24 heads may each go alone; without all of them 0\.\d+", set()),
    "too few examples": ("resolution", r"100 examples cannot tell a difference of 0\.01", {"converged", "constant"}),
    "padded": ("padding", r"four tokens of padding", set()),
    "seen before": ("overlap", r"30\.\d% of the test problems were trained on; right on 1\.0000 of 60", set()),
    "rows never trained": ("positions", r"2 positions that no training step", set()),
    "never learned": ("converged", r"0\.\d+ of 200", {"constant"}),
    "no positions": ("blindness", r"when the source is permuted", {"converged", "constant"}),
    "one class": ("balance", r"in long one class has 1\.000", {"converged", "constant"}),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named_as_cause(name: str, adder: Subject) -> None:
    check, words, symptoms = MISTAKES[name]
    found = examine_subject(broken(name, adder))
    assert found.checks[check].status in ("warn", "fail"), found.checks[check]
    assert re.search(words, found.checks[check].meaning), found.checks[check].meaning
    assert found.is_cause(check)
    assert set(found.alarms) - {check} <= symptoms, found.alarms
    assert found.checks[check].remedy


@pytest.mark.parametrize("zero_counts", [True, False])
def test_an_accuracy_that_is_not_of_whole_answers_is_told_what_it_is(zero_counts: bool, adder: Subject) -> None:
    class Clumsy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = adder.model

        def forward(self, source: Tensor, answer: Tensor, gates: object = None) -> Tensor:
            logits = self.model(source, answer).clone()
            logits[:50, 0, 9] = 1e3
            return logits

    subject = replace(
        adder, model=Clumsy(), decode=None, generate=None, heads=(), score=over_tokens(adder, zero_counts),
        examples=lambda rows, seed, held_out: adder.examples(200, seed, held_out), sets=None,
    )  # fmt: skip
    found = examine_subject(subject).checks["metric"]
    assert found.status == "fail"
    assert ("it is accuracy over tokens" if zero_counts else "over tokens other than 0") in found.meaning


def test_causes_and_symptoms() -> None:
    from headway.doctor.check import failed, passed

    found = Examination(
        "x",
        {"converged": failed("a", "b"), "blindness": failed("a", "b"), "floor": failed("a", "b"), "gates": passed("0")},
    )
    assert [name for name in found.checks if found.is_cause(name)] == ["blindness"]


def test_the_command_says_it_and_its_status_is_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "pretrained:adder", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"]
    assert [each["check"] for each in found["checks"]] == list(CHECKS)
    assert set(found["checks"][0]) == {"check", "status", "cause", "evidence", "meaning", "remedy"}
    (tmp_path / "mine.py").write_text(
        "import headway, torch\n"
        "from headway.subjects.own import open_subject\n"
        "from dataclasses import replace\n"
        "def build():\n"
        "    return replace(open_subject('pretrained:adder'), untrained=lambda problems: [16])\n"
        "def fails():\n"
        "    raise ValueError('no such file')\n"
        "def other():\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "mine:build", "--json"]) == 0  # a warning
    capsys.readouterr()
    assert main(["doctor", "mine:build", "--strict", "--json"]) == 1
    capsys.readouterr()
    assert main(["doctor", "mine:build", "pretrained:adder"]) == 0
    assert "warn" in capsys.readouterr().out
    for name, words in (("mine:fails", "ValueError: no such file"), ("mine:other", "returned int")):
        assert main(["doctor", name]) == 2
        assert words in capsys.readouterr().err
    assert main(["list", "checks", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["items"]] == list(CHECKS)
