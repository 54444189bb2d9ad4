"""The doctor: no alarms on healthy models, what it accepts and refuses from users, and its messages."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.cli import main
from headway.doctor import patient as patient_module
from headway.doctor.check import failed, passed
from headway.doctor.examination import CHECKS, Examination, examine_subject
from headway.models import Head
from headway.subjects.own import open_one, subject_of
from headway.subjects.subject import Subject
from headway.tasks import Problems

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def adder() -> Subject:
    return subject_of(open_one("pretrained:adder"))


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses just enough problems to show a mistake."""
    monkeypatch.setattr(patient_module, "ROWS", 200)
    monkeypatch.setattr(patient_module, "FEW", 40)


HEALTHY = {
    "adder": {"padding", "resolution", "together", "seeds"},
    "certified-adder": {"padding", "resolution", "together", "seeds"},
    "certified-sorter": {
        "greedy", "start token", "given digits", "never said", "causality", "padding", "resolution", "together",
        "seeds",
    },
}  # fmt: skip


@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize("name", HEALTHY)
def test_the_healthy_raise_no_alarm(name: str) -> None:
    found = headway.examine(f"pretrained:{name}", strict=True)
    assert found.alarms == []
    assert found.healthy
    assert {check for check, each in found.checks.items() if each.status == "skipped"} == HEALTHY[name]
    for check in CHECKS:
        assert len(found.message(check)) <= 4


@pytest.mark.usefixtures("fewer")
def test_gates_that_change_something_when_open(adder: Subject) -> None:
    def rescaled(problems: Problems, heads: Collection[Head]) -> Tensor:
        return adder.model(problems.source, problems.answer) * 1.1

    found = examine_subject(replace(adder, ablate=rescaled), checks=("gates",)).checks["gates"]
    assert re.search(r"opening all 24 gates moves logits by up to \d", found.meaning)


@pytest.mark.usefixtures("fewer")
def test_closing_the_wrong_head_is_detected(adder: Subject) -> None:
    other = {head: adder.heads[(place + 1) % 24] for place, head in enumerate(adder.heads)}

    def ablate(problems: Problems, heads: Collection[Head]) -> Tensor:

        return adder.model(problems.source, problems.answer, adder.runner.close_heads({other[h] for h in heads}))

    found = examine_subject(replace(adder, ablate=ablate), checks=("gates",)).checks["gates"]
    assert found.status == "fail"
    assert "something else is ablated" in found.meaning


@pytest.mark.usefixtures("fewer")
def test_memorised_training_problems_are_detected(adder: Subject) -> None:
    """The model is right on training problems and wrong on held-out ones."""

    def correct(logits: Tensor, problems: Problems) -> Tensor:
        return problems.source[:, 0] > 4

    found = examine_subject(replace(adder, correct=correct, held_out=lambda p: p.source[:, 0] <= 4)).checks["overlap"]
    assert found.status == "fail"
    assert "0.0000 of" in found.meaning


def test_causes_and_symptoms() -> None:
    bad = failed("a", "b")
    found = Examination("x", {"converged": bad, "blindness": bad, "floor": bad, "gates": passed("0")})
    assert found.causes == ["blindness"]
    assert found.row()["symptoms"] == "converged, floor"
    for name, check in CHECKS.items():  # no two explain each other, or neither would be a cause
        assert all(name not in CHECKS[other].explains for other in check.explains)


