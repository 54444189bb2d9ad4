"""How far a model works: the numbers match the slow, obvious way, and findings follow from them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from headway.api import study_lengths
from headway.cli import main
from headway.compare.index import list_runs
from headway.errors import HeadwayError
from headway.evaluation.exact import evaluate_chunks
from headway.lengths.answer import LengthStudy
from headway.lengths.diagnosis import diagnose
from headway.lengths.probes import ProbeProblems, ProbeResult, reach
from headway.models import Classifier, build_model
from headway.report.page import find_sources
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.runs.seal import seal
from headway.subjects.own import open_run
from headway.tasks import Sortedness
from headway.training.defaults import plan
from small import flags, small_model

CPU = torch.device("cpu")
TASK = Sortedness()
SMALL = small_model()
TINY = [*flags(**small_model(steps=3, batch=16)), "--quiet"]


def classifier(positions: str, pooling: str = "mean", index: str = "sequential") -> Classifier:
    overrides = Overrides(positions=positions, pooling=pooling, index=index, **SMALL)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("sortedness", overrides, 0).model, seed=1).eval()
    assert isinstance(model, Classifier)
    return model


@pytest.mark.parametrize("index", ["sequential", "randomized"])
def test_shared_problems_are_answered_once_and_counted_for_each_probe(index: str) -> None:
    model = classifier("kerple", "max", index)
    problems = ProbeProblems(TASK, (16, 70), TASK.probes, 300, 5, CPU)
    found = {(m.probe, m.length): m for m in problems.measure(model)}
    assert len(problems.problems_at(16)[0]) < 4 * 300 - 250  # three probes share their sorted sequences
    for probe in TASK.probes:
        for length in (16, 70):
            problems = TASK.independent(5, 300, probe=probe, length=length)
            slow = evaluate_chunks(model, TASK, [problems], 300, is_sample=True)
            fast = found[probe, length]
            assert (fast.examples, fast.errors, fast.positive_rate) == (300, slow.errors, slow.positive_rate)
            assert slow.interval == fast.interval


def test_problems_of_a_length_are_independent_of_each_other() -> None:
    problems = TASK.independent(0, 200, length=12)
    assert 0.4 < float(problems.answer.double().mean()) < 0.6
    assert len(problems.source.sort(1).values.unique(dim=0)) == 200  # no two of one pair


def test_reach_is_the_longest_length_before_the_first_that_falls_short() -> None:
    def at(length: int, errors: int) -> ProbeResult:
        return ProbeResult("default", length, 2000, errors, 0.5)

    assert reach([at(16, 0), at(32, 9), at(64, 1000), at(128, 0)], "default") == 32
    assert reach([at(16, 0), at(32, 0)], "default") == 32
    assert reach([at(16, 13), at(32, 0)], "default") == 0  # the lower end of 0.9935 lies below 0.99
    assert reach([at(16, 0)], "ties") == 0


def test_a_study_reports_its_runs_measurements_and_findings(tmp_path: Path, capsys) -> None:
    out = tmp_path / "study"
    command = ["lengths", "sortedness", "--positions", "sinusoidal,none", "--lengths", "20,40", "--seeds", "0,2", *TINY]
    assert main([*command, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((out / "lengths.json").read_text()) == found
    assert found["train_lengths"] == [8, 16]
    assert len(found["rows"]) == 2 * 2 * 4 * 3  # encodings, seeds, probes, lengths
    row = found["rows"][0]
    assert {
        "positions",
        "index",
        "pooling",
        "track",
        "seed",
        "probe",
        "length",
        "examples",
        "accuracy",
        "interval",
    } <= set(row)
    assert row["examples"] == 2000
    assert all(not run["converged"] for run in found["converged"])
    assert all(entry["median"] is None and entry["by_seed"] == {"0": None, "2": None} for entry in found["reach"])
    assert all("no conclusion about length" in sentence for sentence in found["findings"])
    trained = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    measured = {path: path.stat().st_mtime_ns for path in out.rglob("seed-*/measured.json")}
    assert len(trained) == len(measured) == 4
    assert main([*command, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert all(path.stat().st_mtime_ns == when for path, when in {**trained, **measured}.items())
    kept = [json.loads(path.read_text()) for path in measured]
    assert all(run["converged"] is False and list(run["reach"]) == run["asked"]["probes"] for run in kept)
    newer = next(iter(measured))  # an older Headway called it lengths.json, and did not tell the reach
    content = {key: value for key, value in kept[0].items() if key not in ("schema", "reach", "converged", "sha256")}
    (newer.parent / "lengths.json").write_text(json.dumps(seal(content)))
    newer.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProbeProblems, "measure", None)  # nothing is measured again
        assert main([*command, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert json.loads(newer.read_text()) == kept[0]
    assert len(find_sources([out]).studies["lengths"]) == 1  # a run's own file is no study
    assert {row["converged"] for row in list_runs(out, "in_range >= 0 and tested_to = 40")} == {False}
    longer = [word.replace("20,40", "20") for word in command]
    assert main([*longer, "--out", str(out), "--json"]) == 0  # other tests: the runs stay, the rows are new
    assert {row["length"] for row in json.loads(capsys.readouterr().out)["rows"]} == {16, 20}
    assert all(path.stat().st_mtime_ns == when for path, when in trained.items())


def test_the_tuned_track_chooses_one_learning_rate_for_all_seeds(tmp_path: Path) -> None:
    study = study_lengths(
        "sortedness", positions=["kerple"], index=["sequential", "randomized"], track="tuned", seeds=(0, 1),
        lengths=(20,), probes=("default",), out=tmp_path, steps=2, batch=16, **SMALL,
    )  # fmt: skip
    assert isinstance(study, LengthStudy)
    assert len(list(tmp_path.rglob("training.json"))) == 2 * 3 * 2  # indices, rates, seeds
    for entry in study.plan.entries:
        own = [run for run in study.runs if run.entry == entry]
        assert [run.seed for run in own] == [0, 1]
        assert len({run.rate for run in own}) == 1
        folders = {Path(run.run).parent.name for run in own}
        assert folders == {f"rate-{own[0].rate:g}"}


def test_learned_rows_past_the_training_length_stay_as_initialised(tmp_path: Path) -> None:
    """Nothing: it is, bit for bit, what it was drawn as, but for weight decay, which shrinks all rows alike."""
    study_lengths(
        "sortedness",
        positions=["learned"],
        seeds=(3,),
        lengths=(20,),
        probes=("default",),
        out=tmp_path,
        steps=5,
        batch=16,
        layers=1,
    )
    run = open_run(RunFolder(next(tmp_path.rglob("seed-3"))))
    fresh = build_model(run.config.model, 3)
    before, after = (model.positions.table.detach() for model in (fresh, run.model))  # pyright: ignore
    ratio = after[16:] / before[16:]
    assert float(ratio.max() - ratio.min()) < 1e-5
    assert float(ratio.mean()) > 0.999
    assert float((after[:16] / before[:16] - 1).abs().max()) > 1e-3


@pytest.mark.parametrize("length", [16, 100])
def test_no_positions_is_exactly_chance_on_pairs(length: int) -> None:
    model = classifier("none").double()
    problems = TASK.testing(0, 400, length=length)
    with torch.no_grad():
        right = model(problems.source).argmax(-1) == problems.answer
    differ = problems.answer.view(-1, 2).sum(1) == 1  # a swap of equal values leaves a sequence sorted
    assert bool((right.view(-1, 2).sum(1)[differ] == 1).all())


def failing(length: int, positive: float = 0.5) -> list[ProbeResult]:
    return [ProbeResult("default", 16, 2000, 0, 0.5), ProbeResult("default", length, 2000, 1000, positive)]


@pytest.mark.parametrize(
    ("positions", "cause", "words"),
    [
        ("none", "blind to order", "when a sequence is permuted"),
        ("alibi", "blind to direction", "when a sequence is reversed"),
        ("learned", "unseen positions", "24 of 40 table rows were never trained"),
        ("t5", "unseen positions", "buckets were never trained"),
        ("sinusoidal", "unseen positions", "waves are at angles that training never met"),
    ],
)
def test_a_diagnosis_names_what_the_model_cannot_see(positions: str, cause: str, words: str) -> None:
    (found,) = diagnose(classifier(positions), TASK, failing(40), CPU)
    assert (found.probe, found.length) == ("default", 40)
    assert cause in found.causes
    assert words in found.sentence
    json.dumps(asdict(found), allow_nan=False)


def test_a_diagnosis_names_a_constant_answer_and_shows_what_failed() -> None:
    (found,) = diagnose(classifier("kerple", "max"), TASK, failing(40, positive=1.0), CPU)
    assert "constant answer" in found.causes
    assert "every answer is 'sorted'" in found.sentence
    assert len(found.examples) == 3
    assert all("sorted" in example for example in found.examples)
    assert diagnose(classifier("kerple"), TASK, failing(40)[:1], CPU) == []


def weight_of_one_key(gap: float, keys: int) -> float:
    """Returns the softmax weight of one key whose score is `gap` above all the others."""
    return 1 / (1 + (keys - 1) * math.exp(-gap))


def test_a_diagnosis_measures_attention_dispersion() -> None:
    """The score of the next token is always 4 above all others, whatever their number."""
    model = classifier("clipped+distance=2", "max")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "table" in name:
                parameter.zero_()
        model.positions.table[3] = 4.0  # pyright: ignore[reportIndexIssue]  # of −2 … 2: one ahead
    (found,) = diagnose(model, TASK, failing(64), CPU)
    near, far = (found.evidence[moment]["neighbour"] for moment in ("attention_in_range", "attention"))
    assert near == pytest.approx(weight_of_one_key(4.0, 16), rel=1e-4)
    assert far == pytest.approx(weight_of_one_key(4.0, 64), rel=1e-4)
    assert far < 0.5 < near
    assert ("dispersion" in found.causes) == (far < 0.5 * near)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "1"], "--lengths 1: a test length is at least 2"),
        (["--positions", "learned", "--lengths", "600"], "learned positions have 512 rows; a sequence of 600"),
        (["--index", "randomized+range=64", "--positions", "rope", "--lengths", "65"], "has fewer than 65 numbers"),
        (["--positions", "rop"], "did you mean 'rope'?"),
        (["--pooling", "avg"], "unknown pooling 'avg'"),
        (["--pooling", "mean,mean"], "--pooling repeats a name"),
        (["--positions", "none", "--index", "randomized,randomized+range=64"], "uses no index; add sequential"),
        (["--positions", "window+log-length"], "same number of keys at every length"),
        (["--positions", "shapes:Buffered"], "has the buffers rows"),
        (["--track", "tune"], "did you mean 'tuned'?"),
        (["--probes", "tie"], "did you mean 'ties'?"),
        (["--examples", "100"], "at least 2,000"),
        (["--train-lengths", "8to16"], "write it like 8-16"),
        (["--train-lengths", "1-16"], "the shortest must be at least 2"),
        (["--positions", "rope,rope"], "--positions repeats a name"),
        (["--positions", "none", "--index", "randomized"], "none uses no index"),
        (["--index", "coupled"], "this task has no columns"),
        (["--rates", "1,fast"], "write multiples above 0"),
        (["--rates", "nan"], "write multiples above 0"),
        (["--rates", "1,1.0"], "repeats a rate"),
        (["--lengths", "32,x"], "write whole numbers separated by commas"),
        (["--positions", "shapes:Wide"], ".bias returned the shape (1, 4, 7, 5); expected (1, 4, 5, 7) or (1,"),
        (["--positions", "shapes:Late"], "shapes:Late positions need a causal model"),
        (["--positions", "shapes:Broken"], ".embed failed on tensors of shape (2, 5, 128), (1, 5) (ValueError: no)"),
    ],
)  # fmt: skip
def test_bad_requests_give_a_one_line_error_and_write_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (tmp_path / "shapes.py").write_text(
        "import headway\n"
        "class Wide(headway.Positions):\n"
        "    def bias(self, query_index, key_index):\n"
        "        return (query_index[:, None] - key_index[:, :, None])[:, None].expand(1, 4, -1, -1).float()\n"
        "class Late(headway.Positions):\n"
        "    needs_causal = True\n"
        "class Buffered(headway.Positions):\n"
        "    def __init__(self, shape):\n"
        "        super().__init__(shape)\n"
        "        import torch\n"
        "        self.register_buffer('rows', torch.zeros(3))\n"
        "class Broken(headway.Positions):\n"
        "    def embed(self, x, index):\n"
        "        raise ValueError('no')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["lengths", "sortedness", *words, "--out", "study", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_an_encoding_that_needs_a_causal_model_is_refused_by_an_encoder_alone() -> None:
    class Late(__import__("headway").Positions):
        name = "late"
        needs_causal = True

    from headway.positions import Encoding, Shape

    asked = Encoding("late", Late, {}, False)
    with pytest.raises(HeadwayError, match="an encoder is not causal"):
        asked(Shape(16, 2, 8))
    assert isinstance(asked(Shape(16, 2, 8, causal=True)), Late)
