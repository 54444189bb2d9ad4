"""Every shipped recipe runs as its docstring says."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from headway.causes import profiles
from headway.causes.profiles import measure_profile, profile_contrasts
from headway.cli import main
from headway.lengths.diagnosis import diagnose
from headway.lengths.probes import ProbeResult
from headway.models import build_model
from headway.positions import POSITIONS
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import open_one, subject_of
from headway.sweeps.file import read_sweep
from headway.tasks import Sortedness, create_task
from headway.training.defaults import plan
from small import flags, small_model

RECIPES = Path(__file__).parents[1] / "recipes"
TINY = flags(**small_model(steps=2, batch=16))


def test_a_users_task_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(RECIPES)
    out = str(tmp_path / "run")
    size = ["--steps", "250", "--batch", "64", "--d-model", "64", "--d-ff", "128"]
    assert main(["train", "reversal:Reversal", "--option", "longest=4", *size, "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", out, "--examples", "900", "--check-greedy", "200", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact_match"] > 0.9
    assert found["greedy"] == {"checked": 200, "mismatches": 0}
    assert found["held_out"]["examples"] > 50
    subject = subject_of(open_one(out))
    profile = measure_profile(subject, profile_contrasts(subject))
    assert profile is not None
    across = [profile.flips[f"decoder.{layer}.cross"] for layer in (0, 1)]
    for token in range(4):  # what is written is fetched across
        shares = [flips[f"token {token}"] for flips in across]
        assert max(share for share in shares if isinstance(share, float)) > 0.5


def test_a_users_task_is_written_to_files_and_trained_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(RECIPES)
    task, data, out = ["reversal:Reversal", "--option", "longest=4"], str(tmp_path / "data"), str(tmp_path / "run")
    assert main(["data", *task, "--out", data, "--train", "500", "--val", "60", "--test", "40", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 3
    assert main(["train", *task, "--data", data, *TINY, "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", out, "--data", data, "--split", "val", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 60


def test_a_users_task_gets_a_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECIPES)
    overrides = Overrides(**small_model(positions="learned"))
    config = plan("reversal:Reversal", overrides, 0, {"longest": 4})
    measured = [ProbeResult("default", 4, 2_000, 0, None), ProbeResult("default", 12, 2_000, 2_000, None)]
    task, model = create_task(config.task, config.options), build_model(config.model).eval()
    (found,) = diagnose(model, task, measured, torch.device("cpu"), examples=64)
    opening = "At length 12 (probe default) accuracy is 0.000 (n = 2,000): 8 of 12 table rows were never trained; "
    assert found.sentence.startswith(opening)
    assert found.causes == ("unseen positions",)
    assert found.evidence["tokens_wrong"] > 0.5
    assert found.examples[0].startswith("from token 0 of the answer as written: ")


def test_a_wrong_name_in_a_users_module_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(RECIPES)
    for name, words in {
        "reversal:Reversl": "did you mean 'Reversal'?",
        "reversals:Reversal": "cannot import 'reversals'",
        "reversal:Problems": "is not a Task",
    }.items():
        assert main(["train", name]) == 2
        assert words in capsys.readouterr().err
    assert main(["train", "reversal:Reversal", "--option", "shortest=4"]) == 2
    assert "has no option 'shortest'; it has: symbols, longest" in capsys.readouterr().err


def test_roles_are_tested_during_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RECIPES)
    recipe = importlib.import_module("when_roles_appear")
    found = recipe.main(0, "1,2")
    assert [entry["step"] for entry in found] == [1, 2]
    assert [entry["flips"] for entry in found] == [None, None]  # it knows nothing yet


def test_draws_of_one_adder_are_of_one_kind(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.syspath_prepend(RECIPES)
    monkeypatch.setattr(profiles, "PROFILED", 10)
    assert importlib.import_module("redraw_one_adder").main(6).kinds == 1
    assert "no kinds can be distinguished among 3 runs" in capsys.readouterr().out


def test_a_rule_that_reads_sixteen_tokens_passes_every_probe_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holding far out on the other three does not show that a model compares more tokens than it was trained to."""
    monkeypatch.chdir(RECIPES)
    monkeypatch.syspath_prepend(str(RECIPES))
    found = importlib.import_module("few_tokens").main(16, (32, 512))
    for length in (32, 512):
        for probe in ("default", "descending", "ties"):
            assert "holds" in (found["first", probe, length], found["evenly spaced", probe, length])
        assert found["first", "one-inversion", length] == found["evenly spaced", "one-inversion", length] == "fails"


