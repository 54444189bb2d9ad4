"""Runs a language model on long prompts within memory: only answered positions are unembedded, attention is the fused
kind that stores no map, and as many prompts share a pass as fit.

What a model raises past its training length is a result of that length; what it raises within it ends the study.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.attach.cures import Setting, cured
from headway.attach.order import TokenOrder
from headway.attach.readers import unembed_only
from headway.errors import HeadwayError
from headway.lengths.language.cells import RecallCell, count_commonest
from headway.lengths.language.recall import RecallPrompts
from headway.machine import halve_on_out_of_memory, is_out_of_memory
from headway.runs.seal import read_sealed, write_sealed

REASON = 160  # characters of what a model raised


class LanguageReader:
    """Runs one language model, untouched or under a cure, and remembers what it has measured."""

    def __init__(self, model: Any, order: TokenOrder, memory: int, partial: Path | None = None) -> None:
        self.model, self.order, self.memory, self.partial = model, order, memory, partial
        self.known = {} if partial is None else read_sealed(partial)
        self._weights = ""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def answer(self, prompts: RecallPrompts, cure: str, setting: Setting) -> RecallCell:
        """Asks the questions of these prompts under a cure; a cell that was measured before is not measured again."""
        key = "" if self.partial is None else self._key(prompts, cure, setting)
        if key not in self.known:
            written, reason = self._written(prompts, cure, setting)
            record = [None if written is None else written.tolist(), reason]
            if self.partial is None:
                return self._cell(prompts, cure, setting, written, reason)
            self.known[key] = record
            write_sealed(self.partial, self.known)
        table, reason = self.known[key]
        return self._cell(prompts, cure, setting, None if table is None else torch.tensor(table), reason)

    def _cell(
        self, prompts: RecallPrompts, cure: str, setting: Setting, written: Tensor | None, reason: str | None
    ) -> RecallCell:
        about = (prompts.task, prompts.length, cure, max(1.0, setting.length / setting.trained), prompts.chance)
        if written is None:
            return RecallCell(
                *about, torch.zeros(prompts.depth.shape, dtype=torch.bool), prompts.depth, cannot_run=reason
            )
        asked = prompts.question >= 0
        counted = count_commonest(written[asked].tolist(), prompts.answers[asked].tolist())
        return RecallCell(*about, prompts.right(written), prompts.depth, *counted)

    def _written(
        self, prompts: RecallPrompts, cure: str, setting: Setting
    ) -> tuple[Int[Tensor, "row answer"] | None, str | None]:
        """Returns the likeliest token at each answer, or why the model cannot run."""

        def read(rows: slice) -> Tensor:
            logits = self.logits(prompts.tokens[rows], prompts.at[rows])
            return logits.argmax(-1).masked_fill(logits.isnan().any(-1), -1).cpu()

        try:
            with cured(self.model, self.order, cure, setting):
                return torch.cat(self.in_pieces(read, len(prompts), prompts.length)), None
        except HeadwayError as error:  # its table is too short, say
            return None, str(error)
        except Exception as error:  # what a model raises past its training length is a result
            if prompts.length <= setting.trained and cure == "none":
                raise HeadwayError(f"{self.name} cannot run at {prompts.length:,} tokens: {_shorten(error)}") from error
            return None, _shorten(error)

    @torch.no_grad()
    def logits(self, tokens: Int[Tensor, "row token"], at: Int[Tensor, "row place"]) -> Float[Tensor, "row place word"]:
        """Returns the logits that predict the tokens at these places."""
        read = tokens[:, :-1].to(self.device)
        with unembed_only(self.model, (at - 1).clamp(min=0), read.shape[1]):
            return self.model(input_ids=read, use_cache=False).logits.float()

    def in_pieces(self, work: Callable[[slice], Tensor], rows: int, length: int) -> list[Tensor]:
        """Calls `work` for as many prompts at a time as fit into memory."""
        fitting = max(1, self.memory // self.bytes_of(length))
        found = []
        for first in range(0, rows, fitting):
            found += halve_on_out_of_memory(work, min(first + fitting, rows), first)
        return found

    def bytes_of(self, length: int) -> int:
        """Returns an upper estimate of the memory of one prompt."""
        config, size = self.model.config.get_text_config(), next(self.model.parameters()).element_size()
        width = getattr(config, "hidden_size", 0) or self.model.get_input_embeddings().weight.shape[1]
        inner = getattr(config, "intermediate_size", None) or 4 * width
        scores = getattr(config, "num_attention_heads", 8) * length if self.order.kind == "alibi" else 0
        mask = 5 * length * length  # one for the whole batch, but a pass may hold a single prompt
        return int(size * length * (10 * width + 3 * inner + 3 * scores)) + mask

    @property
    def name(self) -> str:
        return type(self.model).__name__

    def _key(self, prompts: RecallPrompts, cure: str, setting: Setting) -> str:
        """Hashes everything that the answers depend on, including the weights."""
        if not self._weights:
            digest = hashlib.sha256(str(self.model.config.to_json_string()).encode())
            for each in self.model.state_dict().values():
                digest.update(each.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            self._weights = digest.hexdigest()
        digest = hashlib.sha256(f"{self._weights} {cure} {setting} {prompts.task}".encode())
        for table in (prompts.tokens, prompts.at, prompts.question):
            digest.update(table.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def forget(self) -> None:
        """Removes the record of an unfinished study."""
        if self.partial is not None:
            self.partial.unlink(missing_ok=True)


def _shorten(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out of memory, with one prompt at a time"
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words if len(words) <= REASON else words[: REASON - 1] + '…'}"
