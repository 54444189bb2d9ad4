"""Examples for users' models: every format, and errors with their position."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from headway.attach.prompts import Prompt, problems_of, read_prompts
from headway.attach.readers import PADDING
from headway.errors import HeadwayError


class Letters:
    """A tokenizer of letters: a is 1, b is 2; a start token 0 where asked for."""

    def __call__(self, text: str = "", text_target: str = "", add_special_tokens: bool = True) -> Any:
        tokens = [ord(letter) - ord("a") + 1 for letter in text or text_target]
        return SimpleNamespace(input_ids=[0, *tokens] if add_special_tokens else tokens)


def model(**config: Any) -> Any:
    own = SimpleNamespace(**{"vocab_size": 30, "max_position_embeddings": 8, **config})
    own.get_text_config = lambda: own
    return SimpleNamespace(config=own)


def test_every_form_of_a_line(tmp_path: Path) -> None:
    lines = [
        {"prompt": "ab", "answer": "c"},
        {"prompt": "ab", "answer": "c", "wrong": "d"},
        {"text": "abc"},
        {"tokens": [1, 2], "answer": [3, 4]},
        {"tokens": [1, 2, 3]},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_prompts(tmp_path / "p.jsonl", model(), Letters()) == [
        Prompt([0, 1, 2], [3]),
        Prompt([0, 1, 2], [3], wrong=4),
        Prompt([0], [1, 2, 3], continues=True),
        Prompt([1, 2], [3, 4]),
        Prompt([1], [2, 3], continues=True),
    ]
    (tmp_path / "p.txt").write_text("ab\nabc\n")
    assert [prompt.answer for prompt in read_prompts(tmp_path / "p.txt", model(), Letters())] == [[1, 2], [1, 2, 3]]
    assert read_prompts([{"text": "a", "label": "bad"}], model(num_labels=2, label2id={"bad": 1}), Letters()) == [
        Prompt([0, 1], [1])
    ]


def test_a_data_loader_gives_its_rows_without_padding() -> None:
    rows = [
        {"input_ids": torch.tensor([1, 2, 3]), "attention_mask": torch.tensor([1, 1, 0]), "labels": torch.tensor(1)},
        {"input_ids": torch.tensor([4, 5, 6]), "attention_mask": torch.tensor([1, 1, 1]), "labels": torch.tensor(0)},
    ]
    loader = DataLoader(rows, batch_size=2)  # pyright: ignore[reportArgumentType]
    assert read_prompts(loader, model(num_labels=2), None) == [Prompt([1, 2], [1]), Prompt([4, 5, 6], [0])]


def test_rows_of_a_dataset_keep_their_masks_and_labels() -> None:
    row = {"input_ids": [5, 6, 7, 0, 0], "attention_mask": [1, 1, 1, 0, 0]}
    assert read_prompts([row], model(), None) == [Prompt([5], [6, 7], continues=True)]
    assert read_prompts([{**row, "labels": 1}], model(num_labels=2), None) == [Prompt([5, 6, 7], [1])]
    answer = [Prompt([5, 6, 7], [8, 9])]
    assert read_prompts([{**row, "labels": [8, 9, -100]}], model(is_encoder_decoder=True), None) == answer
    with pytest.raises(HeadwayError, match="only a causal language model takes a text alone"):
        read_prompts([row], model(is_encoder_decoder=True), None)


def test_prompts_become_a_table() -> None:
    problems = problems_of([Prompt([1, 2, 3], [4]), Prompt([5], [6, 7])])
    assert problems.source.tolist() == [[1, 2, 3], [5, PADDING, PADDING]]
    assert problems.answer.tolist() == [[4, PADDING], [6, 7]]
    assert problems.scored is not None
    assert problems.scored.tolist() == [[True, False], [True, True]]
    mixed = problems_of([Prompt([1], [2, 9], wrong=3), Prompt([1], [2, 9])])
    assert mixed.answer.tolist() == [[2, 9], [2, 9]]  # a wrong answer beside some is beside none
    wrong = problems_of([Prompt([1], [2, 9], wrong=3)])
    assert wrong.answer.tolist() == [[2, 3]]
    assert wrong.scored is not None
    assert wrong.scored.tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 of .* is not valid JSON"),
        ("3", "example 1: 3 is not an example"),
        ('{"answer": "a"}', "example 1: it has answer but needs prompt, text or tokens"),
        ('{"tokens": []}', "is not a list of token ids"),
        ('{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}', "it has 9 tokens, but the model takes at most 8"),
        ('{"tokens": [31], "answer": [1]}', "token 31 is not in the model's vocabulary, of size 30"),
        ('{"prompt": "a", "answer": ""}', "its answer is empty"),
        ('{"text": "a", "label": 7}', "7 is not a label of this model"),
        ('{"tokens": [5]}', "needs at least two tokens"),
        ('{"tokens": [5], "answer": [99]}', "token 99 is not in the model's outputs, of size 30"),
        ('{"tokens": [5], "answer": [7], "wrong": [7]}', "begin with the same token"),
    ],
)
def test_an_invalid_example_is_reported_with_its_position(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(HeadwayError, match=said):
        read_prompts(tmp_path / "p.jsonl", model(num_labels=2), Letters())


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(HeadwayError, match="example 1: there is no tokenizer"):
        read_prompts([{"text": "abc"}], model(), None)
    with pytest.raises(HeadwayError, match="there is no file"):
        read_prompts("nowhere.jsonl", model(), None)
