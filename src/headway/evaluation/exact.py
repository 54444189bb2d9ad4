"""Evaluates the exact match of whole answers in one forward pass.

Greedy decoding gives the right answer exactly when every next-token argmax is right given the right tokens before it.
So one teacher-forced pass decides every problem; `check_greedy` compares the two verdicts.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from headway.evaluation.examples import batches, list_problems, number_of_problems, sample_problems
from headway.evaluation.intervals import Interval, wilson
from headway.evaluation.one import OneModel
from headway.evaluation.pairs import PairCounts
from headway.evaluation.verdicts import right, same_answer
from headway.models import Gates, Model
from headway.progress import Watch
from headway.tasks import Problems, Task

HELD_OUT = "held out"


@dataclass(frozen=True)
class Stratum:
    stratum: str
    examples: int
    errors: int


@dataclass(frozen=True)
class HeldOut:
    """The problems among those tested that no run is ever trained on."""

    examples: int
    errors: int

    def to_json(self) -> dict[str, int]:
        return {"examples": self.examples, "errors": self.errors}

    @staticmethod
    def from_json(raw: dict[str, int] | None) -> "HeldOut | None":
        return None if raw is None else HeldOut(raw["examples"], raw["errors"])


@dataclass(frozen=True)
class Evaluation:
    """The number of wrong answers, in total and by kind of problem."""

    examples: int
    errors: int
    interval: Interval | None  # None where every possible problem was tested
    held_out: Stratum  # problems that no run is ever trained on
    strata: tuple[Stratum, ...]
    positive_rate: float | None = None
    """for classifiers: the share answered with class 1; a constant answer shows as 0 or 1"""
    twins: PairCounts | None = None  # where problems come in pairs, which the interval accounts for

    @property
    def exact_match(self) -> float:
        return 1 - self.errors / self.examples


Answers = Callable[[Problems, Callable[[int], None]], Int[Tensor, "model row answer"]]
"""Takes a chunk of problems and a function to report how many are done; returns the answers of each model."""


@torch.inference_mode()
def evaluate_chunks(
    model: Model, task: Task, problems: Iterable[Problems], total: int, *, is_sample: bool, watch: Watch | None = None
) -> Evaluation:
    """Evaluates a model over chunks of problems; `is_sample` says that they are a sample."""
    was_training = model.training
    model.eval()
    found = evaluate_answers(OneModel(model).answers, task, problems, total, is_sample=is_sample, watch=watch)[0]
    model.train(was_training)
    return found


def evaluate_answers(
    answers: Answers, task: Task, chunks: Iterable[Problems], total: int, *, is_sample: bool, watch: Watch | None = None
) -> list[Evaluation]:
    """Evaluates each of the models that give these `answers`."""
    tally, wrong = Counter[str](), defaultdict[str, Tensor | int](int)
    examples = seen = pairs = 0
    errors = positives = both_wrong = torch.zeros(1, dtype=torch.long)

    def done(rows: int) -> None:
        nonlocal seen
        seen += rows
        if watch is not None:
            watch(seen, total)

    for chunk in chunks:
        written = answers(chunk, done)
        misses = ~same_answer(written, chunk)  # model row
        for name, values in {HELD_OUT: task.held_out(chunk).long(), **task.strata(chunk)}.items():
            found, place, number = values.unique(return_inverse=True, return_counts=True)
            counts = (misses.float() @ F.one_hot(place).float()).long().cpu()  # model value: exact below 2^24 rows
            for value, count, errors_there in zip(found.tolist(), number.tolist(), counts.unbind(1), strict=True):
                tally[f"{name}={value}"] += count
                wrong[f"{name}={value}"] = wrong[f"{name}={value}"] + errors_there
        examples, errors = examples + len(chunk), errors + misses.sum(1).cpu()
        if task.classes is not None:
            positives = positives + (written[..., 0] == 1).sum(1).cpu()
        if is_sample and len(twins := find_twins(task, chunk)):
            pairs, both_wrong = pairs + len(twins), both_wrong + (misses[:, twins] & misses[:, twins + 1]).sum(1).cpu()

    def evaluation_of(member: int) -> Evaluation:
        strata = {n: Stratum(n, count, int(torch.as_tensor(wrong[n])[member])) for n, count in sorted(tally.items())}
        held_out = strata.get(f"{HELD_OUT}=1", Stratum(f"{HELD_OUT}=1", 0, 0))
        others = tuple(stratum for name, stratum in strata.items() if not name.startswith(HELD_OUT))
        mistaken, rate = int(errors[member]), int(positives[member]) / examples if task.classes is not None else None
        interval = wilson(examples - mistaken, examples) if is_sample else None
        twins = PairCounts(examples, mistaken, examples - pairs, int(both_wrong[member])) if pairs else None
        return Evaluation(examples, mistaken, twins.interval() if twins else interval, held_out, others, rate, twins)

    return [evaluation_of(member) for member in range(len(errors))]


def find_twins(task: Task, problems: Problems) -> Int[Tensor, " pair"]:
    """Returns the even rows whose next row is a twin: the same problem up to its order, where a task draws pairs."""
    even = torch.arange(0, len(problems) - 1, 2, device=problems.source.device)
    if task.classes is None:
        return even[:0]
    identity = task.identity(problems)
    return even[identity[even] == identity[even + 1]]


def evaluate_all(model: Model, task: Task, watch: Watch | None = None) -> Evaluation:
    """Evaluates a model on every possible problem."""
    total = number_of_problems(task, "`all`")
    return evaluate_chunks(model, task, list_problems(task, device_of(model)), total, is_sample=False, watch=watch)


def evaluate_sample(
    model: Model, task: Task, examples: int, *, seed: int = 0, length: int | None = None, probe: str = "default"
) -> Evaluation:
    """Evaluates a model on fresh problems of a probe: of one length, or evenly over the training lengths."""
    problems = sample_problems(task, examples, seed=seed, length=length, probe=probe, device=device_of(model))
    return evaluate_chunks(model, task, problems, examples, is_sample=True)


@torch.inference_mode()
def all_trainable_right(model: Model, task: Task) -> bool:
    """Whether every problem outside the held-out tenth is right; tests the hard ones first.

    The held-out tenth is not tested: it never steers training, not even when to stop.
    """
    hard = task.testing(seed=0, rows=4096, probe=task.hard_probe, device=device_of(model))
    every = itertools.chain([hard], list_problems(task, device_of(model)))
    return all(
        bool((right(model(batch.source, batch.answer), batch) | task.held_out(batch)).all())
        for batch in itertools.chain.from_iterable(map(batches, every))
    )


@dataclass(frozen=True)
class Greedy:
    checked: int
    mismatches: int  # problems with different verdicts


@torch.inference_mode()
def check_greedy(
    model: Model, problems: Iterable[Problems], total: int, gates: Gates | None = None, watch: Watch | None = None
) -> Greedy:
    """Decodes problems token by token with a key-value cache and compares the verdicts with those of one pass."""
    model.eval()
    checked = mismatches = 0
    for batch in itertools.chain.from_iterable(map(batches, problems)):
        written = model.generate(batch.source, batch.answer.shape[1], gates)
        in_one_pass = right(model(batch.source, batch.answer, gates), batch)
        mismatches += int((same_answer(written, batch) != in_one_pass).sum())
        checked += len(batch)
        if watch is not None:
            watch(checked, total)
    return Greedy(checked, mismatches)


def device_of(model: torch.nn.Module) -> torch.device:
    """Returns the device of a model; the CPU if it has no parameters."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
