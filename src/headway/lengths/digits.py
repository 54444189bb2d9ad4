"""Why a model of sums stops: which digits of the answer are wrong at the first length that it does not reach."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from headway.lengths.probes import Measured
from headway.models import Decoder, EncoderDecoder
from headway.positions import Unseen, used
from headway.tasks import Addition

TOKENS = 2_000_000
ROWS = 512
SHOWN = 3


@torch.inference_mode()
def wrong_digits(
    model: Decoder | EncoderDecoder, task: Addition, failing: Measured, device: torch.device
) -> tuple[list[str], str, dict[str, Any], list[str]]:
    """The causes, the sentence, the numbers behind it and a few failing sums."""
    tokens = task.source_tokens(failing.length) + task.answer_tokens(failing.length)
    rows = max(1, min(ROWS, TOKENS // tokens))
    problems = task.independent(5, rows, probe=failing.probe, length=failing.length, device=device)
    at_a_time = max(1, 30_000_000 // tokens**2)
    said = torch.cat(
        [model(problems.source[n : n + at_a_time], problems.answer[n : n + at_a_time]).argmax(-1)
         for n in range(0, rows, at_a_time)]
    )  # fmt: skip
    wrong = said != problems.answer
    if problems.scored is not None:
        wrong &= problems.scored
    if task.first == "most":
        wrong = wrong.flip(1)  # column 0 the ones, where all answers are as long
    seen = task.answer_tokens(task.lengths[1])
    unseen = _unseen(model, task, failing.length)
    evidence: dict[str, Any] = {
        "accuracy": failing.accuracy,
        "unseen": None if unseen is None else asdict(unseen),
        "digits_wrong": float(wrong.float().mean()),
        "digits_wrong_in_trained_columns": float(wrong[:, :seen].float().mean()),
        "digits_wrong_past_them": float(wrong[:, seen:].float().mean()) if wrong.shape[1] > seen else None,
        "first_wrong_column": _median_first(wrong),
    }
    causes, words = [], []
    if unseen is not None and failing.length > task.lengths[1]:
        causes.append("unseen positions")
        words.append(f"{unseen.count} of {unseen.of} {unseen.what}")
    inside, past = evidence["digits_wrong_in_trained_columns"], evidence["digits_wrong_past_them"]
    if task.natural or past is None:
        words.append(f"{evidence['digits_wrong']:.1%} of all digits are wrong")
    elif past > 2 * inside:
        causes.append("columns past training")
        words.append(f"{past:.1%} of the digits past column {seen} are wrong, {inside:.1%} of those up to it")
    elif wrong.any():
        words.append(f"{inside:.1%} of the digits up to column {seen} are wrong, {past:.1%} of those past it")
    if evidence["first_wrong_column"] is not None and not task.natural:
        words.append(f"a wrong sum goes wrong first in column {evidence['first_wrong_column']} (median)")
    opening = f"At {failing.length:,} digits on {failing.probe} it is right on {failing.accuracy:.3f}"
    bad = wrong.any(1).nonzero()[:SHOWN, 0].tolist()
    examples = [_shown(problems.answer[row], said[row]) for row in bad]
    return causes, f"{opening}: {'; '.join(words)}." if words else f"{opening}.", evidence, examples


def _unseen(model: Decoder | EncoderDecoder, task: Addition, length: int) -> Unseen | None:
    source, answers = task.source_tokens(length), task.answer_tokens(length)
    if isinstance(model, Decoder):
        return model.positions.unseen(used(type(model.positions), model.index, source + answers, answers))
    return model.source_positions.unseen(used(type(model.source_positions), model.index, source, 0))


def _median_first(wrong: Tensor) -> int | None:
    """The column, 1 for the ones, in which a wrong sum first goes wrong."""
    some = wrong[wrong.any(1)]
    return int(some.int().argmax(1).median()) + 1 if len(some) else None


def _shown(answer: Tensor, said: Tensor) -> str:
    """The digits around the first wrong one, as they are written."""
    place = int((answer != said).int().argmax())
    near = slice(max(0, place - 3), place + 4)
    right, found = (" ".join(map(str, each[near].tolist())) for each in (answer, said))
    return f"from digit {near.start} of the answer as written: {right}; said {found}"