MINE = """
import headway, torch
from dataclasses import replace
from headway.attach.opening import open_subject
import neighbour

def build():
    print("training ...")
    return replace(open_subject("pretrained:adder"), name=neighbour.NAME)

def warns():
    return replace(build(), untrained=lambda problems: [16])

def fails():
    raise ValueError("no such file")

def other():
    return 3

def leaves():
    raise SystemExit("usage: train.py FILE")

def wrong(**changes):
    return lambda: replace(build(), **changes)

def no_model():
    return headway.Subject("adder", examples=build().examples)

forward = wrong(decode=lambda source, written: source @ written)
shape = wrong(decode=lambda source, written: torch.zeros(3))
judges = wrong(correct=lambda logits, problems: True)
listed = wrong(examples=[1, 2])
draws = wrong(examples=lambda rows, seed, held_out: torch.zeros(3))
floats = wrong(examples=lambda rows, seed, held_out: headway.Problems(torch.zeros(9, 7), torch.zeros(9, 4)))
one = wrong(examples=lambda rows, seed, held_out: build().draw(1, seed, False))
"""
WRONG = {
    "mine.py:fails": "ValueError: no such file",
    "mine.py:leaves": "SystemExit: usage: train.py FILE",
    "mine.py:other": "returned int; a factory must return a headway.Subject",
    "mine.py:missing": "unknown function in mine.py 'missing'",
    "none.py:build": "there is no file 'none.py'",
    "broken.py:build": "cannot import 'broken.py' of 'broken.py:build' (SyntaxError",
    "mine.py:forward": "decode of one failed on tensors of shape (",
    "mine.py:shape": "decode of one returned a float32 tensor of shape (3,); return logits of shape (",
    "mine.py:judges": "correct of one returned bool",
    "mine.py:listed": "examples are list; give headway.Problems",
    "mine.py:draws": "examples of one returned a float32 tensor of shape (3,); return headway.Problems",
    "mine.py:floats": "examples of one holds a float32 tensor",
    "mine.py:one": "examples of one has 1 problems; at least 2 are needed",
    "mine.py:no_model": "model is str; it must be a torch.nn.Module",
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes two submissions, each with a module of the same name next to it."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(MINE)
        (tmp_path / name / "neighbour.py").write_text(f"NAME = {name!r}\n")
    (tmp_path / "one" / "broken.py").write_text("def build(:\n")
    monkeypatch.chdir(tmp_path / "one")
    return tmp_path


def test_a_broken_factory_gives_a_one_line_error(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "headway", "doctor", *WRONG, "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # without the tests' checks of types
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    refused = {each["subject"]: each["refused"] for each in json.loads(done.stdout)["members"]}
    for name, words in WRONG.items():
        assert words in refused[name], refused[name]
    assert main(["doctor", "mine.py:fails"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert main(["doctor", "no/where/*.py:build"]) == 2
    assert "nothing matches 'no/where/*.py'" in capsys.readouterr().err


@pytest.mark.usefixtures("fewer")
def test_the_command_prints_the_checks_and_its_exit_status_is_the_verdict(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "mine.py:build", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)  # what the factory prints is not in it
    assert "training ..." in said.err
    assert found["healthy"]
    assert [each["check"] for each in found["checks"]] == list(CHECKS)
    assert set(found["checks"][0]) == {"check", "status", "cause", "evidence", "meaning", "remedy"}
    assert main(["doctor", "mine.py:warns"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^warn {4}positions: examples|^warn {4}positions: default", said, re.M)
    assert "→ claim nothing about those lengths" in said
    assert main(["doctor", "mine.py:warns", "--strict"]) == 1
    capsys.readouterr()
    assert main(["list", "checks", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["items"]] == list(CHECKS)


@pytest.mark.usefixtures("fewer")
def test_many_subjects_give_one_table_and_import_their_own_modules(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", f"{desk}/*/mine.py:build", f"{desk}/one/mine.py:fails", "--json", "--quiet"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [each["healthy"] for each in found["members"]] == [True, True, False]
    assert not found["healthy"]
    assert "ValueError: no such file" in found["members"][2]["refused"]
    assert main(["doctor", f"{desk}/*/mine.py:warns", "--strict", "--quiet"]) == 1
    table = capsys.readouterr().out
    assert re.search(r"one +│ warn +│ positions", table)
    assert re.search(r"two +│ warn +│ positions", table)


@pytest.mark.usefixtures("fewer")
def test_the_runs_of_a_folder_are_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = open_one("pretrained:certified-sorter").path
    for seed in range(3):
        shutil.copytree(shipped, tmp_path / f"seed-{seed}")
    assert main(["doctor", str(tmp_path), "--json", "--quiet"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    assert len(members) == 3
    for member in members:
        seeds = member["checks"][-1]
        assert seeds["status"] == "pass"
        assert "3 seeds, accuracy 1.0000 to 1.0000" in seeds["meaning"]
    shutil.rmtree(tmp_path / "seed-2")
    assert main(["doctor", str(tmp_path), "--strict", "--quiet"]) == 1
    assert "seeds" in capsys.readouterr().out


@pytest.mark.usefixtures("fewer")
def test_seeds_of_which_some_have_not_learned(adder: Subject) -> None:
    torch.manual_seed(0)
    raw = replace(adder, correct=lambda logits, problems: torch.rand(len(problems)) < 0.5)
    found = examine_subject(replace(adder, others=[raw, adder]), checks=("seeds",)).checks["seeds"]
    assert "2 of 3 have learned the task" in found.meaning


@pytest.mark.usefixtures("fewer")
def test_the_factory_in_the_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed factory has at most 20 lines for a hand-written model with its own decoding."""
    page = (ROOT / "docs" / "doctor.md").read_text()
    code = re.findall(r"```python\n(# subject\.py\n.*?)```", page, re.S)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    shutil.copytree(ROOT / "recipes" / "mistakes" / "lab", tmp_path / "lab")
    (tmp_path / "subject.py").write_text(code)
    (tmp_path / "model.py").write_text(
        "from lab import Seq2Seq as Adder, exact, sums\n"
        "def make_sums(rows):\n    some = sums(rows, 1)\n    return some.source, some.answer\n"
        "def accuracy(model, source, answer):\n"
        "    return float((model.generate(source) == answer).all(1).float().mean())\n"
    )
    monkeypatch.syspath_prepend(str(ROOT / "recipes" / "mistakes"))
    lab = importlib.import_module("lab")
    torch.save(lab.trained_adder(steps=100).state_dict(), tmp_path / "adder.pt")
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "subject.py:build", "--json"]) == 1
    status = {each["check"]: each["status"] for each in json.loads(capsys.readouterr().out)["checks"]}
    assert status["converged"] == "fail"  # a hundred steps
    for check in ("greedy", "start token", "given digits", "metric", "causality", "evaluation mode", "blindness"):
        assert status[check] == "pass"


def test_the_doctor_leaves_a_users_model_unchanged(adder: Subject) -> None:
    before = {name: tensor.clone() for name, tensor in adder.model.state_dict().items()}
    examine_subject(adder, checks=("gates", "positions"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in adder.model.state_dict().items())
    assert isinstance(adder.model, nn.Module)
    assert not adder.model.training
