"""Prompts whose answers are known: what a rule that looks things up gets right, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from headway.errors import HeadwayError
from headway.lengths.language.corpus import Material, prepare_material, read_text
from headway.lengths.language.recall import TASKS, RecallPrompts, choose_tasks, draw_recall

TEXT = torch.randint(40, (3000,), generator=Generator().manual_seed(5))
MATERIAL = Material(200, torch.arange(40, 200), TEXT)


def draw(task: str, length: int, shortest: int = 128, depths: int = 5, rows: int = 6) -> RecallPrompts:
    layout = TASKS[task].layout(shortest, depths, MATERIAL)
    return draw_recall(TASKS[task], type(layout)(length, depths, layout.facts, layout.width), MATERIAL, rows, seed=3)


def look_up(tokens: Tensor, at: Tensor) -> Tensor:
    """Answers with what followed the last earlier occurrence of the token before: the rule of induction."""
    found = torch.full_like(at, -1)
    for row, places in enumerate(at.tolist()):
        for column, place in enumerate(places):
            read = tokens[row, :place].tolist()
            earlier = [n for n in range(place - 1) if read[n] == read[place - 1]]
            found[row, column] = read[earlier[-1] + 1] if earlier else -1
    return found


@pytest.mark.parametrize("task", ["repeat", "key-value"])
@pytest.mark.parametrize("length", [128, 640])
def test_looking_up_answers_everything_and_only_the_fact_tells(task: str, length: int) -> None:
    prompts = draw(task, length)
    assert prompts.tokens.shape == (6, length)
    assert bool(prompts.right(look_up(prompts.tokens, prompts.at)).all())
    hidden = prompts.tokens.clone()
    hidden[torch.arange(6)[:, None], prompts.facts] = 0  # the facts are gone: a token of the text
    assert not prompts.right(look_up(hidden, prompts.at)).any()
    assert torch.equal(prompts.tokens.gather(1, prompts.facts), prompts.answers)


@pytest.mark.parametrize("task", ["repeat", "key-value"])
def test_only_the_filler_grows_with_the_length(task: str) -> None:
    short, long = draw(task, 128), draw(task, 640)
    for prompts in (short, long):
        words = (prompts.tokens >= 40).sum(1)
        assert bool((words == (short.tokens >= 40).sum(1)[0]).all())
        assert torch.equal(prompts.depth.sort(1).values, short.depth.sort(1).values)
    filler = long.tokens[long.tokens < 40].view(6, -1)[0].tolist()
    assert any(TEXT[n : n + len(filler)].tolist() == filler for n in range(len(TEXT) - len(filler) + 1))


def test_facts_stand_at_their_depths() -> None:
    prompts = draw("key-value", 640)
    for row in range(len(prompts)):
        for depth in range(5):
            places = prompts.facts[row][prompts.depth[row] == depth].double()
            assert abs(float(places.mean()) / (640 - 2 * prompts.questions) - depth / 4) < 0.08


def test_chance_is_choosing_among_the_answers_in_the_context() -> None:
    prompts = draw("key-value", 256, rows=300)
    values = prompts.answers
    guess = values.gather(1, torch.randint(values.shape[1], values.shape, generator=Generator().manual_seed(0)))
    assert float(prompts.right(guess).double().mean()) == pytest.approx(prompts.chance, abs=0.02)


def test_the_same_seed_draws_the_same_prompts() -> None:
    assert torch.equal(draw("repeat", 256).tokens, draw("repeat", 256).tokens)
    assert not torch.equal(draw("repeat", 256).tokens[0], draw("repeat", 256).tokens[1])


class Letters:
    """A tokenizer of single characters."""

    all_special_ids = (0,)
    bos_token_id = 0

    def __len__(self) -> int:
        return 128

    def __call__(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> Letters.Read:
        return Letters.Read([0] * add_special_tokens + [min(ord(each), 127) for each in text])

    class Read:
        def __init__(self, tokens: list[int]) -> None:
            self.input_ids = tokens


def test_passkeys_are_numbers_in_the_text_and_asked_for_by_name() -> None:
    text = torch.tensor([ord(each) for each in "It rained all day, and the river rose. " * 40])
    material = Material(128, torch.arange(1, 10), text, start=0, tokenizer=Letters())
    layout = TASKS["passkey"].layout(1200, 3, material)
    prompts = draw_recall(TASKS["passkey"], layout, material, 4, seed=1)
    for row in range(4):
        written = "".join(map(chr, prompts.tokens[row, 1:].tolist()))
        assert len(written) == 1199
        for question in range(prompts.questions):
            key = "".join(map(chr, prompts.answers[row][prompts.question[row] == question].tolist()))
            assert key.strip().isdecimal()
            assert len(key.strip()) == 5
            assert written.count(f"is{key}.") == 2  # once as a fact, once as an answer
    wrong = prompts.answers.clone()
    wrong[0, prompts.question[0].tolist().index(1)] += 1  # one digit of one answer
    decided = prompts.right(wrong)
    assert decided.sum().item() == decided.numel() - 1


def small_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    config.bos_token_id, config.eos_token_id = 1, 2
    return LlamaForCausalLM(config)


def test_words_of_facts_are_those_that_the_text_does_not_use(tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text("\n".join(json.dumps({"tokens": [n % 30 + 3 for n in range(100)]}) for _ in range(3)))
    material = prepare_material(small_model(), None, file)
    assert material.words.tolist() == [0, *range(33, 64)]
    assert material.text is not None
    assert len(material.text) == 300
    without = prepare_material(small_model(), None, None)
    assert without.fillers is not None
    assert not set(without.words.tolist()) & set(without.fillers.tolist())
    assert [task.name for task in choose_tasks((), without)] == ["repeat", "key-value"]


def test_bad_texts_get_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    for content, what in (
        ('{"tokens": [1, 99]}', "token 99"),
        ('{"words": 3}', 'neither "text" nor "tokens"'),
        ("{", "line 1 .* is not valid JSON"),
        ('{"text": "a"}', "no tokenizer"),
        ("", "has no text"),
    ):
        file.write_text(content)
        with pytest.raises(HeadwayError, match=what):
            read_text(file, None, 64)
    with pytest.raises(HeadwayError, match="there is no file"):
        read_text(tmp_path / "no.txt", None, 64)
    with pytest.raises(HeadwayError, match="needs `text`"):
        choose_tasks(("passkey",), MATERIAL)
    with pytest.raises(HeadwayError, match="did you mean 'repeat'"):
        choose_tasks(("repeats",), MATERIAL)
    with pytest.raises(HeadwayError, match="too short for facts at 20 depths"):
        TASKS["key-value"].layout(64, 20, MATERIAL)