@pytest.mark.slow
def test_claims_are_tested_on_other_adders(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    sizes = importlib.import_module("study_adder").Sizes(pairs=20, sums=100, random_sets=4)
    (found,) = importlib.import_module("other_seeds").main(["pretrained:adder"], sizes)
    assert len(found["labels"]) == 24
    assert found["flips"]["decoder.0.self"]["carry 1"] == "cannot"
    assert (found["written"]["all parts"] or [0.0])[0] > 0.4  # the written digit, with its own embedding kept
    assert (found["written"]["all but decoder.1.self"] or [1.0])[0] < 0.3
    assert "19 heads cost under" in capsys.readouterr().out


@pytest.mark.slow
def test_sets_are_grown_again_on_other_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    found = importlib.import_module("regrow_sets").main("pretrained:adder", draws=1, pairs=32, sets=10)
    ((heads, _),) = found["operand 1"]
    assert heads == ("decoder.0.cross.1", "decoder.0.cross.2")


def test_a_users_encoding_gets_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(RECIPES)
    tiny = [*TINY, "--lengths", "20", "--probes", "default"]
    asked = ["--positions", "own_positions:Slanted,own_positions:Slanted+steep=2.0+log-length"]
    assert main(["lengths", "sortedness", *asked, *tiny, "--out", str(tmp_path / "study"), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["positions"] for entry in found["reach"]] == asked[1].split(",")
    assert len([line for line in (RECIPES / "own_positions.py").read_text().splitlines() if line.strip()]) <= 30


def test_the_open_leaderboard_has_every_encoding_with_every_index() -> None:
    """Every encoding that ships, with both indices that sequences have where it uses one; max pooling; four probes."""
    sweep = read_sweep(str(RECIPES / "leaderboard-open.toml"))
    trials = sweep.trials()
    found = {(t.config.model.positions.partition("+")[0], t.config.model.index.partition("+")[0]) for t in trials}
    expected = {(name, "sequential") for name in POSITIONS}
    expected |= {(name, "randomized") for name, kind in POSITIONS.items() if kind.uses_index}
    assert found == expected
    assert {t.config.model.pooling for t in trials} == {"max"}
    assert {t.config.seed for t in trials} == set(range(5))
    assert {t.config.training.hard for t in trials} == {0.5}  # half of the negatives are one inversion
    options = sweep.studies[0].options
    assert options["probes"] == list(Sortedness.probes)
    assert max(options["lengths"]) == 4_096  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.slow
def test_both_recipes_are_trained_studied_and_tabulated_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    both = importlib.import_module("both_recipes")
    size = " ".join([*TINY, *flags(decoder_layers=1)])
    asked = ["--members", "2", "--out", str(tmp_path), "--device", "cpu", "--examples", "700", "--small"]
    assert both.main([*asked, "--train", size]) == 0
    assert capsys.readouterr().out.count("- adders: 2") == 2
    norms = {name: RunFolder(tmp_path / name / "seed-1").config().model.norm for name in ("ours", "reports")}
    assert norms == {"ours": "pre", "reports": "post"}
    found = json.loads((tmp_path / "both-recipes.json").read_text())
    for numbers in found.values():  # untrained adders are refused, and counted
        assert numbers["heads"]["distribution"]["refused"] == 2
        assert numbers["causes"]["adders"] == numbers["causes"]["10 kinds"]["left_out"] == 2
        assert not any(each["sound"] for each in numbers["causes"]["sets"].values())
