"""Benchmarks of lengths: a length study of three encodings against the plain loop, and windowed attention against dense
attention."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from headway.bench.reference import TextbookSorter
from headway.bench.row import Row, fastest_threads, fit_power, run_timed, using_threads
from headway.compare.curves import REACHED
from headway.evaluation.verdicts import largest
from headway.lengths.answer import Entry, LengthsPlan
from headway.lengths.extrapolation import study_lengths
from headway.lengths.measuring import CHOOSING, IN_RANGE
from headway.lengths.question import LENGTHS, TRIO
from headway.machine import full_precision_matmul
from headway.models import Attention, Order, Site
from headway.positions import Positions, Shape, find_positions
from headway.progress import Progress
from headway.runs.config import Overrides
from headway.tasks import Problems, Sortedness
from headway.tasks.random import STORING, Dice
from headway.training.tracks import Track

BATCH, RATE, WARMUP = 64, 1e-3, 100
CHECK_EVERY, MOST_STEPS = 100, 4_900  # the published loop: 400 s an encoding at 12.3 steps a second, on two cores
TOKENS, DENSE = (1_000, 10_000, 100_000, 1_000_000), (1_000, 2_000, 4_000, 8_000, 16_000)
D_MODEL, HEADS, MOST_DENSE_BYTES = 64, 8, 4e9  # of the mask: a larger one does not fit
EXAMPLES, STORED = 2_000, 20_000  # sequences of each test length, and of each training length


def length_study(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times a length study against the plain loop: both train three encodings on lengths 8 to 16 and test them at 32 to
    256, on the same problems. The plain loop trains each until it is as accurate in range as ours, at most as long as
    published; without positions, which never gets there, as long as the longer of the other two."""
    task = Sortedness()
    with tempfile.TemporaryDirectory() as folder:
        entries = tuple(Entry(name, "sequential", "mean") for name in TRIO)
        track = Track("bench", Overrides(pooling="mean", steps=700, warmup=60), Overrides())
        plan = LengthsPlan("sortedness", entries, track, (seed,), LENGTHS, ("default",), {}, examples=EXAMPLES)
        study, seconds = run_timed(lambda: study_lengths(plan, Path(folder), device, "float32", quiet), device)
    ours = {run.entry.positions: run.found for run in study.runs}
    accuracy = {name: {row.length: row.accuracy for row in found.rows} for name, found in ours.items()}
    sheets = {n: task.independent(plan.test_seed, EXAMPLES, length=n, device=device) for n in LENGTHS}
    shortest, longest = task.lengths
    shown = {n: task.training(Dice.of(STORING, seed, n, STORED, device), 0, n) for n in range(shortest, longest + 1)}
    theirs: dict[str, PlainLoop] = {}
    trial = PlainLoop(task, "none", seed, shown).train
    with Progress("the plain loop", quiet) as watch, using_threads(fastest_threads(trial, device)) as threads:
        for number, name in enumerate(TRIO):
            goal = ours[name].in_range if name != "none" else 1.1  # unreachable: it trains for all steps
            most = MOST_STEPS if name != "none" else max(each.steps for each in theirs.values())
            theirs[name] = PlainLoop(task, name, seed, shown)
            theirs[name].measure(goal, most, sheets)
            watch(number + 1, len(TRIO))
    table = [
        {
            "positions": name,
            "in_range": [ours[name].in_range, plain.in_range],
            **{str(n): [accuracy[name][n], plain.accuracy[n]] for n in LENGTHS},
            "steps": plain.steps,
        }
        for name, plain in theirs.items()
    ]
    alike = [  # in range to a percent, and on the same side of 0.99 at every length
        abs(ours[name].in_range - plain.in_range) <= 0.01
        and all((accuracy[name][n] >= REACHED) == (plain.accuracy[n] >= REACHED) for n in LENGTHS)
        for name, plain in theirs.items()
    ]
    return Row(
        seconds,
        f"nn.TransformerEncoder (pre-norm), Adam at {RATE:g}, batches of {BATCH} stored sequences, until as accurate "
        f"in range as ours or {MOST_STEPS:,} steps; then every length in batches, one after another",
        sum(each.seconds for each in theirs.values()),
        same_result=all(alike),
        ours_and_theirs=table,
        reference_threads=threads,
        examples=EXAMPLES,
    )


