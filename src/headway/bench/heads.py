"""Benchmarks of head studies: the shipped adder against the textbook's way, and a user's model with 144 heads against
other libraries."""

from functools import partial
from typing import Any, cast

import torch

from headway.attach.huggingface import attach_huggingface
from headway.attach.opening import prepare_subject
from headway.attach.readers import read_causal
from headway.attach.runner import UserRunner
from headway.bench.own_references import OWN_REFERENCES, Measure, Tokens, random_gpt2, random_tokens
from headway.bench.reference import TextbookCopy, count_right
from headway.bench.row import Row, fastest_threads, run_timed, using_threads
from headway.errors import HeadwayError
from headway.evaluation.verdicts import largest
from headway.heads.variants import Variants
from headway.machine import full_precision_matmul
from headway.models import EncoderDecoder, build_model, heads_of
from headway.models.sites import Closed
from headway.progress import Progress, Watch
from headway.runs.config import Overrides
from headway.subjects.own import open_one, subject_of
from headway.subjects.runner import MEMORY
from headway.subjects.subject import Subject
from headway.tasks import Addition, Problems, Task
from headway.training.defaults import plan

SUMS = 2_000
CPU_SHAPE, GPU_SHAPE, GPU_MEMORY = (8, 32), (64, 128), 32 * 2**30  # rows and tokens for a user's model
BATCH = 500  # the textbook's, the fastest of 64 to 2,000 on the two cores we tried


@full_precision_matmul()  # on both sides: otherwise a GPU rounds the factors, and verdicts differ
def head_study(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times ablating each of the shipped adder's 24 heads alone, on 2,000 sums."""
    run = open_one("pretrained:adder", device)
    subject = subject_of(run)
    problems, variants, closed = subject.draw(SUMS, seed, False), Variants(subject), each_alone(subject)
    variants(problems[:200], closed)  # warm
    textbook = TextbookCopy(cast(EncoderDecoder, run.model)).to(device).eval()
    with Progress("one head after another", quiet) as watch:
        ours, seconds = run_timed(lambda: variants(problems, closed).accuracy, device)
        trial = partial(count_right, textbook, run.task.start, [problems[:BATCH]])
        with using_threads(fastest_threads(trial, device)) as threads:
            theirs, spent = run_timed(lambda: textbook_study(textbook, subject, run.task, problems, watch), device)
    return Row(
        seconds,
        f"nn.Transformer with the same weights: zero a head's, decode {SUMS:,} sums token by token in batches of "
        f"{BATCH}, restore; for each head",
        spent,
        same_result=ours == theirs,
        heads=len(subject.heads),
        sums=SUMS,
        reference_threads=threads,
        sweeps=sweeps(seed, device),
    )


def each_alone(subject: Subject) -> list[Closed]:
    """Lists the empty set of heads, and each head alone."""
    return [frozenset(), *(frozenset({head}) for head in subject.heads)]


@torch.no_grad()
def textbook_study(
    model: TextbookCopy, subject: Subject, task: Task, problems: Problems, watch: Watch | None = None
) -> list[float]:
    """Measures the accuracy of the whole model, then without each head."""
    batches = [problems[start : start + BATCH] for start in range(0, len(problems), BATCH)]
    right = [count_right(model, task.start, batches)]
    for number, head in enumerate(subject.heads):
        site = model.sites[head.site]
        columns = site.out_proj.weight.data[:, head.number * site.head_dim : (head.number + 1) * site.head_dim]
        original = columns.clone()
        columns.zero_()
        right.append(count_right(model, task.start, batches))
        columns.copy_(original)
        if watch is not None:
            watch(number + 1, len(subject.heads))
    return [each / len(problems) for each in right]


def sweeps(seed: int, device: torch.device) -> dict[str, list[dict[str, float]]]:
    """Times a study against heads per site, examples and layers, with initial weights."""
    task = Addition()

    def seconds(overrides: Overrides, examples: int = 500) -> float:
        model = build_model(plan("addition", overrides, seed).model, seed).to(device).eval()
        heads = tuple(heads_of(model))
        subject = Subject(model, examples=lambda rows, seed, _: task.testing(seed, rows, device=device), heads=heads)
        variants, closed = Variants(prepare_subject(subject)), each_alone(subject)[1:]
        return run_timed(lambda: variants(subject.draw(examples, seed, False), closed), device)[1]

    return {
        "heads_a_site": [{"heads_a_site": n, "seconds": seconds(Overrides(heads=n))} for n in (2, 4, 8)],
        "examples": [{"examples": n, "seconds": seconds(Overrides(), n)} for n in (250, 500, 1000)],
        "encoder_layers": [{"encoder_layers": n, "seconds": seconds(Overrides(layers=n))} for n in (1, 2, 4)],
    }


@full_precision_matmul()
def head_costs(measure: Measure, seed: int, device: torch.device, quiet: bool) -> Row:
    """Times a study of a random GPT-2, by the loss of every next token or of the last token alone."""
    model, on_cpu = random_gpt2(seed).to(device), device.type == "cpu"
    tokens = random_tokens(seed, *(CPU_SHAPE if on_cpu else GPU_SHAPE)).to(device)
    runner, problems = attach(model, tokens, measure, MEMORY if on_cpu else GPU_MEMORY)
    subject = Subject(model, examples=problems, metric="loss").with_runner(runner)
    losses, seconds = run_timed(lambda: Variants(subject)(problems, each_alone(subject)).loss.double().mean(1), device)
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
                theirs, spent[reference] = run_timed(partial(sweep, tokens, measure), device)
            differences[reference] = largest(theirs.cpu() - ours.cpu())
    best = min(spent, key=spent.__getitem__)
    return Row(
        seconds,
        OWN_REFERENCES[best].description,
        spent[best],
        same_result=max(differences.values()) < 1e-5,
        heads=len(subject.heads),
        tokens=list(tokens.shape),
        seconds_of_each=spent,
        not_installed=[each for each in OWN_REFERENCES if each not in spent],
        largest_difference=max(differences.values()),
        seconds_a_variant_by_size=runner.stacking.seconds,
        reference_threads=threads,
    )


def attach(model: Any, tokens: Tokens, measure: Measure, memory: int) -> tuple[UserRunner, Problems]:
    """Attaches Headway to a model, with the one-time proofs, which are not timed, and makes the problems."""
    first = 1 if measure == "full" else tokens.shape[1] - 1
    problems = Problems(tokens[:, :first], tokens[:, first:])
    few = problems[:1]
    found = attach_huggingface(model, lambda: read_causal(model, few.source, few.answer), proved=False)
    runner = UserRunner(found, read_causal, memory)
    runner.check_replay(problems)
    return runner, problems
