"""How long until an adder is perfect, and how fast all sums are checked."""

import itertools
import tempfile
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.bench.reference import decode_textbook, train_textbook
from headway.bench.row import Row, timed
from headway.evaluation.exact import evaluate_all, evaluate_chunks
from headway.evaluation.examples import batches, list_problems, number_of_problems
from headway.evaluation.verdicts import same_answer
from headway.progress import Progress
from headway.runs.folder import RunFolder
from headway.subjects.own import open_one, open_run
from headway.tasks import Addition, Problems
from headway.training.defaults import Overrides, plan
from headway.training.loop import train_run

STORED = 10_000
EPOCHS = 50


def time_to_perfect(seed: int, device: torch.device, quiet: bool) -> Row:
    """Training time until every sum is right, beside the textbook's fifty epochs."""
    task = Addition()
    with tempfile.TemporaryDirectory() as folder, Progress("ours, until perfect", quiet) as watch:
        config = plan("addition", Overrides(until="perfect"), seed)
        report = train_run(config, Path(folder) / "run", device=device, watch=watch)
        model = open_run(RunFolder(Path(folder) / "run"), device).model
    with Progress("ours, checking all", quiet) as watch:
        ours = evaluate_all(model, task, watch)
    with Progress("the textbook loop", quiet) as watch:
        textbook = train_textbook(task, stored_sums(task, seed).to(device), seed, EPOCHS, watch=watch)
    checked = task.testing(seed, 100_000, device=device)
    theirs = evaluate_chunks(textbook.model, task, [checked], len(checked), is_sample=True)  # pyright: ignore[reportArgumentType]
    return Row(
        "time-to-perfect",
        report.seconds,
        f"textbook loop: {STORED:,} stored sums, batch 64, Adam 1e-3, post-norm, {EPOCHS} epochs",
        textbook.seconds,
        same_result=ours.errors == 0 and theirs.errors == 0,
        details={
            "steps": report.steps,
            "errors_of_all": ours.errors,
            "reference_exact_match": theirs.exact_match,
            "reference_threads": textbook.threads,
            "threads": torch.get_num_threads(),
        },
    )


def stored_sums(task: Addition, seed: int) -> Problems:
    """As many different sums as the textbook stores."""
    count = number_of_problems(task, "the textbook")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:STORED]
    return task.listing(0, count)[order]


def sums_per_second(seed: int, device: torch.device, quiet: bool) -> Row:
    """What `evaluate --all` does, on its first chunk, beside decoding the same sums token by token."""
    run = open_one("pretrained:adder", device)
    model, task = run.model, run.task
    sums = next(list_problems(task, device))

    def ours() -> int:
        chunk = itertools.islice(list_problems(task, device), 1)  # making the problems is part of the work
        return evaluate_chunks(model, task, chunk, len(sums), is_sample=True).errors

    def theirs() -> int:
        wrong = 0
        for batch in batches(sums):
            written = decode_textbook(model, task.start, batch.source, batch.answer.shape[1])
            wrong += int((~same_answer(written, batch)).sum())
        return wrong

    with torch.inference_mode():
        warm = next(batches(sums))
        model(warm.source, warm.answer)
        ours_errors, ours_seconds = timed(ours, device)
        reference_errors, reference_seconds = timed(theirs, device)
        rate, product_rate = len(sums) / ours_seconds, product_flops(device)
        flops = flops_a_sum(model, warm)
    return Row(
        "sums-per-second",
        ours_seconds,
        "greedy decoding token by token, no cache, the same model and batches",
        reference_seconds,
        same_result=ours_errors == reference_errors,
        details={
            "sums": len(sums),
            "sums_per_second": rate,
            "gflops": rate * flops / 1e9,
            "product_gflops": product_rate / 1e9,
            "share_of_product": rate * flops / product_rate,
            "threads": torch.get_num_threads(),
        },
    )


def product_flops(device: torch.device, size: int = 4096, precision: torch.dtype = torch.float32) -> float:
    """Operations a second in a large matrix product, the best of five: what the machine can do."""
    a, b = torch.randn(2, size, size, device=device).to(precision).unbind(0)
    return 2 * size**3 / min(timed(lambda: torch.mm(a, b), device)[1] for _ in range(5))


def flops_a_sum(model: torch.nn.Module, sums: Problems) -> float:
    with FlopCounterMode(display=False) as counter:
        model(sums.source, sums.answer)
    return counter.get_total_flops() / len(sums)
