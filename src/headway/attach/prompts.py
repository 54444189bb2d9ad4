"""Reads examples for a user's model from JSONL, text, a `datasets` object or a DataLoader.

A line of JSONL is one of
{"prompt": "2 + 2 =", "answer": " 4"}   the right continuation; optionally with a wrong one, "wrong": " 5"
{"text": "All of this is read."}        every next token is predicted
{"text": "A fine film.", "label": 1}    for a classifier; a number, or a label name from the model's config
{"tokens": [5, 9, 3], "answer": [7]}    token ids, for use without a tokenizer; without "answer" as for a text
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.config import LARGEST
from headway.subjects.ragged import PADDING
from headway.tasks import Problems


@dataclass(frozen=True)
class Prompt:
    """One example, as token ids."""

    read: list[int]
    answer: list[int]
    wrong: int | None = None
    """the first token of a wrong answer"""
    continues: bool = False
    """whether the answer is the rest of a text, so that every next token is predicted"""


def read_prompts(examples: str | Path | Iterable[Any], model: Any, tokenizer: Any) -> list[Prompt]:
    """Reads and checks the examples; an error names the number of the example."""
    found = []
    for place, item in enumerate(_items(examples), start=1):
        try:
            found.append(_prompt(item, model, _no_tokenizer if tokenizer is None else tokenizer))
            _check(found[-1], model)
        except HeadwayError as error:
            raise HeadwayError(f"example {place}: {error}") from error
    if not found:
        raise HeadwayError(f"{examples} contains no examples")
    return found


def problems_of(prompts: list[Prompt]) -> Problems:
    """Puts the prompts in one padded table. A wrong answer follows the right one and is not scored."""
    paired = all(prompt.wrong is not None for prompt in prompts)
    answer = _table([[prompt.answer[0], prompt.wrong or 0] if paired else prompt.answer for prompt in prompts])
    scored = answer != PADDING
    if paired:
        scored[:, 1:] = False
    return Problems(_table([prompt.read for prompt in prompts]), answer, None if bool(scored.all()) else scored)


def _table(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows])


def _items(examples: str | Path | Iterable[Any]) -> Iterator[Any]:
    if not isinstance(examples, str | Path):
        for item in examples:
            yield from _rows(item)
        return
    path = Path(examples)
    if not path.is_file():
        raise HeadwayError(f"there is no file {path}; `examples` must be a JSONL or a text file")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise HeadwayError(f"{path} is not a text file: {error}") from error
    except OSError as error:
        raise disk.explain_os_error(error, path) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line) if path.suffix in (".jsonl", ".ndjson", ".json") else {"text": line}
        except (ValueError, RecursionError) as error:
            raise HeadwayError(f"line {number} of {path} is not valid JSON: {error}") from error


def _rows(item: Any) -> list[Any]:
    """Splits a DataLoader's batch into rows; returns anything else as one item."""
    ids = item.get("input_ids") if isinstance(item, Mapping) else None
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        return [item]
    return [{name: value[row] for name, value in item.items() if isinstance(value, Tensor)} for row in range(len(ids))]


def _prompt(item: Any, model: Any, tokenizer: Any) -> Prompt:
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, Mapping):
        raise HeadwayError(f"{item!r} is not an example; write {{'prompt': …, 'answer': …}} or {{'text': …}}")
    item = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in item.items()}
    labels, mask = item.get("labels"), item.get("attention_mask")
    if isinstance(labels, int):
        item["label"] = labels
    elif labels is not None:
        item["answer"] = [label for label in _integers(labels) if label >= 0]  # -100 marks tokens that are not scored
    if "tokens" in item or "input_ids" in item:
        read = _token_ids(item.get("tokens", item.get("input_ids")))
        if mask is not None:
            if len(_integers(mask)) != len(read):
                raise HeadwayError(f"its attention_mask has {len(mask)} entries for {len(read)} tokens")
            read = list(compress(read, mask))
    elif "prompt" in item or "text" in item:
        text = item.get("prompt", item.get("text"))
        if not isinstance(text, str):
            raise HeadwayError(f"{text!r} is not a string")
        read = list(tokenizer(text).input_ids)
    else:
        raise HeadwayError(f"it has {', '.join(map(str, item)) or 'nothing'} but needs prompt, text or tokens")
    if not read:
        raise HeadwayError("it has no tokens")
    if "label" in item:
        return Prompt(read, [_label(item["label"], model)])
    target = bool(getattr(model.config, "is_encoder_decoder", False))
    if "answer" not in item:
        if target or "Classification" in type(model).__name__:
            raise HeadwayError("only a causal language model takes a text alone; give an answer or a label")
        if len(read) < 2:
            raise HeadwayError("a text without an answer needs at least two tokens")
        return Prompt(read[:1], read[1:], continues=True)
    whole = target and "wrong" not in item  # with its end token; the answers of a pair must differ in their first token
    answer = _tokens(tokenizer, item["answer"], whole)
    if not answer:
        raise HeadwayError("its answer is empty")
    if "wrong" not in item:
        return Prompt(read, answer)
    wrong = _tokens(tokenizer, item["wrong"], whole)
    if not wrong or wrong[0] == answer[0]:
        raise HeadwayError("its right and its wrong answer begin with the same token; their first tokens must differ")
    return Prompt(read, answer, wrong[0])


def _tokens(tokenizer: Any, written: Any, target: bool) -> list[int]:
    if not isinstance(written, str):
        return _token_ids(written)
    return (tokenizer(text_target=written) if target else tokenizer(written, add_special_tokens=False)).input_ids


def _no_tokenizer(*_: object, **__: object) -> NoReturn:
    raise HeadwayError("there is no tokenizer with the model; give examples as tokens, or save the tokenizer with it")


def _integers(values: Any) -> list[int]:
    if not isinstance(values, list | tuple) or not all(isinstance(each, int) for each in values):
        raise HeadwayError(f"{values!r} is not a list of integers")
    return list(values)


def _token_ids(tokens: Any) -> list[int]:
    found = [tokens] if isinstance(tokens, int) else tokens
    known = isinstance(found, list) and all(type(each) is int and 0 <= each <= LARGEST for each in found)
    if not known or not found:
        raise HeadwayError(f"{tokens!r} is not a list of token ids; give one or more integers from 0 on")
    return found


def _label(label: Any, model: Any) -> int:
    names = getattr(model.config, "label2id", None) or {}
    found = names.get(label, label) if isinstance(label, str) else label
    count = getattr(model.config, "num_labels", None)
    if type(found) is not int or found < 0 or (count is not None and found >= count):
        raise HeadwayError(f"{label!r} is not a label of this model; it has {', '.join(map(str, names)) or count}")
    return found


def _check(prompt: Prompt, model: Any) -> None:
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    separate = bool(getattr(model.config, "is_encoder_decoder", False))
    needed = max(len(prompt.read), len(prompt.answer)) if separate else len(prompt.read) + len(prompt.answer) - 1
    if most is not None and needed > most:
        raise HeadwayError(f"it has {needed} tokens, but the model takes at most {most}; shorten it")
    words = getattr(config, "vocab_size", None)
    classes = getattr(model.config, "num_labels", None) if "Classification" in type(model).__name__ else words
    for tokens, known, what in (
        (prompt.read, words, "the model's vocabulary"),
        ([*prompt.answer, prompt.wrong or 0], classes, "the model's outputs"),
    ):
        if known is not None and max(tokens) >= known:
            raise HeadwayError(f"token {max(tokens)} is not in {what}, of size {known}")
