"""`headway prune --windows` writes a model that transformers loads and `headway.cache` narrows, whole or not at all."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from transformers import LlamaForCausalLM

import headway
from headway import Budget, HeadwayError
from headway.cli import main
from headway.report.windows import windows_figure
from headway.windows.exporting import export_budget
from headway.windows.saving import save_with_budget

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "recipes" / "recall" / "rotary")
BUDGET = Budget(4, {"decoder.0.self": (16, 16, 16, None), "decoder.1.self": (None, 16, 16, 16)})


@pytest.fixture
def budget(tmp_path: Path) -> Path:
    BUDGET.write(tmp_path / "budget.json")
    return tmp_path / "budget.json"


def examples(folder: Path) -> Path:
    """Writes segments of tokens that repeat, where the answer is the next one."""
    file, generator = folder / "prompts.jsonl", torch.Generator().manual_seed(0)
    with open(file, "w") as lines:
        for _ in range(40):
            segment = (64 + torch.randperm(64, generator=generator)[:28]).tolist()
            lines.write(json.dumps({"tokens": segment + segment[:12], "answer": segment[12:13]}) + "\n")
    return file


def test_the_folder_is_the_model_with_its_budget(
    budget: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["prune", MODEL, "--windows", str(budget), "--out", str(out), "--length", "640", "--lengths", "64,128"]
    assert main([*words, "--examples", str(examples(tmp_path)), "--export", "kvpress", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cache_share"] == pytest.approx((6 * 20 + 2 * 640) / (8 * 640))
    assert (found["heads_before"], found["heads_after"], found["full_groups"]) == (8, 8, 2)
    assert found["parameters_before"] == found["parameters_after"]
    assert found["exact_match_after"] < found["exact_match_before"]  # these windows hide facts
    assert [row["length"] for row in found["by_length"]] == [64, 128, 64, 128]
    assert all(row["windows"] < row["full"] for row in found["by_length"])
    assert Budget.read(out) == BUDGET
    model = LlamaForCausalLM.from_pretrained(out)
    original = LlamaForCausalLM.from_pretrained(MODEL).state_dict()
    assert all(torch.equal(weight, original[name]) for name, weight in model.state_dict().items())
    with headway.cache(model) as cache:  # finds budget.json beside the weights
        assert cache.budget == BUDGET
    assert (out / "kvpress" / "press.py").exists()
    assert not list(tmp_path.glob(".out*"))


def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = LlamaForCausalLM.from_pretrained(MODEL), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(LlamaForCausalLM, "save_pretrained", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(HeadwayError, match="no space"):
            save_with_budget(model, None, BUDGET, out, {})
    assert list(tmp_path.iterdir()) == []
    out.mkdir()
    (out / "mine").write_text("kept")
    with pytest.raises(HeadwayError, match="not empty"):
        save_with_budget(model, None, BUDGET, out, {})
    assert [path.name for path in out.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrained:adder", "--windows", "BUDGET"], "model of Headway's own"),
        ([MODEL, "--windows", "missing.json"], "missing.json does not exist"),
        ([MODEL, "--windows", "BUDGET", "--heads", "L0H1"], "leave out --heads"),
        ([MODEL, "--windows", "BUDGET", "--length", "0"], "--length 0"),
        ([MODEL, "--windows", "BUDGET", "--lengths", "8"], "at least 32 tokens"),
        ([MODEL, "--length", "64"], "--windows"),
        ([str(ROOT / "recipes" / "recall" / "alibi"), "--windows", "BUDGET"], "AttentionInterface"),
        ([str(ROOT / "recipes" / "recall" / "table"), "--windows", "BUDGET", "--lengths", "4096"], "positions"),
    ],
)
def test_a_wrong_request_is_one_line(
    words: list[str], said: str, budget: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(budget) if word == "BUDGET" else word for word in words]
    assert main(["prune", *words, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err.strip()
    assert said in printed
    assert "\n" not in printed
    assert not (tmp_path / "out").exists()


def test_duoattention_reads_the_pattern(tmp_path: Path) -> None:
    """Read as its `load_attn_pattern` reads a folder: numpy.loadtxt with tabs, clipped, and two keys of the config."""
    export_budget(BUDGET, "duoattention", tmp_path)
    full = numpy.loadtxt(tmp_path / "full_attention_heads.tsv", dtype=float, delimiter="\t")
    config = json.loads((tmp_path / "config.json").read_text())
    assert numpy.clip(full, 0, 1).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    assert (config["sink_size"], config["recent_size"]) == (4, 16)


def test_kvpress_gets_a_press_with_these_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in chooses streaming heads as DuoAttentionPress does: those of the lowest scores, by their share."""

    @dataclass
    class DuoAttentionPress:
        head_compression_ratio: float = 0.0
        streaming: Any = field(init=False, default=None)

        def prepare(self, model: Any) -> tuple[int, int, list[list[bool]]]:
            sink, recent, scores = self.load_attention_pattern(model)  # pyright: ignore[reportAttributeAccessIssue]
            mask = numpy.zeros(scores.shape, dtype=bool)
            lowest = numpy.argsort(scores, axis=None)[: round(scores.size * self.head_compression_ratio)]
            mask[numpy.unravel_index(lowest, scores.shape)] = True
            return sink, recent, mask.tolist()

    stand_in = ModuleType("kvpress")
    stand_in.__dict__["DuoAttentionPress"] = DuoAttentionPress
    monkeypatch.setitem(sys.modules, "kvpress", stand_in)
    export_budget(BUDGET, "kvpress", tmp_path)
    spec = importlib.util.spec_from_file_location("exported_press", tmp_path / "press.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sink, recent, streaming = module.press().prepare(SimpleNamespace())
    narrow = [[window is not None for window in windows] for windows in BUDGET.windows.values()]
    assert (sink, recent, streaming) == (4, 16, narrow)


def test_an_export_needs_one_window(tmp_path: Path) -> None:
    for wrong in (BUDGET.replace_window("decoder.0.self", 0, 8), Budget.uniform(4, None, {"decoder.0.self": 2})):
        with pytest.raises(HeadwayError, match="one window for all narrow groups"):
            export_budget(wrong, "duoattention", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("pictures")
def test_the_picture_is_drawn_light_and_dark(tmp_path: Path) -> None:
    content = {"budget": BUDGET.to_json(), "cache_share": 0.3, "length": 640, "by_length": []}
    (tmp_path / "windows.json").write_text(json.dumps(content))
    drawn = {path.name for path in windows_figure(tmp_path / "windows.json", tmp_path)}
    assert drawn == {"windows.svg", "windows.png", "windows-dark.svg", "windows-dark.png"}
