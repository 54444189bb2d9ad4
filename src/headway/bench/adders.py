"""The cost of adders: training one until it is perfect, checking all sums, and training many as one stack instead of
one at a time. On a GPU the stack is measured at sizes 1 to 1,024, at other widths and at longer problems, against the
plain eager loop and the same loop compiled; on a CPU, eight models one after another, stacked, and in processes. Costs
are in steady state: compiling and starting processes are measured separately."""

import gc
import itertools
import math
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from headway.bench.reference import STORED, count_right, train_textbook
from headway.bench.row import Row, fit_power, run_timed, using_threads
from headway.evaluation.exact import evaluate_all, evaluate_chunks
from headway.evaluation.examples import batches as batches_in
from headway.evaluation.examples import list_problems
from headway.evaluation.verdicts import loss
from headway.machine import choose_precision, cores, cpu_has_bfloat16
from headway.models import build_model
from headway.progress import Progress
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.subjects.own import open_one, open_run
from headway.tasks import Addition, Problems, create_task
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner, Step
from headway.training.loop import train_run
from headway.training.stack import Stack
from headway.trials.drive import train_trials
from headway.trials.local import LocalEngine
from headway.trials.plan import pieces_of
from headway.trials.trial import Terms, Trial

EPOCHS, POPULATION = 50, 256
SIZES = (1, 8, 64, 256, 512, 1024)
WIDTHS, LENGTHS, DIGITS = (64, 256), (1, 12), 3
"""d_model (d_ff is four times that) and digits; 128 and 3 are covered by the sizes"""
SWEPT = 512  # members of the stacks with other widths and lengths
WAITS = 1.1  # times the fixed time: a shorter step does not depend on its size
WARM, STEPS = 32, 64  # problems are drawn for as many steps at once as are timed
ON_CPU, TURNS = 8, 3


def time_to_perfect(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times training until every sum is right, against the textbook's fifty epochs."""
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
    )


