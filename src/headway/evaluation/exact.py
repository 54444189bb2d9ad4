"""Is it right? Exact match of whole answers, in one forward pass.

Greedy decoding gives the right answer exactly when every next-token argmax is right given the right tokens
before it. So one teacher-forced pass decides every problem; greedy.py holds the two verdicts against each
other.
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
class Evaluation:
    """How many answers were wrong, in all and by kind of problem."""

    examples: int
    errors: int
    interval: Interval | None
    """None where every problem was looked at"""
    held_out: Stratum
    """problems no run is ever trained on"""
    strata: tuple[Stratum, ...]
    positive_rate: float | None = None
    """for classifiers: the share answered with class 1; a constant answer shows as 0 or 1"""

    @property
    def exact_match(self) -> float:
        return 1 - self.errors / self.examples


Answers = Callable[[Problems, Callable[[int], None]], Int[Tensor, "model row answer"]]
"""Called with a chunk of problems and a function to report how many are done: what each of the models writes."""


@torch.inference_mode()
def evaluate_chunks(
    model: Model,
    task: Task,
    problems: Iterable[Problems],
    total: int,
    *,
    is_sample: bool,
    gates: Gates | None = None,
    watch: Watch | None = None,
) -> Evaluation:
    """Exact match over chunks of problems; `is_sample` says that they are a sample."""
    was_training = model.training
    model.eval()

    def answers(chunk: Problems, done: Callable[[int], None]) -> Tensor:
        written = []
        for batch in batches(chunk):
            written.append(model(batch.source, batch.answer, gates).argmax(-1))
            done(len(batch))
        return torch.cat(written)[None]

    found = evaluate_answers(answers, task, problems, total, is_sample=is_sample, watch=watch)[0]
    model.train(was_training)
    return found


def evaluate_answers(
    answers: Answers,
    task: Task,
    problems: Iterable[Problems],
    total: int,
    *,
    is_sample: bool,
    watch: Watch | None = None,
) -> list[Evaluation]:
    """The evaluation of each model whose `answers` these are."""
    tally, wrong = Counter[str](), defaultdict[str, Tensor | int](int)
    examples, seen = 0, 0
    errors = positives = torch.zeros(1, dtype=torch.long)

    def done(rows: int) -> None:
        nonlocal seen
        seen += rows
        if watch is not None:
            watch(seen, total)

    for chunk in problems:
        written = answers(chunk, done)
        misses = ~same_answer(written, chunk)  # model row
        for name, values in {HELD_OUT: task.held_out(chunk).long(), **task.strata(chunk)}.items():
            found, place, number = values.unique(return_inverse=True, return_counts=True)
            counts = (misses.float() @ F.one_hot(place).float()).long().cpu()  # model value: exact below 2^24 rows
            for at, (value, count) in enumerate(zip(found.tolist(), number.tolist(), strict=True)):
                tally[f"{name}={value}"] += count
                wrong[f"{name}={value}"] = wrong[f"{name}={value}"] + counts[:, at]
        examples, errors = examples + len(chunk), errors + misses.sum(1).cpu()
        if task.classes is not None:
            positives = positives + (written[..., 0] == 1).sum(1).cpu()

    def of(member: int) -> Evaluation:
        strata = {n: Stratum(n, tally[n], int(torch.as_tensor(wrong[n])[member])) for n in sorted(tally) if tally[n]}
        mistaken = int(errors[member])
        return Evaluation(
            examples,
            mistaken,
            wilson(examples - mistaken, examples) if is_sample else None,
            strata.get(f"{HELD_OUT}=1", Stratum(f"{HELD_OUT}=1", 0, 0)),
            tuple(s for n, s in strata.items() if not n.startswith(HELD_OUT)),
            int(positives[member]) / examples if task.classes is not None else None,
        )

    return [of(member) for member in range(len(errors))]


def evaluate_all(model: Model, task: Task, watch: Watch | None = None) -> Evaluation:
    """Every problem there is."""
    total = number_of_problems(task, "`all`")
    return evaluate_chunks(model, task, list_problems(task, device_of(model)), total, is_sample=False, watch=watch)


def evaluate_sample(
    model: Model,
    task: Task,
    examples: int,
    *,
    seed: int = 0,
    length: int | None = None,
    probe: str = "default",
    gates: Gates | None = None,
    watch: Watch | None = None,
) -> Evaluation:
    """Fresh problems of a probe: of one length, or evenly over the lengths that training shows."""
    problems = sample_problems(task, examples, seed=seed, length=length, probe=probe, device=device_of(model))
    return evaluate_chunks(model, task, problems, examples, is_sample=True, gates=gates, watch=watch)


@torch.inference_mode()
def all_trainable_right(model: Model, task: Task) -> bool:
    """Whether no problem outside the held-out tenth is wrong; looks at the hard ones first.

    The held-out tenth is not looked at: it never steers training, not even when to stop.
    """
    hard = task.testing(seed=0, rows=4096, probe=task.hard_probe, device=device_of(model))
    for chunk in itertools.chain([hard], list_problems(task, device_of(model))):
        for batch in batches(chunk):
            wrong = ~right(model(batch.source, batch.answer), batch)
            if (wrong & ~task.held_out(batch)).any():
                return False
    return True


def device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device
