"""How far a user's model works: rules with known answers are judged as they are, and bad problems get one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.attach.watching import watch_maps
from headway.attach.whole import ReaderRunner
from headway.cli import main
from headway.evaluation.shares import share_answers
from headway.lengths.subject_answer import SubjectLengths
from headway.subjects.drawing import find_problems
from headway.tasks import Problems, Sortedness

FEW = {"lengths": (32, 64), "probes": ("default", "one-inversion")}


class Rule(nn.Module):
    """Sortedness by a rule without weights: `answer` is called with sequences, and says whether each is sorted."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, source: Tensor) -> Tensor:
        yes = self.answer(source).double()
        return torch.stack((1 - yes, yes), dim=1)


def is_sorted(x: Tensor) -> Tensor:
    return (x[:, 1:] >= x[:, :-1]).all(1)


def until(length: int, then: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: is_sorted(x) if x.shape[1] <= length else then(x)


def sees_large_steps(x: Tensor) -> Tensor:
    """Right where the disorder is easy: it sees only violations between numbers two or more places apart."""
    return (x[:, 2:] >= x[:, :-2]).all(1)


def raises(x: Tensor) -> Tensor:
    raise IndexError("index 40 is out of bounds\nfor dimension 0")


def study(answer: Callable[[Tensor], Tensor], **asked: Any) -> SubjectLengths:
    found = headway.study_lengths(headway.Subject(Rule(answer), problems="sortedness", name="rule"), **{**FEW, **asked})
    assert isinstance(found, SubjectLengths)
    return found


def reaches(found: SubjectLengths) -> dict[str, int | None]:
    return {each.probe: each.reach for each in found.reach}


def test_a_rule_that_is_right_reaches_the_longest_length() -> None:
    found = study(is_sorted)
    assert reaches(found) == {"default": 64, "one-inversion": 64}
    assert not found.diagnosis
    assert "the longest length tested" in found.findings()[0]
    assert "seed" not in found.findings()[0]
    row = found.to_json()["rows"][0]
    assert row["held_out"]["errors"] == 0
    assert 150 < row["held_out"]["examples"] < 250
    assert row["corrected"][0] < row["interval"][0]  # all points together are held to a stricter level


def test_right_at_16_and_constant_at_32_is_found_out() -> None:
    found = study(until(16, lambda x: torch.ones(len(x), dtype=torch.bool)))
    assert reaches(found) == {"default": 16, "one-inversion": 16}
    assert [each.stopped_by for each in found.reach] == ["fails", "fails"]
    points = {each.length: each for each in found.points if each.probe == "default"}
    assert [points[n].shares.constancy for n in (16, 32, 64)] == ["no", "constant", "constant"]  # pyright: ignore
    assert found.diagnosis[0].causes[0] == "constant answer"
    assert "every answer is '1'" in found.findings()[0]


def test_nearly_constant_answers_are_told_from_constant_ones() -> None:
    for one_in, constancy in ((5, "no"), (50, "nearly"), (1_000, "constant")):
        rule = until(16, lambda x, one_in=one_in: (x[:, 20] + 1) % one_in != 0)
        found = study(rule, lengths=(32,))
        shares = {each.length: each.shares for each in found.points}
        assert shares[32] is not None
        assert shares[32].constancy == constancy, shares[32].commonest


def test_right_only_on_easy_disorder_has_no_reach_without_that_restriction() -> None:
    found = study(sees_large_steps)
    assert found.converged
    assert "one-inversion" in (found.reach[0].fails_in_range or [])
    assert {each.reaches_all for each in found.reach} == {0}
    said = found.findings()[0]
    assert said.index("in range it fails") < said.index("one-inversion")
    assert "with that restriction" in said or "it has no reach" in said


def test_a_length_at_which_the_model_raises_is_a_result_of_that_length() -> None:
    found = study(until(32, raises))
    assert reaches(found) == {"default": 32, "one-inversion": 32}
    assert {each.stopped_by for each in found.reach} == {"cannot_run"}
    reason = "IndexError: index 40 is out of bounds for dimension 0"
    assert [row["cannot_run"] for row in found.to_json()["rows"] if row["length"] == 64] == [reason] * 2
    assert f"length 64 cannot run ({reason})" in found.findings()[0]
    assert found.to_json()["table"][0]["accuracy"]["64"] is None
    assert "cannot run" in found.diagnosis[0].sentence


def test_one_that_raises_in_range_is_refused() -> None:
    with pytest.raises(headway.HeadwayError, match="rule"):
        study(raises)


def test_logits_that_are_not_numbers_are_wrong_answers() -> None:
    class Broken(Rule):
        def forward(self, source: Tensor) -> Tensor:
            return super().forward(source) * (torch.nan if source.shape[1] > 16 else 1)

    found = headway.study_lengths(headway.Subject(Broken(is_sorted), problems="sortedness"), **FEW)
    assert isinstance(found, SubjectLengths)
    assert {each.errors for each in found.points if each.length > 16} == {2_000}
    assert "not a number" in found.diagnosis[0].causes


def test_a_model_that_sees_no_order_is_withheld_by_the_doctor() -> None:
    found = study(lambda x: x.sum(1) % 2 == 0)
    assert {each["check"] for each in found.withheld} & {"blindness", "converged"}
    assert set(reaches(found).values()) == {None}
    assert found.diagnosis == ()


def alike(length: int, rows: int, seed: int, often: float = 0.0) -> Problems:
    """Is there a 1? More and more often, as sequences get longer."""
    tokens = torch.randint(20, (rows, length), generator=torch.Generator().manual_seed(seed))
    return Problems(tokens, (tokens == 1).any(1, keepdim=True).long())


def test_being_right_proves_nothing_where_a_constant_answer_is_right_as_well() -> None:
    model = Rule(lambda x: (x == 1).any(1))
    found = headway.study_lengths(headway.Subject(model, problems=alike, trained=(8, 16)), lengths=(32, 128))
    assert isinstance(found, SubjectLengths)
    assert found.points[-1].errors == 0
    (row,) = found.reach
    assert (row.reach, row.stopped_by) == (32, "one_answer")
    assert "length 128 shows nothing" in found.findings()[0]


def copying(length: int, rows: int, seed: int) -> Problems:
    tokens = torch.randint(10, (rows, length), generator=torch.Generator().manual_seed(seed))
    return Problems(tokens, tokens)


class Copy(nn.Module):
    """Copies what it reads; past 16 tokens it writes only zeros."""

    def forward(self, source: Tensor, answer: Tensor | None = None) -> Tensor:
        source = source if source.shape[1] <= 16 else torch.where(torch.rand(source.shape) < 0.01, source, 0)
        return nn.functional.one_hot(source, 10).double()


def test_a_sequence_model_that_repeats_one_token_is_found_out() -> None:
    torch.manual_seed(0)
    found = headway.study_lengths(headway.Subject(Copy(), problems=copying, trained=(4, 16)), lengths=(32,))
    assert isinstance(found, SubjectLengths)
    point = found.points[-1]
    assert (point.errors, point.shares and point.shares.constancy) == (2_000, "nearly")
    assert "of the answers' tokens are '0'" in found.findings()[0]


def test_a_reader_that_shows_the_answer_is_withheld() -> None:
    def read(model: nn.Module, source: Tensor, answer: Tensor) -> Tensor:
        return nn.functional.one_hot(answer, 10).double()

    subject = headway.Subject(Copy(), problems=copying, trained=(4, 16), reader=read)
    found = headway.study_lengths(subject, lengths=(32,))
    assert isinstance(found, SubjectLengths)
    assert found.withheld[0]["check"] == "causality"
    assert set(reaches(found).values()) == {None}


def draw(length: int, rows: int, seed: int) -> Problems:
    return Sortedness().independent(seed, rows, length=length)


BAD: dict[str, tuple[Callable[[int, int, int], Any], str]] = {
    "nothing": (lambda n, rows, seed: None, "returned NoneType; return headway.Problems"),
    "raises": (lambda n, rows, seed: 1 / 0, "failed (ZeroDivisionError: division by zero)"),
    "too few rows": (lambda n, rows, seed: draw(n, min(rows, 50), seed), "returned 50 rows"),
    "another length": (lambda n, rows, seed: draw(12, rows, seed), "returned sources of 12 tokens"),
    "never longer": (lambda n, rows, seed: draw(200, rows, seed), "longer problems have more tokens"),
    "not the same twice": (lambda n, rows, seed: draw(n, rows, int(torch.seed() % 1000)), "other problems the second"),
    "outside": (lambda n, rows, seed: _with(draw(n, rows, seed), 5), "outside the 2 outputs"),
    "negative": (lambda n, rows, seed: _with(draw(n, rows, seed), -1), "answers are tokens from 0 on"),
}


def _with(problems: Problems, answer: int) -> Problems:
    return Problems(problems.source, torch.full_like(problems.answer, answer))


@pytest.mark.parametrize("name", BAD)
def test_bad_problems_get_one_sentence(name: str) -> None:
    problems, sentence = BAD[name]
    torch.manual_seed(0)
    with pytest.raises(headway.HeadwayError) as raised:
        headway.study_lengths(headway.Subject(Rule(is_sorted), problems=problems, trained=(8, 16), name="mine"))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_answers_must_be_whole_numbers() -> None:
    def floats(length: int, rows: int, seed: int) -> Problems:
        found = draw(length, rows, seed)
        object.__setattr__(found, "answer", found.answer.float())
        return found

    with pytest.raises(headway.HeadwayError, match="return whole numbers"):
        headway.study_lengths(headway.Subject(Rule(is_sorted), problems=floats, trained=(8, 16)))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"problems": "sortednes"}, "did you mean 'sortedness'"),
        ({"problems": draw}, "problems= needs trained="),
        ({"problems": Sortedness}, "problems is Sortedness; give"),
        ({"problems": draw, "trained": (16, 8)}, "trained is (16, 8)"),
        ({"probes": {"hard": draw}, "examples": draw(8, 4, 0)}, "which need problems= as well"),
        ({}, "a Subject needs examples, or problems="),
    ],
)
def test_a_subject_says_what_is_wrong_with_its_problems(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(headway.HeadwayError) as raised:
        headway.Subject(Rule(is_sorted), **given)
    assert sentence in str(raised.value)


def test_types_that_no_subject_can_have_are_named() -> None:
    with pytest.raises(headway.HeadwayError, match="trained is 16; give the shortest and the longest"):
        find_problems(draw, {}, 16)
    with pytest.raises(headway.HeadwayError, match="probes must map names to functions"):
        find_problems(draw, {"hard": 3}, (8, 16))


class Hungry(Rule):
    """Runs out of memory with more than `most` rows."""

    most = 100

    def forward(self, source: Tensor) -> Tensor:
        if len(source) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
        return super().forward(source)


def test_out_of_memory_makes_smaller_batches_of_the_same_answers() -> None:
    problems = Sortedness().independent(0, 1_000)
    hungry = ReaderRunner(Hungry(is_sorted), lambda model, source, _: model(source)[:, None])
    logits = torch.cat(hungry.map_pieces(lambda rows: hungry.run(problems[rows]), problems))
    assert torch.equal(logits[:, 0].argmax(-1), problems.answer[:, 0])
    assert hungry.most is not None
    assert 25 <= hungry.most <= 100
    hungry.model.most = 0  # pyright: ignore
    with pytest.raises(RuntimeError, match="allocate memory"):
        hungry.map_pieces(lambda rows: hungry.run(problems[rows]), problems)


def test_maps_are_read_from_attention_of_any_kind_without_changing_it() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 7, 16)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).eval()

    def by_hand(x: Tensor) -> Tensor:
        q = x.view(3, 7, 2, 8).transpose(1, 2)
        return (q @ q.transpose(-1, -2) / 8**0.5).softmax(-1) @ q

    def fused(x: Tensor) -> Tensor:
        q = x.view(3, 7, 2, 8).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q)

    with torch.no_grad():
        expected = layer.self_attn(x, x, x, need_weights=True, average_attn_weights=False)[1]
        plain = layer(x)
        outputs = list[Tensor]()
        (seen,) = watch_maps(lambda: outputs.append(layer(x)), 7)
        assert torch.allclose(seen, expected, atol=1e-6)
        assert torch.allclose(outputs[0], plain, atol=1e-5)  # the fast path rounds otherwise
        (one,), (two,) = watch_maps(lambda: by_hand(x), 7), watch_maps(lambda: fused(x), 7)
    assert one.shape == (3, 2, 7, 7)
    assert torch.allclose(one, two, atol=1e-6)


