"""The commands on users' models: studies by every metric, screening, pruning, resuming, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr

pytest.importorskip("transformers")

import headway
from headway.attach.runner import UserRunner
from headway.causes.patterns import find_patterns, find_upstream
from headway.cli import main
from headway.errors import HeadwayError
from headway.evaluation.metrics import METRICS
from headway.heads.ablation import measure
from headway.heads.ablations import neighbours
from headway.heads.variants import Ledger, Variants
from headway.progress import SILENT
from headway.subjects.ragged import lengths_of
from headway.subjects.subject import Subject

ROOT = Path(__file__).parents[2]
MODEL, PROMPTS = str(ROOT / "recipes" / "induction"), str(ROOT / "recipes" / "induction" / "prompts.jsonl")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return headway.huggingface(MODEL, examples=PROMPTS)


def singles(subject: Subject) -> list[Any]:
    return [frozenset({head}) for head in subject.heads]


@pytest.mark.parametrize("metric", METRICS)
def test_both_known_heads_stand_out_under_every_metric(subject: Subject, metric: str) -> None:
    if metric == "logit-difference":
        lines = [json.loads(line) for line in Path(PROMPTS).read_text().splitlines()[:100]]
        lines = [{**line, "wrong": [(line["answer"][0] + 1) % 64]} for line in lines]
        asked = headway.huggingface(MODEL, examples=lines)
        assert asked.measured_by is METRICS[metric]
    else:
        asked = headway.huggingface(MODEL, examples=PROMPTS, metric=metric)
    problems = asked.draw(100, 0, False)
    effects = measure(Variants(asked), [problems], singles(asked))[1:]
    costs = {str(effect.closed): effect.loss_increase for effect in effects}
    known = [str(frozenset({head})) for head in asked.heads if str(head) in ("decoder.0.self.2", "decoder.1.self.3")]
    others = [cost for name, cost in costs.items() if name not in known]
    assert min(costs[name] for name in known) > 0.5
    assert max(map(abs, others)) < 0.01


def test_a_users_own_metric(subject: Subject) -> None:
    own = headway.huggingface(MODEL, examples=PROMPTS, metric=None)
    asked = replace(own, metric=lambda logits, problems: -logits.max(-1).values[:, 0])
    assert asked.measured_by is not None
    effects = measure(Variants(asked), [asked.draw(20, 0, False)], singles(asked))
    assert len(effects) == 9
    wrong = replace(own, metric=lambda logits, problems: logits.mean())
    with pytest.raises(HeadwayError, match="return a number for each problem"):
        Variants(wrong)(wrong.draw(4, 0, False), [frozenset()])


def test_mean_and_resample_agree_that_two_heads_are_needed(subject: Subject) -> None:
    problems = subject.draw(400, 0, False)
    lengths = lengths_of(problems)
    enough = problems[(lengths[:, None] == lengths).sum(1).gt(1).nonzero()[:, 0]]
    donors = neighbours(enough, 3)
    assert torch.equal(lengths_of(enough)[donors], lengths_of(enough))
    assert not bool((donors == torch.arange(len(enough))).any())
    for kind in ("mean", "resample"):
        effects = measure(Variants(subject, kind), [enough], singles(subject))[1:]
        needed = [next(iter(effect.closed)) for effect in effects if effect.drop > 0.5]
        assert [str(head) for head in needed] == ["decoder.0.self.2", "decoder.1.self.3"]


def test_the_induction_head_and_its_previous_token_head_are_found(subject: Subject) -> None:
    problems = subject.draw(400, 0, False)
    patterns = find_patterns(subject, problems)
    labels = {str(pattern.head): pattern.label for pattern in patterns}
    assert labels["decoder.0.self.2"] == "previous"
    assert labels["decoder.1.self.3"] == "induction"
    upstream = {str(each.head): each for each in find_upstream(subject, problems, patterns, SILENT)}
    assert [str(head) for head in upstream["decoder.1.self.3"].causes] == ["decoder.0.self.2"]
    assert upstream["decoder.1.self.3"].score > 0.9


def test_screening_finds_both_heads_and_reports_its_rank_correlation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", MODEL, "--examples", PROMPTS, "--metric", "loss", "--screen", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["heads"][0]["head"] == "decoder.1.self.3"
    closed = [row for row in found["heads"] if row["loss_increase"] is not None]
    expected = spearmanr([row["estimate"] for row in closed], [row["loss_increase"] for row in closed])[0]
    assert found["rank_correlation"] == pytest.approx(expected)
    assert sum(row["loss_increase"] is not None for row in found["heads"]) == 6


def test_a_pruned_model_reloads_in_plain_transformers_with_the_gated_logits(tmp_path: Path, subject: Subject) -> None:
    from transformers import GPT2LMHeadModel

    out = tmp_path / "pruned"
    report = headway.prune(subject, out, heads={0: [0, 1], 1: [0]})
    assert report["removed"] == ["decoder.0.self.0", "decoder.0.self.1", "decoder.1.self.0"]
    assert report["exact_match_after"] == 1.0
    again = GPT2LMHeadModel.from_pretrained(out).eval()
    problems = subject.draw(50, 0, False)
    runner = subject.runner
    assert isinstance(runner, UserRunner)
    removed = [head for head in subject.heads if str(head) in report["removed"]]
    gated = runner.logits(problems, runner.close_heads(removed))
    with torch.no_grad():
        own = torch.cat([runner.reader(again, some.source, some.answer) for some in runner.batches(problems)])
    torch.testing.assert_close(own, gated, atol=1e-5, rtol=1e-5)
    with pytest.raises(HeadwayError, match="is not empty"):
        headway.prune(subject, out, heads=["L0H0"])
    with pytest.raises(HeadwayError, match="is not a head of this model"):
        headway.prune(subject, tmp_path / "other", heads=["L5H0"])


def test_a_killed_study_resumes(tmp_path: Path, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    problems, sets = subject.draw(64, 0, False), [frozenset(), *singles(subject)]
    ledger, variants = Ledger(tmp_path / "part.json"), Variants(subject)
    first = ledger.measure(variants, problems[:32], sets)
    calls: list[int] = []
    whole = Variants.__call__
    monkeypatch.setattr(
        Variants, "__call__", lambda self, own, *rest: calls.append(len(own)) or whole(self, own, *rest)
    )
    again = Ledger(tmp_path / "part.json")
    same = again.measure(variants, problems[:32], sets)
    again.measure(variants, problems[32:], sets)
    assert calls == [32]
    assert torch.equal(same.right, first.right)
    assert torch.equal(same.loss, first.loss)
    again.measure(Variants(subject, "mean"), problems[:32], sets)  # another question
    assert calls == [32, 32]
    (tmp_path / "part.json").write_text("{")  # half a file
    Ledger(tmp_path / "part.json").measure(variants, problems[:32], sets)
    assert calls == [32, 32, 32]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["heads", "nowhere/at-all"], "nowhere/at-all"),
        (["heads", MODEL], "needs a file of examples: --examples prompts.jsonl"),
        (["heads", MODEL, "--examples", "nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["heads", MODEL, "--examples", PROMPTS, "--metric", "fame"], "unknown metric 'fame'"),
        (["heads", MODEL, "--examples", PROMPTS, "--memory", "lots"], "write it like 4GB"),
        (["heads", "pretrained:adder", "--examples", PROMPTS], "has its own problems"),
    ],
)
def test_bad_input_gives_a_one_line_error(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_model_that_needs_another_library_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("GPT2 requires the sentencepiece library but it was not found")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", missing)
    with pytest.raises(HeadwayError, match="needs a library that is not installed: pip install sentencepiece"):
        headway.huggingface(MODEL, examples=PROMPTS)


def test_the_doctor_takes_a_hugging_face_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", MODEL, "--examples", PROMPTS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    checks = {check["check"]: check["status"] for check in found["checks"]}
    assert checks["converged"] == "pass"
    assert checks["gates"] == "pass"


SWEEP = """
import resource, sys
import torch
from headway.bench.heads import attach
from headway.bench.own_references import random_gpt2, random_tokens
from headway.heads.variants import Variants
from headway.subjects.subject import Subject

torch.set_num_threads(2)
model, tokens = random_gpt2(), random_tokens()
runner, problems = attach(model, tokens, "full", int(sys.argv[1]))
subject = Subject(model, examples=problems, metric="loss").with_runner(runner)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
Variants(subject)(problems, [frozenset(), *(frozenset({head}) for head in subject.heads[::11])])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "most"), [(2**30, 2**30), (2**28, 2**28)])
def test_a_study_stays_within_its_memory_limit(memory: int, most: int) -> None:
    """Measures the memory beyond the model and its proofs, for GPT-2's size and 8 rows of 32 tokens."""
    done = subprocess.run([sys.executable, "-c", SWEEP, str(memory)], capture_output=True, text=True, check=True)
    taken = int(done.stdout)
    print(f"{taken / 2**20:.0f} MB with {memory / 2**20:.0f} MB allowed")
    assert taken < most
