"""The shipped induction model works with two of its eight heads; its recipe is reproducible."""

from __future__ import annotations

import importlib
import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = RECIPES / "induction"
PREVIOUS, INDUCTION = (0, 2), (1, 3)  # (layer, head)


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(SHIPPED, attn_implementation="eager").eval()


@torch.no_grad()
def right(model: GPT2LMHeadModel) -> float:
    """Returns the accuracy on the shipped prompts."""
    prompts = list(map(json.loads, (SHIPPED / "prompts.jsonl").read_text().splitlines()))
    rows = [torch.tensor(prompt["tokens"]) for prompt in prompts]
    last = torch.tensor([len(row) - 1 for row in rows])
    padded = pad_sequence(rows, batch_first=True)  # on the right, where no earlier token looks
    said = model(padded).logits[torch.arange(len(rows)), last].argmax(-1)
    return (said == torch.tensor([prompt["answer"][0] for prompt in prompts])).float().mean().item()


@torch.no_grad()
def without(model: GPT2LMHeadModel, *heads: tuple[int, int]) -> GPT2LMHeadModel:
    closed = deepcopy(model)
    attentions = [part for part in closed.modules() if isinstance(part, GPT2Attention)]
    for layer, head in heads:
        size = attentions[layer].head_dim
        attentions[layer].c_proj.weight[head * size : (head + 1) * size] = 0
    return closed


def test_it_answers_nearly_all_of_its_prompts(model: GPT2LMHeadModel) -> None:
    assert right(model) >= 0.95


def test_two_heads_are_sufficient_and_both_are_necessary(model: GPT2LMHeadModel) -> None:
    others = [(layer, head) for layer in range(2) for head in range(4) if (layer, head) not in (PREVIOUS, INDUCTION)]
    assert right(without(model, *others)) >= 0.95
    assert right(without(model, PREVIOUS)) < 0.15
    assert right(without(model, INDUCTION)) < 0.15


def test_the_two_heads_look_where_induction_looks(model: GPT2LMHeadModel) -> None:
    period = 20
    word = torch.rand(50, 64, generator=torch.Generator().manual_seed(5)).argsort(1)[:, :period]
    with torch.no_grad():
        maps = model(word.repeat(1, 2), output_attentions=True).attentions
    back = maps[PREVIOUS[0]][:, PREVIOUS[1], : period + 1].diagonal(-1, 1, 2)  # line query: to the token before
    after = maps[INDUCTION[0]][:, INDUCTION[1]].diagonal(1 - period, 1, 2)[:, 1:]  # to what followed it before
    assert back.mean() > 0.9
    assert after.mean() > 0.9


def test_a_seed_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RECIPES)
    recipe, threads = importlib.import_module("induction"), torch.get_num_threads()
    try:
        for name, seed in {"one": 3, "again": 3, "other": 4}.items():
            recipe.main(["--out", str(tmp_path / name), "--seed", str(seed), "--steps", "3"])
    finally:
        torch.set_num_threads(threads)
    one, again, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "again", "other")
    )
    assert {"config.json", "model.safetensors", "prompts.jsonl"} <= one.keys()
    assert one == again
    assert one["model.safetensors"] != other["model.safetensors"]
    assert one["prompts.jsonl"] != other["prompts.jsonl"]


def test_the_recipe_reproduces_the_shipped_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RECIPES)
    recipe = importlib.import_module("induction")
    assert list(map(json.loads, (SHIPPED / "prompts.jsonl").read_text().splitlines())) == recipe.draw_prompts(400, 0)
