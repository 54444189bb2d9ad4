"""The whole study: verdicts, heads removed together, real pruning, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from headway.api import heads as heads_module
from headway.api import prune, study_heads, train
from headway.causes import roles as roles_module
from headway.cli import main
from headway.doctor import patient as patient_module
from headway.doctor.examination import find_vetoes
from headway.errors import HeadwayError
from headway.evaluation.intervals import needed_examples, tango
from headway.heads import study as study_module
from headway.heads.ablation import Effect, Judge, Margin
from headway.heads.pruning import remove_heads
from headway.heads.question import HeadsQuestion
from headway.heads.result import HeadStudy
from headway.heads.study import study_subject
from headway.models import Head, heads_of
from headway.report import maps as maps_module
from headway.subjects.own import open_one, subject_of
from headway.subjects.runner import HeadwayRunner
from small import flags, small_model


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def study(home: Path) -> HeadStudy:
    with pytest.MonkeyPatch.context() as patch:  # smaller, to be quick
        for name, value in {"SELECTED": 100, "CONFIRMED": 1000, "PAIRED": 20, "LOOKED_AT": 200}.items():
            patch.setattr(study_module, name, value)
        for name, value in {"PAIRS": 32, "GROWN": 10, "RANDOM_SETS": 3}.items():  # 30 pairs are enough to say it
            patch.setattr(roles_module, name, value)
        patch.setattr(heads_module, "MAPPED", 30)
        patch.setattr(
            heads_module, "heads_figures", lambda file, out: (out / "heads.svg").write_bytes(file.read_bytes())
        )
        for module, drawing in ((heads_module, "problem_figure"), (maps_module, "several_figure")):
            patch.setattr(module, drawing, lambda maps, path: path.with_suffix(".svg").touch())
        return study_heads("pretrained:adder", examples=1000, budget=0, out=home)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What to ask of a study whose numbers are not looked at: a wide margin, which few problems can tell."""
    for name, value in {"SELECTED": 50, "CONFIRMED": 200, "PAIRED": 5}.items():
        monkeypatch.setattr(study_module, name, value)
    monkeypatch.setattr(heads_module, "COMPARED", 200)
    monkeypatch.setattr(heads_module, "MAPPED", 30)
    return {"examples": 250, "max_drop": 0.05, "budget": 0}


def test_heads_that_are_cheap_alone_are_not_cheap_together(study: HeadStudy) -> None:
    """Refutes the most common false claim, on the adder that ships with the package."""
    assert study.alone.count > study.together.count
    assert study.alone.accuracy < 0.9
    assert study.together.effect.drop <= 0.01
    assert study.baseline == 1.0


def test_a_notebook_shows_findings_a_table_and_the_maps_of_a_sum(study: HeadStudy) -> None:
    shown = study._repr_html_()
    assert shown.count("<tr>") == 1 + 24
    assert "Under zero ablation, " in shown
    maps = study.maps("457+968").content
    (example,) = maps["examples"]
    assert example["read"] == ["4", "5", "7", "+", "9", "6", "8"]
    assert example["answers"][""]["said"] == example["wanted"] == ["1", "4", "2", "5"]
    assert set(example["answers"]) == {"", "alone", "together", *(str(row.head) for row in study.heads)}
    assert "<iframe" in study.maps()._repr_html_()
    with pytest.raises(HeadwayError, match="'1\\+' is not a problem of this task; write one like '12\\+7'"):
        study.maps("1+")
    with pytest.raises(HeadwayError, match="no model loaded"):
        replace(study, view=None).maps()