def sums_per_second(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times the first chunk of `evaluate --all`, against decoding the same sums token by token."""
    run = open_one("pretrained:adder", device)
    model, task = run.model, run.task
    sums = next(list_problems(task, device))
    warm = next(batches_in(sums))

    def ours() -> int:
        chunk = itertools.islice(list_problems(task, device), 1)  # making the problems is part of the work
        return evaluate_chunks(model, task, chunk, len(sums), is_sample=True).errors

    with torch.inference_mode():
        model(warm.source, warm.answer)
        ours_errors, ours_seconds = run_timed(ours, device)
        theirs, reference_seconds = run_timed(lambda: count_right(model, task.start, batches_in(sums)), device)
    with FlopCounterMode(display=False) as counter:  # with gradients: it does not see oneDNN
        model(warm.source, warm.answer)
    flops = counter.get_total_flops() / len(warm)
    precision = torch.bfloat16 if device.type == "cpu" and cpu_has_bfloat16() else torch.float32
    rate, product_rate = len(sums) / ours_seconds, measure_peak_flops(device, precision=precision)
    return Row(
        ours_seconds,
        "greedy decoding token by token, no cache, the same model and batches",
        reference_seconds,
        same_result=ours_errors == len(sums) - theirs,
        sums=len(sums),
        sums_per_second=rate,
        gflops=rate * flops / 1e9,
        precision=str(precision).removeprefix("torch."),
        product_gflops=product_rate / 1e9,
        share_of_product=rate * flops / product_rate,
    )


def measure_peak_flops(device: torch.device, size: int = 4096, precision: torch.dtype = torch.float32) -> float:
    """Measures the peak FLOP/s of this machine: a large matrix product, the best of five."""
    a, b = torch.randn(2, size, size, device=device).to(precision).unbind(0)
    return 2 * size**3 / min(run_timed(lambda: torch.mm(a, b), device)[1] for _ in range(5))


@dataclass(frozen=True)
class Cost:
    """The cost of training a stack."""

    population: int
    d_model: int
    tokens: int
    batch: int
    milliseconds: float  # per step of the whole stack, including drawing its problems
    first_seconds: float  # of the first step, which compiles
    gigabytes: float
    tflops: float  # of the model's matrix products, forward and backward, the optimizer's not counted
    tflops_with_optimizer: float
    final_loss: float  # of the first member, after the measured steps

    @property
    def each(self) -> float:
        """Milliseconds per step and member."""
        return self.milliseconds / self.population


def population_per_model(seed: int, device: torch.device, quiet: bool) -> Row:
    """Measures the cost of a model in a population, against one at a time."""
    if device.type == "cpu":
        return _measure_on_cpu(seed, device, quiet)
    with Progress("one at a time", quiet) as watch:
        eager, eager_loss = train_alone(adder(seed), device, compile=False)
        watch(1, 2)
        alone, _ = train_alone(adder(seed), device, compile=True)
    plans = [(size, Overrides(), DIGITS) for size in SIZES]
    plans += [(SWEPT, Overrides(d_model=width, d_ff=4 * width), DIGITS) for width in WIDTHS]
    plans += [(SWEPT, Overrides(), digits) for digits in LENGTHS]
    plans += [(POPULATION, Overrides(batch=512, optimizer="adamw"), DIGITS)]  # more FLOP/s than the recipe
    measured = []
    with Progress("populations", quiet) as watch:
        for number, (size, overrides, digits) in enumerate(plans):
            measured.append(measure_stack(seed, size, device, overrides, digits))
            watch(number + 1, len(plans), f"{size} members: {measured[-1][0].each:.3f} ms per model and step")
    *costs, fastest = [cost for cost, _ in measured]
    main, shares = measured[SIZES.index(POPULATION)]
    rate = measure_peak_flops(device, 8192, torch.bfloat16)
    steps = adder(seed).training.steps
    return Row(
        main.each * steps / 1000,
        f"one model at a time, eager, {steps} steps of {main.batch} sums",
        eager * steps / 1000,
        same_result=abs(main.final_loss - eager_loss) < 0.1 * eager_loss,
        population=POPULATION,
        model_steps_per_second=1000 / main.each,
        eager_milliseconds=eager,
        compiled_milliseconds=alone,
        ratio_to_compiled=alone / main.each,
        loss_after_steps={"population": main.final_loss, "eager": eager_loss, "steps": WARM + STEPS},
        tflops=main.tflops,
        tflops_with_optimizer=main.tflops_with_optimizer,
        product_tflops=rate / 1e12,
        share_of_product=main.tflops_with_optimizer * 1e12 / rate,
        profile=shares,
        throughput={"optimizer": "adamw", **asdict(fastest), "share_of_product": fastest.tflops * 1e12 / rate},
        throughput_profile=measured[-1][1],
        costs=[{**asdict(cost), "milliseconds_each": cost.each} for cost in costs],
        fits=fit_costs(costs),
    )


def adder(seed: int, overrides: Overrides | None = None, digits: int = DIGITS) -> RunConfig:
    return plan("addition", overrides or Overrides(), seed, {"digits": digits})


def draw_shared(configs: Sequence[RunConfig], device: torch.device) -> Iterator[Problems]:
    """Draws the batches that runs of these configs, which differ only in the seed, are trained on as one."""
    first, seeds = configs[0], [config.seed for config in configs]
    return draw_batches(create_task(first.task, first.options), first.training, seeds, None, 0, device)


def train_alone(config: RunConfig, device: torch.device, compile: bool) -> tuple[float, float]:
    """Measures the milliseconds per step of the ordinary loop, and its last loss. It need not be deterministic."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    learner = Learner(build_model(config.model, config.seed).to(device), config.training)
    if compile:
        learner.model.compile()
    milliseconds, _, last = time_steps(learner.step, draw_shared([config], device), device)
    torch.use_deterministic_algorithms(before, warn_only=True)
    return milliseconds, float(last.loss)


def time_steps(
    step: Callable[[Problems], Step], batches: Iterator[Problems], device: torch.device
) -> tuple[float, float, Step]:
    """Measures milliseconds per warm step, problems drawn, and seconds of the first step; returns the last step too."""
    _, first = run_timed(lambda: step(next(batches)), device)
    for _ in range(WARM - 1):
        step(next(batches))
    last, seconds = run_timed(lambda: [step(next(batches)) for _ in range(STEPS)][-1], device)
    return 1000 * seconds / STEPS, first, last


def measure_stack(
    seed: int, size: int, device: torch.device, overrides: Overrides | None = None, digits: int = DIGITS
) -> tuple[Cost, dict[str, float]]:
    """Measures the cost of a stack, and profiles one of its steps."""
    configs = [adder(seed + member, overrides, digits) for member in range(size)]
    first = configs[0]
    if device.type == "cuda":
        torch.compiler.reset()
        gc.collect()  # the previous stack is in reference cycles
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    models = [build_model(config.model, config.seed) for config in configs]
    stack = Stack(models, [config.training for config in configs], device, choose_precision("auto", device))
    batches = draw_shared(configs, device)
    milliseconds, compiling, last = time_steps(stack.step, batches, device)
    tflops, with_optimizer = (size * flops / milliseconds / 1e9 for flops in count_flops(first))
    shares = profile_step(partial(stack.step, next(batches)), device)
    tokens = first.model.trained + first.model.trained_answer
    memory = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
    shape = (size, first.model.d_model, tokens, first.training.batch)
    return Cost(*shape, milliseconds, compiling, memory, tflops, with_optimizer, float(last.loss[0])), shares


def count_flops(config: RunConfig) -> tuple[float, float]:
    """Counts the FLOPs of one model's step in matrix products: forward and backward, and with the optimizer's."""
    learner = Learner(build_model(config.model, config.seed), config.training)
    problems = next(draw_shared([config], torch.device("cpu")))
    with FlopCounterMode(display=False) as model:
        loss(learner.model(problems.source, problems.answer), problems).backward()
    learner.model.zero_grad()
    with FlopCounterMode(display=False) as whole:
        learner.step(problems)
    return float(model.get_total_flops()), float(whole.get_total_flops())


KINDS = {
    "matrix products": r"nvjet|gemm|cutlass|^aten::(mm|bmm|addmm|baddbmm)$",
    "attention to a few keys": r"^_(forward|backward_query|backward_keys)$",
    "copies": r"memcpy|memset|copy_kernel|^aten::(copy_|clone)$",
}


def profile_step(work: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Measures the shares of a step's time by kind of kernel (on a CPU: of operation); the rest is elementwise."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # silences the profiler
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        run_timed(work, device)
    spent = dict.fromkeys([*KINDS, "element by element"], 0.0)
    for event in profiler.key_averages():
        kinds = [kind for kind, pattern in KINDS.items() if re.search(pattern, event.key.lower())]
        seconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        spent[kinds[0] if kinds else "element by element"] += seconds
    total = sum(spent.values()) or 1.0
    return {kind: seconds / total for kind, seconds in spent.items()}


def fit_costs(costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
    """Fits a step's time by members as max(fixed, each · n), and a model's by width and by tokens as a power."""
    plain = [c for c in costs if c.d_model == 128 and c.tokens == 11]
    fixed, each = _fit_elbow([c.population for c in plain], [c.milliseconds for c in plain])
    full = [c for c in costs if c.population == SWEPT and c.milliseconds > WAITS * fixed]  # or the GPU idles
    wide, long = [c for c in full if c.tokens == 11], [c for c in full if c.d_model == 128]
    return {
        "population": {"fixed_milliseconds": fixed, "milliseconds_a_member": each},
        "d_model": {"power": fit_power([c.d_model for c in wide], [c.each for c in wide])},
        "tokens": {"power": fit_power([c.tokens for c in long], [c.each for c in long])},
    }


def _fit_elbow(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fits y = max(fixed, each · x) for ascending x, by least squares of the logarithm, at the best elbow."""
    log_x, log_y = numpy.log(x), numpy.log(y)
    lines = [(log_y[:elbow].mean(), (log_y - log_x)[elbow:].mean()) for elbow in range(1, len(x))]
    fixed, each = min(lines, key=lambda line: ((log_y - numpy.maximum(line[0], line[1] + log_x)) ** 2).sum())
    return math.exp(fixed), math.exp(each)


def _measure_on_cpu(seed: int, device: torch.device, quiet: bool) -> Row:
    """Measures eight models: one after another, stacked, and in processes."""
    config, loops, aparts = adder(seed), [], []
    with Progress("one after another, and in processes", quiet) as watch:
        for turn in range(TURNS):  # interleaved, so that a busy moment of the machine affects both
            loops.append(train_alone(config, device, compile=False))
            watch(2 * turn + 1, 2 * TURNS)
            aparts.append(train_in_processes(seed))
            watch(2 * turn + 2, 2 * TURNS)
    loop, apart = (statistics.median(each[0] for each in measured) for measured in (loops, aparts))
    with using_threads(1):
        one_thread, _ = train_alone(config, device, compile=False)
    cost, _ = measure_stack(seed, ON_CPU, device)
    learner = Learner(build_model(config.model, config.seed), config.training)
    shares = profile_step(partial(learner.step, next(draw_shared([config], device))), device)
    (_, flops), steps, rate = count_flops(config), config.training.steps, measure_peak_flops(device)
    return Row(
        apart * steps / 1000,
        f"one model after another, {torch.get_num_threads()} threads, {steps} steps of {config.training.batch} sums",
        loop * steps / 1000,
        same_result=abs(aparts[0][1] - loops[0][1]) < 0.1 * loops[0][1],
        population=ON_CPU,
        one_after_another_milliseconds=[each[0] for each in loops],
        processes_milliseconds=[each[0] for each in aparts],
        stacked_milliseconds=cost.each,
        one_thread_milliseconds=one_thread,
        processes=cores(),
        starting_seconds=statistics.median(each[2] for each in aparts),
        profile=shares,
        gflops=flops / loop / 1e6,
        product_gflops=rate / 1e9,
        share_of_product=flops / loop * 1000 / rate,
    )


def train_in_processes(seed: int) -> tuple[float, float, float]:
    """Measures milliseconds per model and step with a process on every core, the first loss, and the overhead."""
    steps, processes = WARM + STEPS, min(cores(), ON_CPU)
    configs = [adder(seed + member, Overrides(steps=steps, warmup=100)) for member in range(ON_CPU)]
    pieces = pieces_of([Trial(config, {"seed": config.seed}, f"seed-{config.seed}") for config in configs], ())
    with tempfile.TemporaryDirectory() as home:
        engine = LocalEngine(Terms(home, checkpoint_every=steps), processes)
        work = partial(train_trials, pieces, engine, "processes", quiet=True)
        reports, wall = run_timed(work, torch.device("cpu"))
    spent = sum(report.seconds for report in reports) / processes
    return 1000 * spent / (ON_CPU * steps), reports[0].final_loss or math.nan, wall - spent