def test_a_sequence_model_on_a_task_with_options() -> None:
    """The certified adder, right at every length, as somebody's model; and the same without its last digit."""
    adder = headway.pretrained("certified-adder")
    found = headway.study_lengths(headway.Subject(adder.model, problems=adder.task, name="adder"), lengths=(20, 40))
    assert isinstance(found, SubjectLengths)
    assert found.task == "addition"
    assert {each.reach for each in found.reach} == {40}
    assert [each.probe for each in found.reach] == list(adder.task.probes)

    def blunted(model: nn.Module, source: Tensor, answer: Tensor) -> Tensor:
        logits = model(source, answer)
        return logits if source.shape[1] < 40 else torch.cat((logits[:, :-1], logits[:, -1:] * 0), dim=1)

    subject = headway.Subject(adder.model, problems=adder.task, reader=blunted)
    found = headway.study_lengths(subject, lengths=(20,), probes="default")
    assert isinstance(found, SubjectLengths)
    assert 0.4 < (found.points[-1].accuracy or 0) < 0.6  # the last digit is a carry: 0 in half of the sums
    assert found.points[-1].shares is not None
    assert "digits" in found.diagnosis[0].sentence or "column" in found.diagnosis[0].sentence


def test_shares_of_answers_leave_padding_aside() -> None:
    answer = torch.tensor([[1, 2, 9], [3, 9, 9], [4, 5, 9]])
    scored = torch.tensor([[True, True, True], [True, True, False], [True, True, True]])
    written = torch.tensor([[0, 0, 0], [0, 0, 7], [0, 0, 0]])
    shares = share_answers(written, Problems(answer, answer, scored))
    assert shares.token is not None
    assert (shares.token.given, shares.constancy) == (1.0, "nearly")


