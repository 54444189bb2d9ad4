"""How long it takes to know what every head costs, beside the textbook's way."""

from functools import partial
from typing import Any, cast

import torch

from headway.attach.opening import ready
from headway.bench.reference import TextbookCopy, count_right
from headway.bench.row import Row, fastest_threads, timed, using_threads
from headway.heads.variants import Variants
from headway.machine import exact_products
from headway.models import EncoderDecoder, build_model, heads_of
from headway.progress import Progress, Watch
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
        trial = partial(count_right, textbook, run.task.start, [problems[:BATCH]])
        with using_threads(fastest_threads(trial, device)) as threads:
            theirs, spent = timed(lambda: textbook_study(textbook, subject, run.task, problems, watch), device)
    return Row(
        seconds,
        f"nn.Transformer with the same weights: zero a head's, decode {SUMS:,} sums token by token in batches of "
        f"{BATCH}, restore; for each head",
        spent,
        same_result=ours == theirs,
        details={
            "heads": len(subject.heads),
            "sums": SUMS,
            "reference_threads": threads,
            "threads": torch.get_num_threads(),
            "sweeps": sweeps(seed, device),
        },
    )


@torch.no_grad()
def textbook_study(
    model: TextbookCopy, subject: Subject, task: Task, problems: Problems, watch: Watch | None = None
) -> list[float]:
    """The accuracy of the whole model, then of the model without each head."""
    batches = [problems[start : start + BATCH] for start in range(0, len(problems), BATCH)]
    right = [count_right(model, task.start, batches)]
    for number, head in enumerate(subject.heads):
        site = model.sites[head.site]
        columns = site.out_proj.weight.data[:, head.number * site.head_dim : (head.number + 1) * site.head_dim]
        kept = columns.clone()
        columns.zero_()
        right.append(count_right(model, task.start, batches))
        columns.copy_(kept)
        if watch is not None:
            watch(number + 1, len(subject.heads))
    return [each / len(problems) for each in right]


def sweeps(seed: int, device: torch.device) -> dict[str, list[dict[str, float]]]:
    """Seconds of a study against heads a site, examples and layers; the weights are those a run starts from."""
    task = Addition()

    def seconds(overrides: Overrides, examples: int = 500) -> float:
        model = build_model(plan("addition", overrides, seed).model, seed).to(device).eval()
        heads = tuple(heads_of(model))
        subject = Subject(model, examples=lambda rows, seed, _: task.testing(seed, rows, device=device), heads=heads)
        variants, closed = Variants(ready(subject)), [frozenset[Any]({head}) for head in heads]
        return timed(lambda: variants(subject.draw(examples, seed, False), closed), device)[1]

    return {
        "heads_a_site": [{"heads_a_site": n, "seconds": seconds(Overrides(heads=n))} for n in (2, 4, 8)],
        "examples": [{"examples": n, "seconds": seconds(Overrides(), n)} for n in (250, 500, 1000)],
        "encoder_layers": [{"encoder_layers": n, "seconds": seconds(Overrides(layers=n))} for n in (1, 2, 4)],
    }
