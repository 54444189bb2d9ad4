"""Attention maps: as large as the problem, labelled by its tokens, and averages that are averages."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn

import headway
from headway.attach.opening import prepare_subject
from headway.causes import maps as module
from headway.causes.maps import average_maps, maps_of, maps_of_several, spread_over
from headway.errors import HeadwayError
from headway.models import build_model, heads_of
from headway.report import figures
from headway.report.maps import chosen_figure, problem_figure, several_figure, site_figure
from headway.runs.config import Overrides
from headway.subjects.own import subject_of
from headway.subjects.subject import Subject
from headway.tasks import Addition, Problems
from headway.training.defaults import plan


@pytest.fixture(scope="module")
def subject(adder) -> Subject:
    return subject_of(adder)


def test_a_map_is_as_large_as_the_problem_and_its_rows_are_shares(subject: Subject) -> None:
    problem = subject.draw(1, 0, False)
    source = subject.spelled(problem.source[0].tolist())
    content = maps_of(subject, problem)["maps"]
    assert [entry["site"] for entry in content] == [str(site) for site in subject.sites]
    for entry in content:
        attention = numpy.array(entry["heads"])
        assert attention.shape == (4, len(entry["queries"]), len(entry["keys"]))
        numpy.testing.assert_allclose(attention.sum(-1), 1, atol=1e-3)
        if entry["site"].startswith("encoder"):
            assert entry["queries"] == entry["keys"] == source
        else:
            assert entry["queries"][0] == "start"
            assert entry["keys"] == (source if entry["site"].endswith("cross") else entry["queries"])
        if entry["site"].startswith("decoder") and entry["site"].endswith("self"):
            assert (numpy.triu(attention, 1) == 0).all()


def test_an_average_is_the_mean_of_the_maps_of_its_problems(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 1)
    problems = subject.draw(12, 3, False)
    each = [maps_of(subject, problems[row : row + 1])["maps"] for row in range(12)]
    found = average_maps(subject, problems)
    for place, entry in enumerate(found["all"]["maps"]):
        slow = numpy.mean([one[place]["heads"] for one in each], axis=0)
        numpy.testing.assert_allclose(entry["heads"], slow, atol=1e-4)
    carries = subject.strata(problems)["carries"]
    for value in carries.unique().tolist():
        rows = (carries == value).nonzero()[:, 0].tolist()
        entry = found["strata"][f"carries={value}"]
        assert entry["examples"] == len(rows)
        slow = numpy.mean([each[row][0]["heads"] for row in rows], axis=0)
        numpy.testing.assert_allclose(entry["maps"][0]["heads"], slow, atol=1e-4)


def test_a_decoder_alone_has_the_whole_sequence_on_both_axes() -> None:
    config, task = plan("addition", Overrides(model="decoder", d_model=16, heads=2, d_ff=32), 0), Addition()
    model = build_model(config.model)
    subject = prepare_subject(Subject(
        model, heads=tuple(heads_of(model)), examples=lambda rows, seed, held: task.testing(seed, rows),
        spelled=task.spelled, start=task.start,
    ))  # fmt: skip
    entry = maps_of(subject, subject.draw(1, 0, False))["maps"][0]
    assert len(entry["queries"]) == len(entry["keys"]) == 11
    assert entry["keys"][7] == "start"


@pytest.mark.usefixtures("pictures")
def test_pictures_of_a_site_of_chosen_heads_and_of_everything(subject: Subject, tmp_path: Path) -> None:
    content = maps_of(subject, subject.draw(1, 0, False))
    assert [path.suffix for path in site_figure(content, "decoder.0.cross", tmp_path / "site")] == [".svg", ".png"]
    chosen_figure(content, ["encoder.0.self.2", "decoder.0.cross.3"], tmp_path / "chosen")
    drawn = (tmp_path / "chosen.svg").read_text()
    assert "<!-- encoder.0.self.2 -->" in drawn
    assert "<!-- encoder.0.self.1 -->" not in drawn
    problem_figure(content, tmp_path / "all")
    assert (tmp_path / "all.svg").read_text().count("<!-- decoder.1.") == 8
    with pytest.raises(HeadwayError, match=r"there are no maps of 'decoder\.7\.self'; there are: encoder"):
        site_figure(content, "decoder.7.self", tmp_path / "none")
    with pytest.raises(HeadwayError, match="has heads 0 to 3; there is no head '9'"):
        chosen_figure(content, ["encoder.0.self.9"], tmp_path / "none")
    with pytest.raises(HeadwayError, match="2 were given; pass one row"):
        maps_of(subject, subject.draw(2, 0, False))


class Unreadable(nn.Module):
    """Attention without a module for the weights, so that no map can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.linear_out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        return self.linear_out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_model_whose_maps_cannot_be_read_is_studied_without_pictures_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    digits = torch.randint(10, (200, 5))
    subject = Subject(
        nn.Sequential(nn.Embedding(10, 8), Unreadable(), nn.Linear(8, 10)).eval(),
        sites=[headway.Site("1", output="linear_out", heads=2)],
        examples=Problems(digits, digits[:, :1]),
        reader=lambda model, source, _: model(source)[:, :1],
        metric="loss",
    )
    headway.study_heads(subject, brief=True, out=tmp_path, quiet=True)
    assert (tmp_path / "heads.json").exists()
    assert not list(tmp_path.glob("maps-*"))
    assert "cannot be read; no figure shows them" in capsys.readouterr().err


def test_twelve_problems_have_as_many_of_each_number_of_carries(subject: Subject) -> None:
    problems = subject.draw(1000, 0, False)
    carries = subject.strata(problems)["carries"]
    chosen = carries[spread_over(carries, 1000, 12)].tolist()
    assert chosen == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert spread_over(torch.tensor([5, 5, 5, 7]), 4, 3) == [0, 1, 3]
    assert spread_over(None, 4, 12) == [0, 1, 2, 3]


def test_the_maps_of_several_problems_are_those_of_each(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a wrong answer is said to be wrong: the problems here have the answers of their neighbours."""
    monkeypatch.setattr(figures, "can_draw", lambda: True)
    problems, heads = subject.draw(5, 1, False), subject.heads[3::8]
    other = Problems(problems.source, problems.answer.roll(1, 0))
    right, wrong = (maps_of_several(subject, some, heads) for some in (problems, other))
    for row, problem in enumerate(right["problems"]):
        every = {entry["site"]: entry for entry in maps_of(subject, problems[row : row + 1])["maps"]}
        assert [entry["head"] for entry in problem["maps"]] == right["heads"] == [str(head) for head in heads]
        for entry, head in zip(problem["maps"], heads, strict=True):
            assert entry["weights"] == every[str(head.site)]["heads"][head.number]
            assert (len(entry["queries"]), len(entry["keys"])) == numpy.array(entry["weights"]).shape
        assert problem["said"] == problem["wanted"]
    assert all(problem["said"] != problem["wanted"] for problem in wrong["problems"])
    assert {path.suffix for path in several_figure(right, tmp_path / "several")} == {".svg", ".png"}  # pyright: ignore[reportArgumentType]
    drawn = (tmp_path / "several.svg").read_text()
    assert all(f"<!-- {head} -->" in drawn for head in right["heads"])
    assert "(wrong)" not in drawn
    several_figure(wrong, tmp_path / "several")  # pyright: ignore[reportArgumentType]
    assert (tmp_path / "several.svg").read_text().count("(wrong)") == 5 * len(heads)
    assert several_figure(None, tmp_path / "none") == []