SUBJECT = """
import torch
from torch import nn
import headway

class Sums(nn.Module):
    def forward(self, x):
        if x.shape[1] > 64:
            raise IndexError("the table has 64 rows")
        yes = (x[:, 1:] >= x[:, :-1]).all(1).float()
        return torch.stack((1 - yes, yes), 1), x

def build():
    return headway.Subject(Sums(), problems="sortedness")

def without_problems():
    return headway.Subject(Sums(), examples=headway.Problems(torch.zeros(4, 8).long(), torch.zeros(4, 1).long()))
"""


def test_the_command_writes_the_study_and_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("subject.py").write_text(SUBJECT)
    asked = ["--lengths", "32,128", "--probes", "default,one-inversion", "--out", "study", "--quiet"]
    assert main(["lengths", "subject.py:build", *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "headway.lengths-of-subject/1"
    assert [row["reach"] for row in found["reach"]] == [32, 32]
    assert found["table"][0]["accuracy"] == {"16": 1.0, "32": 1.0, "128": None}
    assert json.loads(Path("study/lengths.json").read_text()) == found
    lines = Path("study/lengths.csv").read_text().splitlines()
    assert len(lines) == 1 + len(found["rows"]) == 7
    assert main(["lengths", "subject.py:build", *asked]) == 0
    assert "cannot run: IndexError: the table has 64 rows" in capsys.readouterr().out
    assert main(["report", "study", "--json"]) == 0
    capsys.readouterr()
    words = Path("study/report.md").read_text()
    assert "Sums works up to 32, 2 times its training length; at 128 it cannot run" in words
    command = "headway lengths subject.py:build --lengths 32,128 --probes default,one-inversion --out study"
    assert command in Path("study/report.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["subject.py:build", "--positions", "rope"], "--positions rope is for training"),
        (["subject.py:build", "--seeds", "3"], "--seeds 3 is for training"),
        (["subject.py:build", "--track", "tuned"], "--track tuned is for training"),
        (["subject.py:build", "--train-lengths", "4-8"], "--train-lengths 4-8 is for training"),
        (["subject.py:build", "--steps", "10"], "--steps 10 is for training"),
        (["subject.py:build", "--option", "values=10"], "is for training"),
        (["subject.py:build", "--probes", "tie"], "did you mean 'ties'"),
        (["subject.py:without_problems"], "give Subject(problems="),
        (["subject.py:bild"], "did you mean 'build'"),
        (["subject.py:Sums"], "is not a Task"),
    ],
)
def test_what_makes_no_sense_gets_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("subject.py").write_text(SUBJECT)
    assert main(["lengths", *words, "--quiet"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not Path("runs").exists()
