"""Evaluates many models of one shape as one: their weights have a leading `model` axis, the problems are shared.

A pass in a fast precision decides every problem whose margin is wide. (The margin is the lead of the right token over
the best other one, at the answer token where that is smallest.) The rest is decided again in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from headway.evaluation.examples import list_problems
from headway.evaluation.verdicts import NARROW, leads, same_answer
from headway.machine import compile_on_gpu, full_precision_matmul, halve_on_out_of_memory
from headway.models import Model
from headway.tasks import Problems, Task

PASS_TOKENS = 6_000_000  # in one pass, over all members


class StackedModels:
    """Models of one shape that answer the same problems; compiled for a GPU where the shapes stay the same."""

    def __init__(
        self, model: Model, weights: dict[str, Tensor], precision: torch.dtype = torch.float32, one_shape: bool = True
    ) -> None:
        self.template, self.weights, self.precision = model, weights, precision
        self.fast = {name: weight.to(precision) for name, weight in weights.items()}
        first = next(iter(weights.values()))
        self.members, self.device = len(first), first.device
        self._pass = compile_on_gpu(self._run_pass, self.device) if one_shape else self._run_pass

    @staticmethod
    def of(models: Sequence[Model], precision: torch.dtype = torch.float32) -> StackedModels:
        weights, _ = stack_module_state(list(models))  # pyright: ignore[reportArgumentType]
        return StackedModels(models[0], {name: weight.detach() for name, weight in weights.items()}, precision)

    def select(self, rows: Int[Tensor, " some"]) -> StackedModels:
        """Returns a stack of only these members."""
        weights = {name: weight[rows] for name, weight in self.weights.items()}
        fewer = StackedModels(self.template, weights, self.precision, one_shape=False)
        fewer._pass = self._pass  # compiled once
        return fewer

    @torch.no_grad()
    def answers(
        self, chunk: Problems, done: Callable[[int], None] = lambda rows: None
    ) -> Int[Tensor, "model row answer"]:
        """Returns the answers of each member, each token given the right tokens before it."""
        tokens = chunk.source.shape[1] + chunk.answer.shape[1]
        rows = max(1, min(len(chunk), PASS_TOKENS // (self.members * tokens)))
        written, narrow = [], []
        for start in range(0, len(chunk), rows):
            at = torch.arange(start, start + rows, device=chunk.source.device).clamp(max=len(chunk) - 1)
            answers, margin = self._answer(chunk[at])  # the last pass is padded: every pass has one shape
            kept = min(rows, len(chunk) - start)
            written.append(answers[:, :kept])
            narrow.append(margin[:, :kept] < NARROW[self.precision])
            done(kept)
        return self._decide_narrow(chunk, torch.cat(written, dim=1), torch.cat(narrow, dim=1))

    def _answer(self, problems: Problems) -> tuple[Tensor, Tensor]:
        """Runs one pass, or one for each half of the problems where memory runs out."""

        def run(rows: slice) -> tuple[Tensor, Tensor]:
            return self._pass(self.fast, problems.source[rows], problems.answer[rows])

        answers, margins = zip(*halve_on_out_of_memory(run, len(problems)), strict=True)
        return torch.cat(answers, dim=1), torch.cat(margins, dim=1)

    def _run_pass(
        self, weights: dict[str, Tensor], source: Tensor, answer: Tensor
    ) -> tuple[Int[Tensor, "model row answer"], Float[Tensor, "model row"]]:
        def run_member(own: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            logits = functional_call(self.template, own, (source, answer)).float()
            return logits.argmax(-1).to(torch.int16), leads(logits, answer).amin(-1)

        return vmap(run_member)(weights)

    def _decide_narrow(self, chunk: Problems, written: Tensor, narrow: Bool[Tensor, "model row"]) -> Tensor:
        """Computes the answers with a narrow margin again in float32."""
        doubtful = narrow.any(1).nonzero()[:, 0]
        if not len(doubtful):
            return written
        own = {name: weight[doubtful] for name, weight in self.weights.items()}
        rows = narrow[doubtful].byte().argsort(dim=1, descending=True, stable=True)  # doubtful row
        most = int(narrow.sum(1).max())
        tokens = chunk.source.shape[1] + chunk.answer.shape[1]
        step = max(1, PASS_TOKENS // (2 * len(doubtful) * tokens))

        def run_member(own: dict[str, Tensor], source: Tensor, answer: Tensor) -> Tensor:
            return functional_call(self.template, own, (source, answer)).argmax(-1)

        with full_precision_matmul():
            for start in range(0, most, step):
                some = rows[:, start : min(start + step, most)]
                again = vmap(run_member)(own, chunk.source[some], chunk.answer[some])
                written[doubtful[:, None], some] = again.to(written.dtype)
        return written


@torch.no_grad()
def trainable_right(models: StackedModels, task: Task) -> Bool[Tensor, " model"]:
    """Returns which members have every problem outside the held-out tenth right; testing stops at an error."""
    perfect = torch.ones(models.members, dtype=torch.bool, device=models.device)
    alive = torch.arange(models.members, device=models.device)
    hard = task.testing(seed=0, rows=4096, probe=task.hard_probe, device=models.device)
    for chunk in itertools.chain([hard], list_problems(task, models.device)):
        right = (same_answer(models.answers(chunk), chunk) | task.held_out(chunk)).all(1)
        if not right.all():
            perfect[alive[~right]] = False
            alive = alive[right]
            if not len(alive):
                break
            models = models.select(right.nonzero()[:, 0])
    return perfect
