"""Is it right? Exact match of whole answers, in one forward pass.

Greedy decoding gives the right answer exactly when every next-token argmax is right given the right tokens
before it. So one teacher-forced pass decides every problem; greedy.py holds the two verdicts against each
other.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.evaluation.examples import batches, listed, number_of_problems, sampled
from headway.evaluation.intervals import Interval, wilson
from headway.models import Gates, Model
from headway.tasks import Problems, Task

Watch = Callable[[int, int], None]
"""Told the number of problems done and their number in all."""


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


def same_answer(written: Int[Tensor, "row answer"], problems: Problems) -> Bool[Tensor, " row"]:
    """Which written answers are the right ones, up to the end token where there is one."""
    same = written == problems.answer
    if problems.scored is not None:
        same = same | ~problems.scored
    return same.all(1)


def right(logits: Float[Tensor, "row answer token"], problems: Problems) -> Bool[Tensor, " row"]:
    """Which problems have every scored answer token right."""
    return same_answer(logits.argmax(-1), problems)


def loss(logits: Float[Tensor, "row answer token"], problems: Problems) -> Float[Tensor, ""]:
    """Cross-entropy, the mean over the scored answer tokens."""
    if problems.scored is None:
        return F.cross_entropy(logits.flatten(0, 1), problems.answer.flatten())
    return F.cross_entropy(logits[problems.scored], problems.answer[problems.scored])


@torch.inference_mode()
def evaluate_chunks(
    model: Model,
    task: Task,
    problems: Iterable[Problems],
    total: int,
    *,
    stands_for_more: bool,
    gates: Gates | None = None,
    watch: Watch | None = None,
) -> Evaluation:
    """Exact match over chunks of problems; `stands_for_more` says that they are a sample."""
    was_training = model.training
    model.eval()
    tally, wrong = Counter[str](), Counter[str]()
    examples = errors = positives = 0
    for chunk in problems:
        missed = []
        for batch in batches(chunk):
            logits = model(batch.source, batch.answer, gates)
            missed.append(~right(logits, batch))
            if task.classes is not None:
                positives += int((logits.argmax(-1) == 1).sum())
            if watch is not None:
                watch(examples + sum(map(len, missed)), total)
        misses = torch.cat(missed).long()
        for name, values in {"held out": task.held_out(chunk).long(), **task.strata(chunk)}.items():
            counts = (2 * values + misses).bincount().tolist()  # value by value: right, wrong
            for at, count in enumerate(counts):
                tally[f"{name}={at // 2}"] += count
                wrong[f"{name}={at // 2}"] += count * (at % 2)
        examples, errors = examples + len(chunk), errors + int(misses.sum())
    model.train(was_training)
    strata = [Stratum(name, tally[name], wrong[name]) for name in sorted(tally) if tally[name]]
    held_out = next((s for s in strata if s.stratum == "held out=1"), Stratum("held out=1", 0, 0))
    return Evaluation(
        examples,
        errors,
        wilson(examples - errors, examples) if stands_for_more else None,
        held_out,
        tuple(s for s in strata if not s.stratum.startswith("held out")),
        positives / examples if task.classes is not None else None,
    )


def evaluate_all(model: Model, task: Task, watch: Watch | None = None) -> Evaluation:
    """Every problem there is."""
    total = number_of_problems(task, "--all")
    return evaluate_chunks(model, task, listed(task, device_of(model)), total, stands_for_more=False, watch=watch)


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
    problems = sampled(task, examples, seed=seed, length=length, probe=probe, device=device_of(model))
    return evaluate_chunks(model, task, problems, examples, stands_for_more=True, gates=gates, watch=watch)


@torch.inference_mode()
def all_trainable_right(model: Model, task: Task) -> bool:
    """Whether no problem outside the held-out tenth is wrong; looks at the hard ones first.

    The held-out tenth is not looked at: it never steers training, not even when to stop.
    """
    hard = task.testing(seed=0, rows=4096, probe=task.hard_probe, device=device_of(model))
    for chunk in itertools.chain([hard], listed(task, device_of(model))):
        for batch in batches(chunk):
            wrong = ~right(model(batch.source, batch.answer), batch)
            if (wrong & ~task.held_out(batch)).any():
                return False
    return True


def device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device
