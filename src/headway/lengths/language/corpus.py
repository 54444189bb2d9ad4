"""The material that prompts are made of: the user's text as tokens, and the tokens that it does not use.

A fact stands out only where its tokens occur nowhere else, so keys and values are tokens that the text does not use.
Without a text, half of the vocabulary is filler in random order and the other half is for facts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from headway.errors import HeadwayError
from headway.runs import disk


@dataclass(frozen=True)
class Material:
    """What prompts are made of: filler, and the words of facts."""

    vocabulary: int
    words: Int[Tensor, " word"]
    """the tokens that facts are made of; the filler uses none of them"""
    text: Int[Tensor, " token"] | None = None
    """the user's text; documents follow one another"""
    fillers: Int[Tensor, " filler"] | None = None
    """without a text: the tokens that random filler is drawn from"""
    start: int | None = None
    """the token that every prompt begins with, where the tokenizer adds one"""
    tokenizer: Any = None

    def draw_filler(self, rows: int, tokens: int, generator: Generator) -> Int[Tensor, "row token"]:
        """Draws passages of the text, or random filler."""
        if self.text is None:
            assert self.fillers is not None
            return self.fillers[torch.randint(len(self.fillers), (rows, tokens), generator=generator)]
        text = self.text.repeat(-(-tokens // len(self.text)))  # a short text is read again from its beginning
        first = torch.randint(len(text) - tokens + 1, (rows, 1), generator=generator)
        return text[first + torch.arange(tokens)]

    def windows(self, tokens: int, most: int) -> Int[Tensor, "window token"]:
        """Returns passages of the text that do not overlap, evenly spread over it; none without a text."""
        count = 0 if self.text is None else min(most, len(self.text) // tokens)
        if self.text is None or not count:
            return torch.empty(0, tokens, dtype=torch.long)
        stride = len(self.text) // count
        return torch.stack([self.text[place * stride : place * stride + tokens] for place in range(count)])

    def draw_words(self, rows: int, count: int, generator: Generator) -> Int[Tensor, "row word"]:
        """Draws words for facts, all different within a row."""
        if count > len(self.words):
            uses = "the text leaves" if self.text is not None else "the model has"
            raise HeadwayError(
                f"{uses} only {len(self.words)} tokens for facts, and {count} are needed; use fewer `depths`"
            )
        return self.words[torch.rand(rows, len(self.words), generator=generator).argsort(1)[:, :count]]


def prepare_material(model: Any, tokenizer: Any, text: str | Path | None) -> Material:
    """Reads the text, and divides the vocabulary into filler and words for facts."""
    size = model.get_input_embeddings().weight.shape[0]
    read = None if text is None else read_text(Path(text), tokenizer, size)
    usable = torch.ones(size, dtype=torch.bool)
    usable[sorted(_special_tokens(model, tokenizer, size))] = False
    if read is not None:
        usable[read.unique()] = False
        words, fillers = usable.nonzero()[:, 0], None
    else:
        known = usable.nonzero()[:, 0]
        order = known[torch.randperm(len(known), generator=Generator().manual_seed(0))]
        words, fillers = order[: len(order) // 2], order[len(order) // 2 :]
    return Material(size, words, read, fillers, _start_token(tokenizer), tokenizer)


def read_text(path: Path, tokenizer: Any, vocabulary: int) -> Int[Tensor, " token"]:
    """Reads a text file, or JSONL of {"text": …} or {"tokens": […]}, as one row of tokens."""
    if not path.is_file():
        raise HeadwayError(f"there is no file {path}; `text` must be a text file, or JSONL")
    try:
        content = disk.read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeadwayError(f"{path} is not a text file: {error}") from error
    documents = _documents(content, path) if path.suffix in (".jsonl", ".ndjson") else iter([content])
    tokens = [token for document in documents for token in _tokens(document, tokenizer, path)]
    if len(tokens) < 2:
        raise HeadwayError(f"{path} has no text")
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise HeadwayError(f"{path} has the token {wrong}, and the model knows 0 to {vocabulary - 1}")
    return torch.tensor(tokens)


def _documents(content: str, path: Path) -> Iterator[str | list[int]]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise HeadwayError(f"line {number} of {path} is not valid JSON: {error}") from error
        found = item.get("tokens", item.get("text")) if isinstance(item, dict) else item
        if isinstance(found, str) or (isinstance(found, list) and all(type(each) is int for each in found)):
            yield found
        else:
            raise HeadwayError(f'line {number} of {path} has neither "text" nor "tokens"')


def _tokens(document: str | list[int], tokenizer: Any, path: Path) -> list[int]:
    if isinstance(document, list):
        return document
    if tokenizer is None:
        raise HeadwayError(
            f"{path} has text, and there is no tokenizer with the model; save it there, or write lines of "
            '{"tokens": […]}'
        )
    return list(tokenizer(document, add_special_tokens=False, verbose=False).input_ids)


def _special_tokens(model: Any, tokenizer: Any, size: int) -> set[int]:
    """Returns the tokens that mean something to the model other than text, and those its tokenizer does not know."""
    found = set(getattr(tokenizer, "all_special_ids", None) or ())
    for config in (model.config, getattr(model, "generation_config", None)):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            given = getattr(config, name, None)
            found |= set(given if isinstance(given, list) else [given])
    if tokenizer is not None:
        found |= set(range(len(tokenizer), size))
    return {token for token in found if isinstance(token, int) and 0 <= token < size}


def _start_token(tokenizer: Any) -> int | None:
    """Returns the token that the tokenizer puts before every text, if it does."""
    begins = [] if tokenizer is None else list(tokenizer("a").input_ids)
    known = getattr(tokenizer, "bos_token_id", None)
    return known if begins and begins[0] == known else None