class PlainLoop:
    """A sorter with the usual training and test loops: one batch of stored sequences after another."""

    def __init__(self, task: Sortedness, positions: str, seed: int, shown: dict[int, Problems]) -> None:
        torch.manual_seed(seed)
        self.task, self.shown, self.steps, self.seconds, self.in_range = task, shown, 0, 0.0, 0.0
        self.accuracy: dict[int, float] = {}
        self.device = shown[task.lengths[0]].source.device
        self.model = TextbookSorter(task.values, positions).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)

    def train(self) -> None:
        """Trains for the steps between two checks."""
        self.model.train()
        for _ in range(CHECK_EVERY):
            problems = self.shown[self.task.lengths[0] + int(torch.randint(len(self.shown), ()))]
            rows = torch.randint(len(problems), (BATCH,), device=self.device)
            for group in self.optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (self.steps + 1) / WARMUP)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(problems.source[rows]), problems.answer[rows, 0]).backward()
            self.optimizer.step()
            self.steps += 1

    def measure(self, goal: float, most: int, sheets: dict[int, Problems]) -> None:
        """Trains until `goal` in range, or for `most` steps, then tests. Checks of the goal are not timed."""
        while self.steps < most and self.in_range < goal:
            self.seconds += run_timed(self.train, self.device)[1]
            self.in_range = self._measure_in_range(CHOOSING)
        self.accuracy, spent = run_timed(lambda: {n: self._accuracy(sheet) for n, sheet in sheets.items()}, self.device)
        self.seconds, self.in_range = self.seconds + spent, self._measure_in_range(0)

    def _measure_in_range(self, seed: int) -> float:
        """Measures the mean accuracy over the training lengths."""
        rows = IN_RANGE // len(self.shown)
        sheets = [self.task.independent(seed, rows, length=n, device=self.device) for n in self.shown]
        return sum(map(self._accuracy, sheets)) / len(sheets)

    @torch.no_grad()
    def _accuracy(self, problems: Problems) -> float:
        self.model.eval()
        batches = [problems[start : start + BATCH] for start in range(0, len(problems), BATCH)]
        right = [int((self.model(batch.source).argmax(-1) == batch.answer[:, 0]).sum()) for batch in batches]
        return sum(right) / len(problems)


@full_precision_matmul()
def window_attention(seed: int, device: torch.device, quiet: bool) -> Row:
    """Measures time and memory of attention with a window of two on either side, against dense masked attention."""
    torch.manual_seed(seed)
    positions = find_positions("window")(Shape(D_MODEL, HEADS, 16)).to(device)
    module = Attention(Site("encoder", 0, "self"), D_MODEL, D_MODEL // HEADS, range(HEADS)).to(device)
    fitting = [n for n in DENSE if HEADS * n * n * 4 <= MOST_DENSE_BYTES]

    def windowed(x: Tensor, order: Order) -> Tensor:
        return module(x, x, order)

    def dense(x: Tensor, order: Order) -> Tensor:
        query = F.linear(x, module.query).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = module.keys_values(x, None)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=order.bias)
        return module.out(attended.transpose(1, 2).flatten(2))

    ours = [_measure_work(n, windowed, positions, device)[0] for n in TOKENS]
    theirs, outputs = zip(*(_measure_work(n, dense, positions, device) for n in fitting), strict=True)
    beside, output = _measure_work(fitting[-1], windowed, positions, device)
    difference = largest(output - outputs[-1])
    return Row(
        beside["seconds"],
        f"scaled_dot_product_attention with the same mask, {fitting[-1]:,} tokens",
        theirs[-1]["seconds"],
        same_result=difference < 1e-5,
        tokens=ours,
        dense=list(theirs),
        time_exponent=fit_power(TOKENS, [each["seconds"] for each in ours]),
        memory_exponent=fit_power(TOKENS, [each["bytes"] for each in ours]),
        dense_time_exponent=fit_power(fitting, [each["seconds"] for each in theirs]),
        largest_difference=difference,
        d_model=D_MODEL,
        heads=HEADS,
    )


@torch.inference_mode()
def _measure_work(
    tokens: int, work: Callable[[Tensor, Order], Tensor], positions: Positions, device: torch.device
) -> tuple[dict[str, float], Tensor]:
    """Measures the best time of a few and the peak memory of this work, and returns its output."""
    x = torch.randn(1, tokens, D_MODEL, generator=torch.Generator().manual_seed(0)).to(device)
    index = torch.arange(tokens, device=device)[None]

    def once() -> Tensor:
        return work(x, Order(positions, index, index, causal=False))

    output, seconds = run_timed(once, device)
    for _ in range(4 if seconds < 1 else 1):
        seconds = min(seconds, run_timed(once, device)[1])
    return {"tokens": tokens, "seconds": seconds, "bytes": _peak_bytes(once, device)}, output


def _peak_bytes(work: Callable[[], Tensor], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # silences the profiler
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        work()
    held = most = 0
    for event in seen.profiler.kineto_results.events():  # pyright: ignore[reportOptionalMemberAccess]
        if event.name() == "[memory]":
            held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            most = max(most, held)
    return most
