"""What else was seen in labs: alarms without a reason, one odd function that ended an examination, and numbers that
stood side by side without saying which is which."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.api.examining import examine_all
from headway.attach.opening import prepare_subject
from headway.cli import main
from headway.doctor.examination import examine_subject
from headway.heads.question import HeadsQuestion
from headway.heads.study import study_subject
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks import Problems

START = 11


class Attention(nn.Module):
    """Hard attention by hand: each answer token reads the source token that mirrors it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 12, bias=False)
        nn.init.eye_(self.out.weight)

    def forward(self, read: Tensor) -> Tensor:
        return self.out(read)


class Reverser(nn.Module):
    """Writes the digits of the source backwards, right by construction but for a share of the problems."""

    def __init__(self, wrong: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention()
        self.wrong, self.scale = wrong, nn.Parameter(torch.tensor(9.0))
        self.eval()

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        places = source.shape[1] - 1 - torch.arange(written.shape[1])
        places = torch.where(places >= 0, places, 0)
        read = nn.functional.one_hot(source, 12).float()[:, places]
        fails = (source.sum(1) * 7 % 100 < 100 * self.wrong)[:, None, None]
        return self.attention(torch.where(fails, read.roll(1, -1), read)) * self.scale

    @torch.no_grad()
    def generate(self, source: Tensor, start: int = START) -> Tensor:
        written = torch.full_like(source[:, :1], start)
        for _ in range(source.shape[1]):
            written = torch.cat((written, self(source, written)[:, -1:].argmax(-1)), dim=1)
        return written[:, 1:]


def digits(rows: int, seed: int = 0) -> Tensor:
    return torch.randint(10, (rows, 4), generator=torch.Generator().manual_seed(seed))


def exact(predicted: Tensor, problems: Problems) -> float:
    return float((predicted == problems.answer).all(1).float().mean())


def lab(rows: int = 2000, wrong: float = 0.0, **changes: Any) -> Subject:
    model, source = Reverser(wrong), digits(rows)
    subject = Subject(
        model,
        examples=Problems(source, source.flip(1)),
        name="lab",
        start=START,
        decode=lambda source, written: model(source, written),
        generate=lambda problems: model.generate(problems.source),
        score=lambda problems: exact(model.generate(problems.source), problems),
    )
    return replace(subject, **changes)


def raises(problems: Problems) -> Tensor:
    raise RuntimeError("CUDA error")


ODD: dict[str, tuple[dict[str, Any], str, str]] = {
    "a score that is a dictionary": ({"score": lambda problems: {"accuracy": 1}}, "metric", "returned dict"),
    "a generate that raises": ({"generate": raises}, "greedy", "RuntimeError: CUDA error"),
    "a generate that returns text": ({"generate": lambda p: ["1 2"] * len(p)}, "greedy", "returned list"),
    "a forced that raises": ({"forced": raises}, "given digits", "RuntimeError"),
    "a list of what is held out": ({"held_out": lambda p: [True] * len(p)}, "overlap", "returned list"),
    "sets that are no table": ({"sets": lambda: [1]}, "constant", "returned list"),
    "an ablation of odd shape": (
        {"ablate": lambda problems, heads: torch.zeros(3), "heads": tuple(map(Head.parse, ["encoder.0.self.0"]))},
        "gates", "ablate of lab returned",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_one_odd_function_costs_only_its_own_checks(name: str) -> None:
    changes, check, words = ODD[name]
    found = examine_subject(lab(**changes))
    assert found.alarms == [check], (found.alarms, [found.checks[each].meaning for each in found.alarms])
    assert found.checks[check].status == "warn"
    assert words in found.checks[check].meaning
    for other in ("converged", "causality", "start token", "evaluation mode", "blindness"):
        assert found.checks[other].status == "pass", other


def with_sites(subject: Subject, reader: Any) -> Subject:
    site = headway.Site("attention", output="out", heads=4)
    return replace(subject, sites=[site], reader=reader)


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_sites_change_neither_gates_nor_converged(wrong: float) -> None:
    def read(model: nn.Module, source: Tensor, answer: Tensor) -> Tensor:
        return model(source, answer) * 2  # not what decode returns

    plain = lab(wrong=wrong)
    without, with_ = examine_subject(plain), examine_subject(with_sites(plain, read))
    assert with_.checks["gates"].status == "pass", with_.checks["gates"].meaning
    assert with_.checks["converged"].status == without.checks["converged"].status == ("fail" if wrong else "pass")


def test_a_model_that_copies_what_it_should_predict_sees_later_tokens() -> None:
    def copies(source: Tensor, written: Tensor) -> Tensor:
        return nn.functional.one_hot(written.roll(-1, 1), 12).float()

    source = digits(500) * torch.tensor([0, 1, 1, 1])  # the last digit of each answer is 0
    subject = lab(examples=Problems(source, source.flip(1)), decode=copies, start=0)
    assert examine_subject(subject, checks=("causality",)).checks["causality"].status == "fail"


def test_a_reader_without_sites_says_that_it_is_not_used() -> None:
    found = examine_subject(lab(reader=lambda model, source, answer: model(source, answer)))
    assert "reader is used only with sites" in found.checks["gates"].meaning


def test_nearly_constant_answers_fail() -> None:
    class Sorter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, source: Tensor, answer: Tensor) -> Tensor:
            says = (source.sum(1) == 30).long()  # hardly ever
            return nn.functional.one_hot(says, 2)[:, None] * self.weight

    source = torch.cat((digits(500).sort(1).values, digits(500, 1)))
    subject = Subject(Sorter(), examples=Problems(source, (source.diff(dim=1) >= 0).all(1, keepdim=True).long()))
    found = examine_subject(subject, checks=("constant",)).checks["constant"]
    assert found.status == "fail"
    shares = found.evidence["shares"]
    assert isinstance(shares, dict)
    assert 0.97 < float(str(shares["examples"])) < 1


def test_accuracies_are_labelled_and_reported_is_of_all_examples() -> None:
    def score(problems: Problems) -> float:
        return len(problems) / 2000 if len(problems) > 1000 else 0.9

    found = examine_subject(lab(wrong=0.2, score=score)).to_json()["accuracies"]
    assert set(found) == {"reported", "decoded", "whole"}
    assert found["reported"]["value"] == 1.0
    assert "all 2,000 of your examples" in found["reported"]["what"]
    assert "your own decoding" in found["decoded"]["what"]
    drawn = lab(score=score, examples=lambda rows, seed, held_out: Problems(digits(rows), digits(rows).flip(1)))
    assert "1,000 that were drawn" in examine_subject(drawn).accuracies["reported"]["what"]


def test_causes_come_first_with_their_symptoms_under_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Given the first digit a model is right; it is not told to train on."""
    model = Reverser()

    def late(problems: Problems) -> Tensor:
        return torch.cat((torch.full_like(problems.answer[:, :1], START), model.generate(problems.source)[:, :-1]), 1)

    found = examine_subject(lab(generate=late, score=lambda p: exact(late(p), p)))
    assert found.causes == ["greedy"]
    assert found.checks["converged"].status == "pass"
    lines = found.lines()
    first = next(line for line in lines if line.startswith(("fail", "warn", "pass", "skipped")))
    assert first.startswith("fail    greedy")
    assert any(line.strip().startswith("decoded 0.0000") for line in lines[: lines.index(first)])
    assert "drop the first token" in found.sentence
    content = found.to_json()
    assert content["causes"] == ["greedy"]
    assert [each["check"] for each in content["checks"]] == list(found.checks)

    def sees(problems: Problems) -> Tensor:
        return problems.answer

    leaky = examine_subject(lab(forced=sees, wrong=0.3))
    order = [line[8:].split(":")[0].split(" (")[0] for line in leaky.lines() if line[:4] in ("fail", "warn", "pass")]
    assert leaky.checks[order[0]].status == "fail"


def test_all_takes_every_one_of_2000_examples() -> None:
    subject = prepare_subject(with_sites(lab(), lambda model, source, answer: model(source, answer)))
    study = study_subject(subject, HeadsQuestion(all=True, brief=True, max_drop=0.5), veto=lambda subject: ())
    assert study.whole.examples == 2000
    withheld = replace(study, withheld=({"check": "greedy", "reason": "it is late"},)).to_json()
    assert {row["verdict"] for row in withheld["heads"]} == {"withheld"}


ADAPTER = """
import torch
import headway
from pathlib import Path

def build():
    source = torch.load("problems.pt", weights_only=True)
    model = torch.nn.Linear(1, 1)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
        def forward(self, source, answer):
            return torch.nn.functional.one_hot(source.flip(1), 12) * 9 * self.weight
    return headway.Subject(Model(), examples=headway.Problems(source, source.flip(1)))
"""


def test_paths_start_at_the_folder_of_a_subject_also_where_it_is_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared.py").write_text(ADAPTER)
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        torch.save(digits(200, number), tmp_path / name / "problems.pt")
        (tmp_path / name / "subject.py").symlink_to(tmp_path / "shared.py")
    (found, other) = examine_all([f"{tmp_path}/*/subject.py:build"])
    assert found.refused is None, found.refused
    assert other.refused is None
    assert main(["doctor", f"{tmp_path}/*/subject.py:build", "--json", "--quiet"]) == 0
    assert len(json.loads(capsys.readouterr().out)["members"]) == 2
