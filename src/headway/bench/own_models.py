"""How long it takes to know what each of 144 heads of a user's model costs, beside the ways of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headway.attach.huggingface import attach_huggingface
from headway.attach.readers import read_causal
from headway.attach.runner import UserRunner
from headway.attach.stacking import Stacking
from headway.bench.own_references import OWN_REFERENCES, Measure, random_gpt2, random_tokens
from headway.bench.row import Row
from headway.bench.train import timed
from headway.errors import HeadwayError
from headway.heads.variants import Variants
from headway.machine import exact_products
from headway.models.sites import Closed
from headway.progress import Progress
from headway.subjects.runner import MEMORY
from headway.subjects.subject import Subject
from headway.tasks import Problems

SAME = 1e-5
CPU_SHAPE, GPU_SHAPE = (8, 32), (64, 128)
GPU_MEMORY = 32 * 2**30


def full_loss(seed: int, device: torch.device, quiet: bool) -> Row:
    """Judged by the loss of every next token."""
    with exact_products():
        return _row("own-models-full-loss", "full", seed, device, quiet)


def answer(seed: int, device: torch.device, quiet: bool) -> Row:
    """Judged by the loss of the last token alone."""
    with exact_products():
        return _row("own-models-answer", "answer", seed, device, quiet)


def _row(name: str, measure: Measure, seed: int, device: torch.device, quiet: bool) -> Row:
    model = random_gpt2(seed).to(device)
    tokens = random_tokens(seed, *(CPU_SHAPE if device.type == "cpu" else GPU_SHAPE)).to(device)
    subject = _subject(model, tokens, measure)
    _checked(subject)
    ours, seconds = timed(lambda: _swept(subject), device)
    spent, differences = {}, {}
    threads, before = _fastest_threads(model, tokens, measure), torch.get_num_threads()
    torch.set_num_threads(threads)
    for reference, way in OWN_REFERENCES.items():
        if device.type != "cpu" and reference != "transformers":
            continue
        try:
            wrapped = way.wrap(model)
        except HeadwayError:
            continue  # not installed
        if device.type != "cpu":
            way.sweep(wrapped, tokens[:1], measure)  # warm
        with Progress(f"{measure}: {reference}", quiet):
            theirs, spent[reference] = timed(lambda: way.sweep(wrapped, tokens, measure), device)  # noqa: B023
        differences[reference] = float((theirs.cpu() - ours.cpu()).abs().max())
    torch.set_num_threads(before)
    best = min(spent, key=spent.__getitem__)
    runner = subject.runner
    assert isinstance(runner, UserRunner)
    return Row(
        name,
        seconds,
        OWN_REFERENCES[best].says,
        spent[best],
        same_result=max(differences.values()) < SAME,
        details={
            "heads": len(subject.heads),
            "tokens": list(tokens.shape),
            "seconds_of_each": spent,
            "not_installed": [each for each in OWN_REFERENCES if each not in spent],
            "largest_difference": max(differences.values()),
            "seconds_a_variant_by_size": runner.stacking.spent,
            "reference_threads": threads,
            "threads": before,
        },
    )


def _subject(model: Any, tokens: Tensor, measure: Measure) -> Subject:
    first = 1 if measure == "full" else tokens.shape[1] - 1
    problems = Problems(tokens[:, :first], tokens[:, first:])
    few = problems[:1]
    attached = attach_huggingface(model, lambda: read_causal(model, few.source, few.answer), proved=False)
    runner = UserRunner(attached, read_causal, MEMORY if tokens.device.type == "cpu" else GPU_MEMORY)
    return Subject(model, examples=problems, metric="loss").with_runner(runner)


def _checked(subject: Subject) -> None:
    """What is proved once of a model is not timed."""
    runner = subject.runner
    assert isinstance(runner, UserRunner)
    assert isinstance(subject.examples, Problems)
    runner.check_replay(subject.examples)


def _swept(subject: Subject) -> Tensor:
    """How much the loss grows without each head; what is measured at the start is measured here."""
    runner = subject.runner
    assert isinstance(runner, UserRunner)
    runner.stacking = Stacking()
    closed: list[Closed] = [frozenset(), *(frozenset({head}) for head in subject.heads)]
    assert isinstance(subject.examples, Problems)
    loss = Variants(subject)(subject.examples, closed).loss.double().mean(1)
    return loss[1:] - loss[0]


def _fastest_threads(model: Any, tokens: Tensor, measure: Measure) -> int:
    """The number of threads that is fastest for the plain way, on one pass."""
    before = torch.get_num_threads()
    if tokens.device.type != "cpu":
        return before
    run: Callable[[], Any] = lambda: model(tokens[:, :-1], use_cache=False)  # noqa: E731
    spent = {}
    with torch.inference_mode():
        for threads in [n for n in (1, 2, 4, 8) if n <= before]:
            torch.set_num_threads(threads)
            run()
            spent[threads] = min(timed(run, tokens.device)[1] for _ in range(3))
    torch.set_num_threads(before)
    return min(spent, key=spent.__getitem__)
