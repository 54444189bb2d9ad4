"""How long it takes to know what each of 144 heads of a user's model costs, beside the ways of others."""

from functools import partial
from typing import Any

import torch

from headway.attach.huggingface import attach_huggingface
from headway.attach.readers import read_causal
from headway.attach.runner import UserRunner
from headway.bench.own_references import OWN_REFERENCES, Measure, Tokens, random_gpt2, random_tokens
from headway.bench.row import Row, fastest_threads, timed, using_threads
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.heads.variants import Variants
from headway.machine import exact_products
from headway.models.sites import Closed
from headway.progress import Progress
from headway.subjects.runner import MEMORY
from headway.subjects.subject import Subject
from headway.tasks import Problems

CPU_SHAPE, GPU_SHAPE = (8, 32), (64, 128)
GPU_MEMORY = 32 * 2**30


@exact_products()
def head_costs(measure: Measure, seed: int, device: torch.device, quiet: bool) -> Row:
    """Judged by the loss of every next token, or of the last token alone."""
    model, on_cpu = random_gpt2(seed).to(device), device.type == "cpu"
    tokens = random_tokens(seed, *(CPU_SHAPE if on_cpu else GPU_SHAPE)).to(device)
    runner, problems = attached(model, tokens, measure, MEMORY if on_cpu else GPU_MEMORY)
    subject = Subject(model, examples=problems, metric="loss").with_runner(runner)
    closed: list[Closed] = [frozenset(), *(frozenset({head}) for head in subject.heads)]
    losses, seconds = timed(lambda: Variants(subject)(problems, closed).loss.double().mean(1), device)
    ours = losses[1:] - losses[0]  # how much the loss grows without each head
    spent, differences = {}, {}

    @torch.inference_mode()
    def one_pass() -> None:
        model(tokens[:, :-1], use_cache=False)

    with using_threads(fastest_threads(one_pass, device)) as threads:
        for reference, way in OWN_REFERENCES.items():
            if not on_cpu and reference != "transformers":
                continue
            try:
                sweep = partial(way.sweep, way.wrap(model))
            except HeadwayError:
                continue  # not installed
            if not on_cpu:
                sweep(tokens[:1], measure)  # warm
            with Progress(f"{measure}: {reference}", quiet):
                theirs, spent[reference] = timed(partial(sweep, tokens, measure), device)
            differences[reference] = largest(theirs.cpu() - ours.cpu())
    best = min(spent, key=spent.__getitem__)
    return Row(
        seconds,
        OWN_REFERENCES[best].says,
        spent[best],
        same_result=max(differences.values()) < 1e-5,
        details={
            "heads": len(subject.heads),
            "tokens": list(tokens.shape),
            "seconds_of_each": spent,
            "not_installed": [each for each in OWN_REFERENCES if each not in spent],
            "largest_difference": max(differences.values()),
            "seconds_a_variant_by_size": runner.stacking.spent,
            "reference_threads": threads,
            "threads": torch.get_num_threads(),
        },
    )


def attached(model: Any, tokens: Tokens, measure: Measure, memory: int) -> tuple[UserRunner, Problems]:
    """Ours around a model, with what is proved once of it, which is not timed; and the problems."""
    first = 1 if measure == "full" else tokens.shape[1] - 1
    problems = Problems(tokens[:, :first], tokens[:, first:])
    few = problems[:1]
    found = attach_huggingface(model, lambda: read_causal(model, few.source, few.answer), proved=False)
    runner = UserRunner(found, read_causal, memory)
    runner.check_replay(problems)
    return runner, problems