def test_findings_that_a_failed_check_forbids_are_withheld(
    study: HeadStudy, adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are kept; verdicts, sets and findings are not."""
    monkeypatch.setattr(patient_module, "ROWS", 200)
    monkeypatch.setattr(patient_module, "FEW", 40)
    late = replace(subject_of(adder), generate=lambda problems: problems.answer.roll(1, dims=1))
    found = find_vetoes(late, "heads")
    assert [each["check"] for each in found] == ["given digits"]
    assert find_vetoes(subject_of(adder), "heads") == ()
    censored, whole = replace(study, withheld=found).to_json(), study.to_json()
    assert whole["withheld"] == []
    assert whole["findings"] == study.findings()
    assert censored["findings"] == [f"Withheld: given digits: {found[0]['reason']}."]
    assert {row["verdict"] for row in censored["heads"]} == {"withheld"}
    assert [row["accuracy"] for row in censored["heads"]] == [row["accuracy"] for row in whole["heads"]]
    assert all(censored[key] is None for key in ("alone", "alone_removed_together", "together", "sets", "roles"))
    assert censored.keys() == whole.keys()


def test_the_veto_comes_first_and_skips_forbidden_work(adder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SELECTED": 50, "PAIRED": 5, "LOOKED_AT": 20}.items():
        monkeypatch.setattr(study_module, name, value)
    for spared in ("find_optimum", "find_roles"):
        monkeypatch.setattr(study_module, spared, lambda *given, **named: pytest.fail("may not be told"))
    whole = subject_of(adder)
    reasons, question = (
        ({"check": "greedy", "reason": "it decodes otherwise"},),
        HeadsQuestion(examples=250, max_drop=0.05),
    )
    measured: list[object] = []
    plain = study_module.measure
    monkeypatch.setattr(
        study_module, "measure", lambda *given, **named: measured.append(given) or plain(*given, **named)
    )
    study = study_subject(
        replace(whole, heads=whole.heads[:3]), question, veto=lambda subject: () if measured else reasons
    )
    assert study.withheld == reasons
    assert study.findings() == ["Withheld: greedy: it decodes otherwise."]
    assert len(measured) == 1  # each head alone, under one kind of ablation
    assert {row["verdict"] for row in study.to_json()["heads"]} == {"withheld"}
    assert "critical" not in study.to_csv()
    assert study.together.count == 0


def test_the_curve_of_greedy_removal_takes_one_head_at_a_time(study: HeadStudy) -> None:
    best = study.curves[0]
    for fewer, more in zip(best.sets, best.sets[1:], strict=False):
        assert fewer < more
        assert len(more) == len(fewer) + 1
    assert len(best.sets) == 25
    assert {curve.order for curve in study.curves} >= {"greedy", "by cost alone", "by slope", "random 0"}
    assert best.accuracy[12] >= max(curve.accuracy[12] for curve in study.curves if curve.order.startswith("random"))


def test_findings_about_roles_match_the_tests(study: HeadStudy) -> None:
    assert study.roles is not None
    sound = [each for each in study.roles.explained if each.sound]
    said = study.roles.findings()
    assert len(said) == len(sound) + 4 + 6  # swapped inputs, and what whole sites carry, for each kind of contrast
    assert [each for each in study.findings() if each in said] == said
    for each in study.roles.explained:
        if each.contrast.startswith(("operand", "carry")):
            assert (each.real.share or 0) > 0.9
            assert each.placebo.share == 0
    patterns = {str(pattern.head): pattern.label for pattern in study.patterns}
    assert patterns["decoder.0.cross.2"] == "aligned"
    rows = {row["head"]: row["pattern"] for row in study.to_json()["heads"]}
    assert rows == patterns


def test_json_and_csv_say_the_same(study: HeadStudy) -> None:
    content = json.loads(json.dumps(study.to_json()))
    lines = study.to_csv().splitlines()
    assert len(lines) == 1 + len(content["heads"]) == 25
    for line, row in zip(lines[1:], content["heads"], strict=True):
        assert line.startswith(f"{row['head']},{row['accuracy']}")
    assert content["alone"]["count"] == len(content["alone"]["heads"])
    assert "<td>encoder.0.self.0</td>" in study._repr_html_()
    assert {row["verdict"] for row in content["heads"]} <= {"critical", "redundant", "unclear"}
    assert {part["part"] for part in content["parts"]} >= {"encoder.0.self", "decoder.1.feed", "decoder.0"}


def effect(lost: int, gained: int = 0, examples: int = 2000) -> Effect:
    return Effect(frozenset(), examples, examples - lost + gained, lost, gained, 0.0, 0.0, 0.0, {})


def test_not_significant_is_not_redundant() -> None:
    judge = Judge(Margin(0.01), comparisons=24, exact=False)
    assert judge.verdict(effect(0)) == "redundant"
    assert judge.verdict(effect(15)) == "unclear"
    assert judge.verdict(effect(100)) == "critical"
    few = Judge(Margin(0.01), comparisons=24, exact=False)
    assert few.verdict(effect(0, examples=needed_examples(0.01, few.confidence) - 1)) == "unclear"
    assert few.verdict(effect(0, examples=needed_examples(0.01, few.confidence) + 1)) == "redundant"
    assert Judge(Margin(0.01), 24, exact=True).verdict(effect(15)) == "redundant"


@pytest.mark.parametrize("chances", [(0.02, 0.005), (0.005, 0.0), (0.1, 0.1), (0.3, 0.05)])
def test_the_interval_covers_the_true_drop(chances: tuple[float, float]) -> None:
    chance, cases = numpy.random.default_rng(0), 600
    drop, covered = chances[0] - chances[1], 0
    for lost, gained, _ in chance.multinomial(500, [*chances, 1 - sum(chances)], size=cases).tolist():
        interval = tango(lost, gained, 500)
        covered += interval.low <= drop <= interval.high
    assert covered / cases >= 0.93


def test_the_interval_is_not_empty_when_no_verdict_changed() -> None:
    interval = tango(0, 0, 2000)
    assert interval.high == pytest.approx(1.959964**2 / (2000 + 1.959964**2), rel=1e-5)
    assert interval.low == pytest.approx(-interval.high)
    assert tango(30, 10, 500).low < 0.04 < tango(30, 10, 500).high


@torch.no_grad()
def test_a_pruned_model_has_the_logits_of_the_gated_one(adder) -> None:
    problems = adder.task.testing(seed=1, rows=50)
    heads = heads_of(adder.model)
    for gone in (heads[1:2], heads[3:9], heads[:4], heads):  # one, some, a whole site, all
        pruned, config = remove_heads(adder.model, adder.config.model, gone)
        gated = adder.model(problems.source, problems.answer, HeadwayRunner(adder.model).close_heads(gone))
        torch.testing.assert_close(pruned(problems.source, problems.answer), gated, rtol=1e-4, atol=1e-4)
        assert len(heads_of(pruned)) == 24 - len(gone)
        assert config.pruned.split() == [str(head) for head in gone]


def test_a_pruned_run_reads_back_and_is_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_module, "COMPARED", 500)
    gone = [Head.parse("encoder.1.self.1"), Head.parse("decoder.1.self.0")]
    result = prune("pretrained:adder", tmp_path / "pruned", heads=gone)
    assert result["heads_after"] == 22
    assert result["parameters_before"] - result["parameters_after"] == 2 * 4 * 32 * 128
    again = open_one(tmp_path / "pruned")
    assert again.config.model.pruned == "encoder.1.self.1 decoder.1.self.0"
    with pytest.raises(HeadwayError, match="pruned before"):
        prune(again, tmp_path / "twice", heads=[Head.parse("encoder.0.self.0")])


def test_training_of_a_pruned_run_can_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without these heads one sum in a hundred is wrong; a few training steps fix that."""
    monkeypatch.setattr(heads_module, "COMPARED", 1000)
    gone = [Head.parse(f"encoder.0.self.{number}") for number in (1, 3)]
    plain = prune("pretrained:adder", tmp_path / "plain", heads=gone)
    result = prune("pretrained:adder", tmp_path / "recovered", heads=gone, recover=30)
    assert result["exact_match_without_recovery"] == plain["exact_match_after"] < 0.99
    assert result["exact_match_after"] > plain["exact_match_after"]
    assert result["recovered_steps"] == 30
    again = open_one(tmp_path / "recovered")
    assert again.config.training.recovered == 30
    assert again.config.digest != open_one(tmp_path / "plain").config.digest
    with pytest.raises(HeadwayError, match="recover is -1"):
        prune("pretrained:adder", tmp_path / "no", heads=gone, recover=-1)


def test_a_margin_in_loss_also_applies_to_sets(adder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_module, "SELECTED", 100)
    monkeypatch.setattr(study_module, "CONFIRMED", 1000)
    monkeypatch.setattr(study_module, "PAIRED", 5)
    asked = HeadsQuestion(examples=500, budget=0, brief=True)
    whole = subject_of(adder)
    some = replace(whole, heads=whole.heads[::2])
    strict, wide = (study_subject(some, replace(asked, max_loss_increase=most)) for most in (0.0005, 0.05))
    assert 0 < strict.together.count < wide.together.count
    assert strict.together.effect.loss_increase < 0.0005
    assert "within 0.0005 of loss" in strict.findings()[1]


def test_a_study_writes_numbers_maps_and_figures(study: HeadStudy, home: Path) -> None:
    kept, pictures = (
        {path.name for path in home.iterdir()},
        {f"maps-{of}.svg" for of in ("problem", "average", "twelve")},
    )
    assert kept == {"heads.json", "heads.csv", "maps.json", "heads.svg", *pictures}
    assert (home / "heads.svg").read_bytes() == (home / "heads.json").read_bytes()
    assert json.loads((home / "heads.json").read_text()) == json.loads(json.dumps(study.to_json()))
    assert (home / "heads.csv").read_text() == study.to_csv()
    several = json.loads((home / "maps.json").read_text())["several"]
    costly = sorted(study.heads, key=lambda row: -row.effect.drop)[:4]
    assert set(several["heads"]) == {str(row.head) for row in costly}
    assert len({"".join(problem["read"]) for problem in several["problems"]}) == 12


WRONG = {
    "--max-drop 0": "max_drop is 0.0; it must be between 0 and 1",
    "--max-drop 1.5": "max_drop is 1.5",
    "--max-loss-increase -1": "max_loss_increase is -1.0; write a share of the loss such as 1%, or an amount",
    "--max-loss-increase little": "max_loss_increase is little; write a share of the loss such as 1%, or an amount",
    "--max-loss-increase 0%": "max_loss_increase is 0%; write a share",
    "--max-loss-increase nan%": "max_loss_increase is nan%; write a share",
    "--max-loss-increase 1% --max-drop 0.01": "give --max-drop or --max-loss-increase, not both",
    "--max-loss-increase 1% --budget 5": "with --max-loss-increase add --budget 0",
    "--examples 100": "100 examples cannot distinguish a drop of 0.01 from none; use at least",
    "--examples 0": "examples is 0",
    "--examples 20 --max-loss-increase 0.1": "20 examples are too few for an interval of the loss; use 500",
    "--all --examples 5": "--all takes every problem; leave out --examples",
    "--ablation nothing": "unknown ablation 'nothing'; there are: mean, resample, window, zero",
    "--beam 0": "beam is 0",
}


@pytest.mark.parametrize("words", WRONG)
def test_an_impossible_study_is_refused_in_one_line(words: str, capsys) -> None:
    assert main(["heads", "pretrained:adder", "--quiet", *words.split()]) == 2
    shown = capsys.readouterr()
    assert WRONG[words] in shown.err
    assert shown.err.count("\n") == 1


def test_an_untrained_model_gets_no_verdicts(tmp_path: Path) -> None:
    small = small_model(batch=4, steps=2)
    for task, positions in (("addition", "learned"), ("sortedness", "none")):  # the latter is at chance
        run = train(task, out=tmp_path / task, device="cpu", positions=positions, **small)
        with pytest.raises(HeadwayError, match="too little to rank heads"):
            study_heads(run, examples=2000)


def test_a_pruned_model_with_an_empty_site_can_be_studied(tmp_path: Path, quick: dict[str, Any]) -> None:
    gone = [Head.parse(f"decoder.1.self.{number}") for number in range(4)]
    prune("pretrained:adder", tmp_path / "pruned", heads=[*gone, gone[0]])
    pruned = subject_of(open_one(tmp_path / "pruned"))
    assert len(pruned.heads) == 20
    study = study_heads(replace(pruned, heads=pruned.heads[::5]), **quick)  # of four sites, beside the empty one
    assert len(study.heads) == 4
    parts = {str(site) for row in study.parts for site in row.effect.closed}
    assert "decoder.1.cross" in parts
    assert "decoder.1.self" not in parts
    assert (tmp_path / "pruned" / "maps.json").exists()


def test_runs_of_two_shapes_are_not_compared(tmp_path: Path, capsys) -> None:
    small = small_model(batch=4, steps=2, device="cpu")
    train("addition", out=tmp_path / "runs" / "one", **small)
    train("addition", out=tmp_path / "runs" / "two", **{**small, "d_ff": 64})
    assert main(["heads", str(tmp_path / "runs"), "--quiet"]) == 2
    assert "runs of different shapes" in capsys.readouterr().err


def test_a_users_factory_is_studied(
    tmp_path: Path, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_to_study.py").write_text(
        "import dataclasses, headway\nfrom headway.subjects.own import subject_of\n"
        "def adder():\n    whole = subject_of(headway.pretrained('adder'))\n"
        "    return dataclasses.replace(whole, heads=whole.heads[-4:], contrasts=None)\n"
        "def number():\n    return 3\n"
        "def wrapped():\n    import torch\n    whole = adder()\n"
        "    return dataclasses.replace(whole, model=torch.nn.Sequential(whole.model))\n"
    )
    asked = [*flags(**quick), "--out", "study", "--json", "--quiet"]
    assert main(["heads", "mine_to_study:adder", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == 1.0
    assert json.loads((tmp_path / "study" / "heads.json").read_text()) == found
    assert [row["head"] for row in found["heads"]] == [f"decoder.1.cross.{number}" for number in range(4)]
    assert found["roles"] is None
    assert main(["heads", "mine_to_study:wrapped", *asked]) == 2
    assert "the sites of its Sequential are not known; give Subject(sites=…)" in capsys.readouterr().err
    assert main(["heads", "mine_to_study:number", "--quiet"]) == 2
    assert "a factory must return a headway.Subject" in capsys.readouterr().err
    assert main(["heads", "mine_to_study:addr", "--quiet"]) == 2
    assert "did you mean 'adder'?" in capsys.readouterr().err
