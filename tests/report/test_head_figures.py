"""The figures of a study show the contents of heads.json, and nothing runs off the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.report.heads import heads_figures, population_figures, short_name

STUDY = Path(__file__).parents[2] / "results" / "heads" / "heads.json"


def test_short_labels_of_heads() -> None:
    assert short_name("decoder.1.cross.3") == "dec cross L1H3"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return heads_figures(STUDY, tmp_path_factory.mktemp("drawn"))


def test_the_pictures_name_every_head_and_both_answers(written: list[Path]) -> None:
    names = {"heads", "heads-pairs", "heads-roles"}
    assert {path.name for path in written} == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    study, drawn = json.loads(STUDY.read_text()), (written[0].parent / "heads.svg").read_text()
    for row in study["heads"]:
        assert f"<!-- {short_name(row['head'])} -->" in drawn
    assert f"One at a time: {study['alone']['count']} of 24 cost under 1%" in drawn
    assert f"Together: {study['together']['count']} can go" in drawn


def test_the_drawing_shows_what_is_sound_and_nothing_else(written: list[Path], tmp_path: Path) -> None:
    study = json.loads(STUDY.read_text())
    drawn = (written[0].parent / "heads-roles.svg").read_text()
    sound = {each["contrast"]: each["sound"] for each in study["roles"]["explained"]}
    assert sound["carry 2"]
    assert not sound["propagated 2"]
    assert "carry into column 2" in drawn
    assert "carry passed on to 2" not in drawn
    for each in study["roles"]["explained"]:
        each["sound"] = each["contrast"] == "carry 1"
    (tmp_path / "heads.json").write_text(json.dumps(study))
    heads_figures(tmp_path / "heads.json", tmp_path)
    drawn = (tmp_path / "heads-roles.svg").read_text()
    assert "carry into column 1" in drawn
    assert "carry into column 2" not in drawn


def test_what_cannot_flip_is_marked_with_a_legend(written: list[Path], tmp_path: Path) -> None:
    """A cell that provably cannot flip looks different from one that does not; an old file has none."""
    legend = "cannot: it sees no difference that reaches the digit"
    assert legend in (written[0].parent / "heads-roles.svg").read_text()
    study = json.loads(STUDY.read_text())
    for cell in study["roles"]["table"]:
        cell["flips"] = 0.0 if cell["flips"] == "cannot" else cell["flips"]
    (tmp_path / "heads.json").write_text(json.dumps(study))
    heads_figures(tmp_path / "heads.json", tmp_path)
    assert legend not in (tmp_path / "heads-roles.svg").read_text()


def test_a_population_is_drawn_and_one_of_refused_runs_is_not(tmp_path: Path) -> None:
    thousand = STUDY.parents[1] / "heads-thousand" / "heads.json"
    assert {path.name for path in population_figures(thousand, tmp_path)} == {
        "heads-population.svg", "heads-population.png",
    }  # fmt: skip
    assert "How many heads, in 1,000 runs" in (tmp_path / "heads-population.svg").read_text()
    (tmp_path / "none.json").write_text(json.dumps({"members": [{"subject": "a", "refused": "weak"}]}))
    assert population_figures(tmp_path / "none.json", tmp_path) == []


def test_a_subject_without_strata_gets_a_sentence_instead(tmp_path: Path) -> None:
    study = json.loads(STUDY.read_text())
    for row in study["heads"]:
        row["by_stratum"] = []
    (tmp_path / "heads.json").write_text(json.dumps(study))
    heads_figures(tmp_path / "heads.json", tmp_path)
    assert "this subject has no strata" in (tmp_path / "heads-pairs.svg").read_text()


@pytest.mark.parametrize("verdict", ["unclear", "critical"])
def test_a_study_of_everything_has_points_without_intervals(verdict: str, tmp_path: Path) -> None:
    study = json.loads(STUDY.read_text())
    for row in study["heads"]:
        row |= {"interval": None, "verdict": verdict}
    (tmp_path / "heads.json").write_text(json.dumps(study))
    heads_figures(tmp_path / "heads.json", tmp_path)
    assert verdict in (tmp_path / "heads.svg").read_text()
