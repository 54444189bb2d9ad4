"""Long sums: which are tested, how accurate the answers are, and which digits are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.cli import main
from headway.errors import HeadwayError
from headway.lengths.answer import Entry, LengthsPlan, LengthStudy, TrainedRun
from headway.lengths.diagnosis import diagnose
from headway.lengths.measuring import MeasuredRun
from headway.lengths.probes import ProbeProblems, ProbeResult
from headway.models import Decoder, EncoderDecoder, build_model
from headway.runs.config import Overrides
from headway.subjects.own import open_one
from headway.tasks import Addition
from headway.training.defaults import plan
from headway.training.tracks import find_track
from small import small_model

CPU = torch.device("cpu")
SMALL = small_model(32, heads=4)
OPTIONS = {"first": "least", "digits": 4, "shortest": 1}


@pytest.mark.usefixtures("pictures")
def test_a_study_of_sums_trains_short_and_tests_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "lengths", "addition", "--track", "tuned", "--positions", "learned+rows=64", "--index",
        "abacus+range=64,coupled+range=64+own=true", "--train-lengths", "1-4", "--lengths", "6,20", "--steps", "2",
        "--batch", "8", "--d-model", "32", "--heads", "4", "--rates", "1", "--out", str(tmp_path), "--json", "--quiet",
    ]  # fmt: skip
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["train_lengths"] == [1, 4]
    assert {row["probe"] for row in found["rows"]} == set(Addition.probes)
    assert {row["length"] for row in found["rows"]} == {4, 6, 20}
    assert {(row["positive_rate"], row["constant"]) for row in found["rows"]} == {(None, False)}
    config = json.loads(next(tmp_path.rglob("config.json")).read_text())
    assert (config["model"]["kind"], config["model"]["layers"], config["options"]["first"]) == ("decoder", 1, "least")
    assert len(list(tmp_path.rglob("training.json"))) == 2  # of one rate there is nothing to choose
    assert config["model"]["segments"] is False  # numbered as published, an answer's digits need no mark
    too_long = [word.replace("6,20", "62").replace(str(tmp_path), str(tmp_path / "other")) for word in command]
    assert main(too_long) != 0
    assert "abacus+range=64 has no numbers for 63 columns" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()  # before anything is trained
    assert (tmp_path / "lengths-board.png").stat().st_size > 5_000


def test_the_certified_adder_is_right_on_every_probe_past_training() -> None:
    run = open_one("pretrained:certified-adder")
    found = ProbeProblems(run.task, (8, 60), run.task.probes, 100, 0, CPU).measure(run.model)
    assert [(m.examples, m.errors) for m in found] == [(100, 0)] * 2 * len(run.task.probes)
    assert diagnose(run.model, run.task, found, CPU) == []  # too few to be sure, but none wrong: nothing to explain


def test_fewer_very_long_problems_are_tested_and_the_number_is_reported() -> None:
    run = open_one("pretrained:certified-adder")
    found = ProbeProblems(run.task, (8, 100, 3_000), ("default",), 50, 0, CPU, 2_010).measure(run.model)
    assert [(m.length, m.examples) for m in found] == [(8, 50), (100, 10), (3_000, 1)]


@pytest.mark.parametrize("first", ["least", "most"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_wrong_digits_are_counted_by_column(kind: str, first: str) -> None:
    options = {**OPTIONS, "first": first}
    overrides = Overrides(model=kind, positions="learned+rows=64", **SMALL)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("addition", overrides, 0, options).model, seed=1).eval()
    assert isinstance(model, Decoder | EncoderDecoder)
    task = Addition(**options)  # pyright: ignore[reportArgumentType]
    (found,) = diagnose(model, task, [ProbeResult("default", 9, 2_000, 2_000, None)], CPU, examples=64)
    problems = task.independent(5, 64, length=9)
    inside = past = firsts = 0
    places = []
    for row in range(64):
        with torch.no_grad():
            said = model(problems.source[row : row + 1], problems.answer[row : row + 1]).argmax(-1)[0].tolist()
        wrong = [a != b for a, b in zip(said, problems.answer[row].tolist(), strict=True)]
        wrong = wrong if first == "least" else wrong[::-1]
        inside, past = inside + sum(wrong[:5]), past + sum(wrong[5:])
        firsts += any(wrong)
        places += [1 + wrong.index(True)] if any(wrong) else []
    assert "past column 5" in found.sentence or "up to column 5" in found.sentence
    assert found.evidence["digits_wrong_in_trained_columns"] == pytest.approx(inside / (64 * 5))
    assert found.evidence["digits_wrong_past_them"] == pytest.approx(past / (64 * 5))
    assert found.evidence["first_wrong_column"] == sorted(places)[(firsts - 1) // 2]
    assert "table rows were never trained" in found.sentence
    assert len(found.examples) == 3


def test_cross_attention_through_a_window_sees_only_its_columns() -> None:
    overrides = Overrides(
        model="encoder-decoder", positions="window+behind=1+ahead=0", index="coupled", decoder_layers=1, d_model=32,
        heads=4, d_ff=64, layers=1,
    )  # fmt: skip
    model = build_model(plan("addition", overrides, 0, OPTIONS).model, seed=1).double().eval()
    task = Addition(**OPTIONS)  # pyright: ignore[reportArgumentType]
    for digits in (12, 40):  # few keys, and so many that they are gathered
        problems = task.testing(0, 8, length=digits)
        source = problems.source.clone()
        far = list(range(digits - 6))  # the leading digits of a
        source[:, far] = (source[:, far] + 1) % 10
        with torch.no_grad():
            near, moved = model(problems.source, problems.answer), model(source, problems.answer)
        assert (near[:, :6] - moved[:, :6]).abs().max() < 1e-12
        assert (near[:, 8:] - moved[:, 8:]).abs().max() > 1e-3


def test_a_window_that_hides_the_whole_problem_is_refused() -> None:
    for window, options in (("window+behind=0+ahead=1", {}), ("window+behind=1+ahead=0", {"natural": True})):
        overrides = Overrides(model="encoder-decoder", positions=window, index="coupled")
        with pytest.raises(HeadwayError, match="hides the whole problem from the last column"):
            build_model(plan("addition", overrides, 0, {**OPTIONS, **options}).model)


def test_what_is_not_scored_is_not_wrong() -> None:
    task = Addition(digits=4, natural=True, first="least")

    class Right(Decoder):
        def forward(self, source: torch.Tensor, answer: torch.Tensor, *_: object) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return torch.nn.functional.one_hot(answer.where(scored_of(source), 0), task.vocabulary).float()

    def scored_of(source: torch.Tensor) -> torch.Tensor:
        problems = task.independent(5, 512, length=9)
        assert problems.scored is not None
        place = (problems.source == source[:1]).all(1).nonzero()[0, 0]
        return problems.scored[place : place + len(source)]

    config = plan(
        "addition", Overrides(model="decoder", d_model=32, heads=4), 0, {"digits": 4, "natural": True, "first": "least"}
    )
    (found,) = diagnose(Right(config.model), task, [ProbeResult("default", 9, 2_000, 2_000, None)], CPU)
    assert found.evidence["digits_wrong"] == 0
    assert found.examples == ()


def test_too_few_problems_to_be_certain_are_reported() -> None:
    """A model that is right on all of a few very long sums has not failed, and is not reported as failed."""
    run = open_one("pretrained:certified-adder")
    measured = ProbeProblems(run.task, (8, 2_000), ("default",), 2_000, 0, CPU, 40_000).measure(run.model)
    entry = Entry("window", "coupled", None)
    asked = LengthsPlan("addition", (entry,), find_track("tuned"), (0,), (2_000,), ("default",), {})
    trained = TrainedRun(entry, 0, "", 1.0, 0.0, 1.0, MeasuredRun(1.0, (0.99, 1.0), tuple(measured), ()))
    study = LengthStudy(asked, (1, 8), (trained,), "float32")
    assert study.findings() == [
        "window, coupled: trained up to 8, reach 8 (probe default); no errors up to 2,000 either, but 9 problems are "
        "too few for the interval."
    ]
    reason = {"check": "causality", "reason": "it sees the answer"}
    forbidden = replace(study, withheld={entry: (reason,)})
    assert forbidden.reach(entry, "default") == [None]
    assert forbidden.findings() == ["window, coupled: withheld: causality: it sees the answer."]
    content = forbidden.to_json()
    assert content["withheld"] == [{"positions": "window", "index": "coupled", "pooling": None, **reason}]
    assert content["reach"][0]["worst"] is None
