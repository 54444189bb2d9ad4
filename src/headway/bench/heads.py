"""How long it takes to know what every head costs, beside the textbook's way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from headway.attach.opening import ready
from headway.bench.reference import TextbookCopy, decode_textbook
from headway.bench.row import Row
from headway.bench.train import timed
from headway.evaluation.verdicts import same_answer
from headway.heads.variants import Variants
from headway.machine import exact_products
from headway.models import EncoderDecoder, Head, Model, build_model, heads_of
from headway.progress import Progress
from headway.runs.config import Overrides
from headway.subjects.own import open_one, subject_of
from headway.subjects.subject import Subject
from headway.tasks import Addition, Problems, Task
from headway.training.defaults import plan

SUMS = 2_000
BATCH = 500  # the textbook's, the fastest of 64 to 2,000 on the two cores we tried


@exact_products()  # of both sides: a GPU rounds the factors otherwise, and verdicts differ
def head_study(seed: int, device: torch.device, quiet: bool) -> Row:
    """The 24 heads of the shipped adder, each taken out alone, on 2,000 sums."""
    run = open_one("pretrained:adder", device)
    subject = subject_of(run)
    problems = subject.draw(SUMS, seed, False)
    variants = Variants(subject)
    closed = [frozenset[Any](), *(frozenset[Any]({head}) for head in subject.heads)]
    variants(problems[:200], closed)  # warm
    textbook = TextbookCopy(cast(EncoderDecoder, run.model)).to(device).eval()
    with Progress("one head after another", quiet) as watch:
        ours, seconds = timed(lambda: variants(problems, closed).accuracy, device)
        before, threads = torch.get_num_threads(), _fastest_threads(textbook, run.task, problems)
        torch.set_num_threads(threads)
        theirs, reference_seconds = timed(lambda: textbook_study(textbook, subject, run.task, problems, watch), device)
        torch.set_num_threads(before)
    return Row(
        "head-study",
        seconds,
        f"nn.Transformer with the same weights: zero a head's, decode {SUMS:,} sums token by token in batches of "
        f"{BATCH}, restore; for each head",
        reference_seconds,
        same_result=ours == theirs,
        details={
            "heads": len(subject.heads),
            "sums": SUMS,
            "reference_threads": threads,
            "threads": before,
            "sweeps": sweeps(seed, device),
        },
    )


@torch.no_grad()
def textbook_study(
    model: TextbookCopy, subject: Subject, task: Task, problems: Problems, watch: Any = None
) -> list[float]:
    """The accuracy of the whole model, then of the model without each head."""
    found, heads = [_decoded_right(model, task, problems)], subject.heads
    for number, head in enumerate(heads):
        columns = _columns(model, head)
        kept = columns.clone()
        columns.zero_()
        found.append(_decoded_right(model, task, problems))
        columns.copy_(kept)
        if watch is not None:
            watch(number + 1, len(heads))
    return found


def _columns(model: TextbookCopy, head: Head) -> Tensor:
    """The columns of the output projection that read this head."""
    site = model.sites[head.site]
    return site.out_proj.weight.data[:, head.number * site.head_dim : (head.number + 1) * site.head_dim]


def _decoded_right(model: TextbookCopy, task: Task, problems: Problems) -> float:
    right = 0
    for start in range(0, len(problems), BATCH):
        batch = problems[start : start + BATCH]
        written = decode_textbook(model, task.start, batch.source, batch.answer.shape[1])
        right += int(same_answer(written, batch).sum())
    return right / len(problems)


def _fastest_threads(model: TextbookCopy, task: Task, problems: Problems) -> int:
    choices = [n for n in (1, 2, 4, 8) if n <= torch.get_num_threads()]
    spent = {}
    with torch.no_grad():
        for threads in choices:
            torch.set_num_threads(threads)
            _decoded_right(model, task, problems[:BATCH])  # warm
            spent[threads] = timed(lambda: _decoded_right(model, task, problems[:BATCH]), problems.source.device)[1]
        torch.set_num_threads(max(choices))
    return min(spent, key=spent.__getitem__)


def sweeps(seed: int, device: torch.device) -> dict[str, list[dict[str, float]]]:
    """Seconds of a study against heads a site, examples and layers; the weights are those a run starts from."""

    def spent(examples: int, **asked: Any) -> float:
        config = plan("addition", Overrides(**asked), seed)
        model, task = build_model(config.model, seed).to(device).eval(), Addition()
        heads = tuple(heads_of(model))
        subject = _bare(model, task, heads, device)
        variants, closed = Variants(subject), [frozenset[Any]({head}) for head in heads]
        problems = subject.draw(examples, seed, False)
        return timed(lambda: variants(problems, closed), device)[1]

    def table(name: str, values: Sequence[int], key: str) -> list[dict[str, float]]:
        return [{name: value, "seconds": spent(**{"examples": 500, key: value})} for value in values]  # pyright: ignore[reportArgumentType]

    return {
        "heads_a_site": table("heads_a_site", (2, 4, 8), "heads"),
        "examples": [{"examples": n, "seconds": spent(n)} for n in (250, 500, 1000)],
        "encoder_layers": table("encoder_layers", (1, 2, 4), "layers"),
    }


def _bare(model: Model, task: Task, heads: tuple[Head, ...], device: torch.device) -> Subject:
    bare = Subject(model, examples=lambda rows, seed, held_out: task.testing(seed, rows, device=device), heads=heads)
    return ready(bare)
