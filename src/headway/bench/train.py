"""How long until an adder is perfect, and how fast all sums are checked."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.bench.reference import decode_textbook, train_textbook
from headway.bench.row import Row
from headway.evaluation.exact import batch_rows, batches, evaluate_all, evaluate_chunks, right
from headway.progress import Progress
from headway.runs.folder import RunFolder
from headway.subjects.own import open_one, open_run
from headway.tasks import Addition, Problems
from headway.training.defaults import Wishes, plan
from headway.training.loop import train_run

STORED = 10_000
EPOCHS = 50


def time_to_perfect(seed: int, device: torch.device, quiet: bool) -> Row:
    """Training time until every sum is right, beside the textbook's fifty epochs."""
    task = Addition()
    with tempfile.TemporaryDirectory() as folder, Progress("ours, until perfect", quiet) as watch:
        config = plan("addition", Wishes(until="perfect"), seed)
        report = train_run(config, Path(folder) / "run", device=device, watch=watch)
        model = open_run(RunFolder(Path(folder) / "run"), device).model
    with Progress("ours, checking all", quiet) as watch:
        ours = evaluate_all(model, task, watch)
    stored = stored_sums(task, seed)
    textbook = train_textbook(task, stored, seed, EPOCHS)
    checked = task.testing(seed, 100_000)
    theirs = evaluate_chunks(textbook.model, task, iter([checked]), len(checked), sampled=True)  # pyright: ignore[reportArgumentType]
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
    order = torch.randperm(task.count, generator=torch.Generator().manual_seed(seed))[:STORED]
    every = task.listing(0, task.count)
    return every[order]


def sums_per_second(seed: int, device: torch.device, quiet: bool) -> Row:
    """Checking sums in one pass each, beside decoding them token by token without a cache."""
    run = open_one("pretrained:adder", device)
    model, task, length = run.model, run.task, run.task.lengths[1]
    sums = task.testing(seed, 40_000, device=device)
    rows = batch_rows(device)

    def ours(problems: Problems) -> int:
        return evaluate_chunks(model, task, iter([problems]), len(problems), sampled=True).errors

    def theirs(problems: Problems) -> int:
        wrong = 0
        for batch in batches(problems, rows):
            written = decode_textbook(model, task.start, batch.source, task.answer_tokens(length))
            wrong += int((written != batch.answer).any(1).sum())
        return wrong

    with torch.inference_mode():
        _ = ours(sums[:2048]), theirs(sums[:2048])
        ours_errors, ours_seconds = _timed(ours, sums)
        reference_errors, reference_seconds = _timed(theirs, sums)
    rate, product_rate = len(sums) / ours_seconds, product_flops(device)
    flops = _flops_a_sum(model, sums[:64])
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


def product_flops(device: torch.device, size: int = 4096) -> float:
    """Operations a second in a large float32 matrix product: what the machine can do."""
    a, b = torch.randn(2, size, size, device=device).unbind(0)
    torch.mm(a, b)
    began = time.perf_counter()
    torch.mm(a, b)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 2 * size**3 / (time.perf_counter() - began)


def _flops_a_sum(model: torch.nn.Module, sums: Problems) -> float:
    with FlopCounterMode(display=False) as counter:
        right(model(sums.source, sums.answer), sums)
    return counter.get_total_flops() / len(sums)


def _timed(work: object, problems: Problems) -> tuple[int, float]:
    began = time.perf_counter()
    errors = work(problems)  # pyright: ignore[reportCallIssue]
    return errors, time.perf_counter() - began
