"""The rows of recipes/recall.py are what it says, and its shipped models recall within their training length."""

from __future__ import annotations

import importlib
import json
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Generator
from transformers import AutoModelForCausalLM, PreTrainedModel

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = RECIPES / "recall"
FAMILIES = ("rotary", "table", "alibi")


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RECIPES)
        return importlib.import_module("recall")


@pytest.fixture
def threads():
    """Restores the number of threads, which the recipe sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def few(out: Path, *flags: str) -> list[str]:
    small = ["--steps", "2", "--batch", "8", "--width", "16", "--heads", "4", "--length", "32"]
    return [*small, "--out", str(out), *flags]


def test_every_answer_follows_its_key_as_it_did_before(recipe: ModuleType) -> None:
    setting = recipe.Setting()
    rows = recipe.draw_recall(300, setting, Generator().manual_seed(1))
    follows = recipe.draw_text(200, 200, setting, Generator().manual_seed(2)).unfold(1, 2, 1).flatten(0, 1)
    chain = set(map(tuple, follows.tolist()))
    assert len(chain) == setting.text_tokens * setting.successors
    distances: set[int] = set()
    for tokens, answers in zip(rows.tokens.tolist(), rows.answers.tolist(), strict=True):
        text = [token for token in tokens if token < setting.text_tokens]
        assert set(pairwise(text)) <= chain
        special = [place for place, token in enumerate(tokens) if token >= setting.text_tokens]
        values: dict[int, int] = {}
        for place in special[::2]:  # keys and values alternate
            key, value = tokens[place : place + 2]
            assert answers[place : place + 2] == [False, key in values]
            assert values.setdefault(key, value) == value
            distances |= {place - tokens.index(key)} - {0}
        assert len({*values, *values.values()}) == 2 * len(values)
    assert min(distances) == 2
    assert max(distances) > setting.length - 10


def test_half_of_the_rows_with_facts_end_in_questions(recipe: ModuleType) -> None:
    setting = recipe.Setting()
    rows = recipe.draw_recall(2000, setting, Generator().manual_seed(3))
    ends = rows.final.any(1)
    assert 0.45 < ends.float().mean() < 0.55
    assert rows.final[ends][:, -1].all()
    keys, asked = rows.tokens[ends], rows.final[ends].sum(1)
    facts = torch.tensor([len(set(row.tolist())) for row in keys.where(keys >= setting.text_tokens, 0)]) // 2
    assert torch.equal(asked, facts)  # every fact is asked for


def test_repeats_are_predicted_by_what_followed_before(recipe: ModuleType) -> None:
    rows = recipe.draw_repeats(200, recipe.Setting(), Generator().manual_seed(4))
    for tokens, repeats in zip(rows.tokens.tolist(), rows.repeats.tolist(), strict=True):
        period = tokens[1:].index(tokens[0]) + 1
        assert len(set(tokens)) == period
        assert tokens[period:] == tokens[:-period]
        assert repeats == [place > period for place in range(len(tokens))]


@pytest.mark.parametrize("family", [*FAMILIES, "window"])
def test_it_writes_a_folder_that_transformers_loads(
    recipe: ModuleType, threads: None, family: str, tmp_path: Path
) -> None:
    recipe.main(few(tmp_path, "--family", family))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.eos_token_id is None
    assert 32 in (
        getattr(model.config, "original_max_position_embeddings", None),
        getattr(model.config, "max_position_embeddings", None),
    )
    lines = [json.loads(line)["tokens"] for line in (tmp_path / "text.jsonl").read_text().splitlines()]
    assert sum(map(len, lines)) == 40_000
    assert max(map(max, lines)) < recipe.Setting().text_tokens
    assert model(input_ids=torch.tensor([lines[0][:128]])).logits.isfinite().all()


def test_seeds_are_reproducible_and_not_trained_again(recipe: ModuleType, threads: None, tmp_path: Path) -> None:
    weights = {}
    for name in ("one", "again"):
        recipe.main(few(tmp_path / name, "--seeds", "0", "1"))
        weights[name] = [(tmp_path / name / f"seed-{seed}" / "model.safetensors").read_bytes() for seed in (0, 1)]
    assert weights["one"] == weights["again"]
    assert weights["one"][0] != weights["one"][1]
    kept = tmp_path / "one" / "seed-0" / "model.safetensors"
    before = kept.stat().st_mtime_ns
    recipe.main(few(tmp_path / "one", "--seeds", "0", "2"))
    assert kept.stat().st_mtime_ns == before
    assert (tmp_path / "one" / "seed-2" / "config.json").exists()


@torch.no_grad()
def recalled(recipe: ModuleType, model: PreTrainedModel) -> dict[str, float]:
    rows = recipe.draw_rows(200, recipe.Setting(), Generator().manual_seed(5))
    right = model.eval()(input_ids=rows.tokens).logits[:, :-1].argmax(-1) == rows.tokens[:, 1:]
    return {name: recipe.share(right, getattr(rows, name)[:, 1:]) for name in ("repeats", "answers", "final")}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shipped_models_recall_within_their_training_length(recipe: ModuleType, family: str) -> None:
    trained = AutoModelForCausalLM.from_pretrained(SHIPPED / family)
    assert min(recalled(recipe, trained).values()) >= 0.98
    torch.manual_seed(0)
    assert max(recalled(recipe, AutoModelForCausalLM.from_config(trained.config)).values()) < 0.1
