"""How long until an adder is perfect, and how fast all sums are checked."""

import itertools
import tempfile
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.bench.reference import STORED, count_right, train_textbook
from headway.bench.row import Row, timed
from headway.evaluation.exact import evaluate_all, evaluate_chunks
from headway.evaluation.examples import batches, list_problems
from headway.progress import Progress
from headway.runs.folder import RunFolder
from headway.subjects.own import open_one, open_run
from headway.tasks import Addition
from headway.training.defaults import Overrides, plan
from headway.training.loop import train_run

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
    textbook, spent, threads = train_textbook(task, seed, EPOCHS, device, quiet)
    checked = task.testing(seed, 100_000, device=device)
    theirs = evaluate_chunks(textbook, task, [checked], len(checked), is_sample=True)  # pyright: ignore[reportArgumentType]
    return Row(
        report.seconds,
        f"textbook loop: {STORED:,} stored sums, batch 64, Adam 1e-3, post-norm, {EPOCHS} epochs",
        spent,
        same_result=ours.errors == 0 and theirs.errors == 0,
        steps=report.steps,
        errors_of_all=ours.errors,
        reference_exact_match=theirs.exact_match,
        reference_threads=threads,
        threads=torch.get_num_threads(),
    )


def sums_per_second(seed: int, device: torch.device, quiet: bool) -> Row:
    """What `evaluate --all` does, on its first chunk, beside decoding the same sums token by token."""
    run = open_one("pretrained:adder", device)
    model, task = run.model, run.task
    sums = next(list_problems(task, device))

    def ours() -> int:
        chunk = itertools.islice(list_problems(task, device), 1)  # making the problems is part of the work
        return evaluate_chunks(model, task, chunk, len(sums), is_sample=True).errors

    with torch.inference_mode():
        warm = next(batches(sums))
        model(warm.source, warm.answer)
        ours_errors, ours_seconds = timed(ours, device)
        theirs, reference_seconds = timed(lambda: count_right(model, task.start, batches(sums)), device)
        rate, product_rate = len(sums) / ours_seconds, product_flops(device)
        with FlopCounterMode(display=False) as counter:
            model(warm.source, warm.answer)
        flops = counter.get_total_flops() / len(warm)
    return Row(
        ours_seconds,
        "greedy decoding token by token, no cache, the same model and batches",
        reference_seconds,
        same_result=ours_errors == len(sums) - theirs,
        sums=len(sums),
        sums_per_second=rate,
        gflops=rate * flops / 1e9,
        product_gflops=product_rate / 1e9,
        share_of_product=rate * flops / product_rate,
        threads=torch.get_num_threads(),
    )


def product_flops(device: torch.device, size: int = 4096, precision: torch.dtype = torch.float32) -> float:
    """Operations a second in a large matrix product, the best of five: what the machine can do."""
    a, b = torch.randn(2, size, size, device=device).to(precision).unbind(0)
    return 2 * size**3 / min(timed(lambda: torch.mm(a, b), device)[1] for _ in range(5))
