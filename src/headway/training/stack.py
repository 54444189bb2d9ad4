"""Many models trained as one: every weight has a leading `model` axis.

The model stays the one plain class; `torch.func.vmap` runs it over the stacked weights. The members of a stack
have one shape and one kind of optimizer; seed, rates, momentum, weight decay and warm-up may differ.
A member's numbers do not depend on its neighbours: nothing here mixes the model axis.

On a GPU the step is compiled and the model may run in bfloat16; the weights and the optimizer state stay in
their own precision.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from headway.errors import BrokenRun, HeadwayError
from headway.evaluation.verdicts import loss, right
from headway.machine import compile_on_gpu
from headway.models import Model
from headway.models.dropout import Dropout, keys_of
from headway.runs.config import TrainingConfig
from headway.tasks import Problems
from headway.training.learner import ADAM_EPSILON, Step, betas_of, hidden_matrices, schedule_factor
from headway.training.muon import orthogonalise

Weights = dict[str, Tensor]  # by name, each with a leading axis `model`
PER_MEMBER = ("learning_rate", "muon_rate", "momentum", "weight_decay")


@dataclass(frozen=True)
class Settings:
    """The settings that members may differ in, one row per member."""

    learning_rate: Float[Tensor, " model"]
    muon_rate: Float[Tensor, " model"]
    momentum: Float[Tensor, " model"]
    weight_decay: Float[Tensor, " model"]
    factors: Float[Tensor, "schedule step"]
    """the learning rate of every schedule at every step, as a fraction of its peak"""
    schedule: Int[Tensor, " model"]  # the schedule of each member
    seed: Int[Tensor, " model"]
    betas: tuple[float, float]


def settings_of(configs: Sequence[TrainingConfig], seeds: Sequence[int], device: torch.device) -> Settings:
    schedules = {(config.steps, config.warmup): config for config in configs}
    place = {schedule: row for row, schedule in enumerate(schedules)}
    columns = [[getattr(config, name) for config in configs] for name in PER_MEMBER]
    factors = [[schedule_factor(step, config) for step in range(config.steps)] for config in schedules.values()]
    numbers = (torch.tensor(table, dtype=torch.float64, device=device) for table in (*columns, factors))
    schedule = [place[config.steps, config.warmup] for config in configs]
    which, seed = (torch.tensor(column, device=device) for column in (schedule, seeds))
    return Settings(*numbers, schedule=which, seed=seed, betas=betas_of(configs[0]))


class Stack:
    """A stack of models in training; `steps` counts the steps done, the same for all."""

    def __init__(
        self,
        models: Sequence[Model],
        configs: Sequence[TrainingConfig],
        device: torch.device,
        precision: torch.dtype | None = None,
        one_shape: bool = True,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """With `one_shape` all problems have one length; otherwise steps are captured as CUDA graphs, not compiled.
        `seeds` decide what dropout drops."""
        self.dropout = configs[0].dropout
        self.template, self.precision, self.steps = models[0], precision, 0
        stacked, buffers = stack_module_state(list(models))  # pyright: ignore[reportArgumentType]
        if names := ", ".join(buffers):
            raise HeadwayError(
                f"a population stacks parameters only, but the model also has the buffers {names}; use `seeds` instead"
            )
        self.weights: Weights = {name: tensor.detach().to(device) for name, tensor in stacked.items()}
        hidden = set(hidden_matrices(self.template)) if configs[0].optimizer == "muon" else ()
        first: Weights = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        second: Weights = {name: torch.zeros_like(mean) for name, mean in first.items() if name not in hidden}
        self.parts = {"model": self.weights, "first": first, "second": second}
        self.settings = settings_of(configs, seeds or [0] * len(models), device)
        self.recorded = device.type == "cuda" and not one_shape
        self._losses = self._losses_of if self.recorded else compile_on_gpu(self._losses_of, device)
        self._update = update if self.recorded else compile_on_gpu(update, device)
        self._copy()

    def __len__(self) -> int:
        return len(self.settings.momentum)

    def _copy(self) -> None:
        """Copies the weights in the precision that the model runs in; these leaves receive the gradients."""
        as_run = {name: w.to(self.precision or w.dtype, copy=True) for name, w in self.weights.items()}
        self.leaves = {name: weight.requires_grad_() for name, weight in as_run.items()}
        self._replay = GraphReplay(self._step, (*self.parts.values(), self.leaves))

    def step(self, problems: Problems) -> Step:
        """Trains every member for one step on its rows; those of the first member come first."""
        factor = self.settings.factors[:, self.steps][self.settings.schedule]  # model
        tensors = (problems.source, problems.answer, problems.scored)
        source, answer, *scored = (t.unflatten(0, (len(self), -1)) for t in tensors if t is not None)
        keys = keys_of(self.settings.seed, self.steps) if self.dropout else self.settings.seed
        self.steps += 1
        inputs = (source, answer, factor, factor.new_full((), self.steps), keys, *scored)
        values, exact = self._replay(*inputs) if self.recorded else self._step(*inputs)
        return Step(values.clone(), exact.clone()) if self.recorded else Step(values, exact)

    def _step(
        self, source: Tensor, answer: Tensor, factor: Tensor, steps: Tensor, keys: Tensor, scored: Tensor | None = None
    ) -> tuple[Float[Tensor, " model"], Float[Tensor, " model"]]:
        values, exact = self._losses(self.leaves, source, answer, keys, scored)
        gradients = torch.autograd.grad(values.sum(), list(self.leaves.values()))  # no member affects another's loss
        named = dict(zip(self.leaves, gradients, strict=True))
        copies = {name: leaf.detach() for name, leaf in self.leaves.items()}
        self._update(self.parts, copies, named, self.settings, factor, steps)
        return values.detach(), exact

    def _losses_of(
        self, weights: Weights, source: Tensor, answer: Tensor, keys: Tensor, scored: Tensor | None
    ) -> tuple[Float[Tensor, " model"], Float[Tensor, " model"]]:
        def member_loss(
            own: Weights, source: Tensor, answer: Tensor, key: Tensor, scored: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            dropout = Dropout(key, self.dropout) if self.dropout else None
            logits = functional_call(self.template, own, (source, answer), {"dropout": dropout})
            problems = Problems(source, answer, scored)
            return loss(logits.float() if self.precision else logits, problems), right(logits, problems).float().mean()

        axes = (0, 0, 0, 0, None if scored is None else 0)
        return vmap(member_loss, in_dims=axes)(weights, source, answer, keys, scored)

    def finite(self) -> Tensor:
        """Returns which members have only finite weights."""
        sums = [weight.reshape(len(weight), -1).sum(1) for weight in self.weights.values()]
        return torch.stack(sums).isfinite().all(0)

    def keep(self, rows: Int[Tensor, " some"]) -> None:
        """Drops all members but these."""
        for table in self.parts.values():
            for name, tensor in table.items():
                table[name] = tensor[rows]
        kept = {name: getattr(self.settings, name)[rows] for name in (*PER_MEMBER, "schedule", "seed")}
        self.settings = replace(self.settings, **kept)
        self._copy()

    def state(self) -> Weights:
        """Returns everything that the next step depends on."""
        return {f"{part}/{name}": t.cpu() for part, table in self.parts.items() for name, t in table.items()}

    def restore(self, table: Weights, steps: int) -> None:
        """Resumes from a table of tensors; rejects one that does not match this stack."""
        wanted = {f"{part}/{name}": tensor.shape for part, own in self.parts.items() for name, tensor in own.items()}
        for name in {**wanted, **table}:
            there = table.get(name)
            if there is None or there.shape != wanted.get(name) or not there.is_floating_point():
                raise BrokenRun(f"the checkpoint is of another stack: {name} does not match; delete it to start again")
        for name, tensor in table.items():
            part, _, weight = name.partition("/")
            self.parts[part][weight] = tensor.to(self.parts[part][weight].device)
        self.steps = steps
        self._copy()


@torch.no_grad()
def update(
    parts: dict[str, Weights], copies: Weights, gradients: Weights, settings: Settings, factor: Tensor, steps: Tensor
) -> None:
    """Applies AdamW and Muon to the stack in place: for each member the same step as in learner.py.

    `parts` are the weights, and their first and second moments; Muon has no second. `copies` are the weights in the
    precision that the model runs in; `factor` is each member's learning rate as a fraction of its peak.
    """
    (weights, first, second), precision = parts.values(), next(iter(gradients.values())).dtype
    by_shape: dict[torch.Size, list[str]] = defaultdict(list)
    for name in (name for name in weights if name not in second):
        by_shape[weights[name].shape[-2:]].append(name)
    for (rows, columns), names in by_shape.items():
        moved = []
        for name in names:
            gradient, momentum = gradients[name].to(weights[name].dtype), _broadcast(settings.momentum, weights[name])
            first[name].lerp_(gradient, 1 - momentum)
            moved.append(gradient.lerp(first[name], momentum.expand_as(gradient)).reshape(-1, rows, columns))
        pieces = orthogonalise(torch.cat(moved), precision).split([len(piece) for piece in moved])
        for name, piece in zip(names, pieces, strict=True):
            step = _broadcast(settings.muon_rate * factor, weights[name])
            weights[name].mul_(1 - step * _broadcast(settings.weight_decay, weights[name]))
            weights[name].sub_(step * max(1, rows / columns) ** 0.5 * piece.view_as(weights[name]))
            copies[name].copy_(weights[name])
    (beta, gamma), corrections = settings.betas, [1 - power**steps for power in settings.betas]
    for name, mean in second.items():
        weight, gradient = weights[name], gradients[name].to(weights[name].dtype)
        step = _broadcast(settings.learning_rate * factor, weight)
        first[name].lerp_(gradient, 1 - beta)
        mean.mul_(gamma).add_((1 - gamma) * gradient * gradient)
        spread = mean.sqrt() / corrections[1].sqrt().to(weight.dtype) + ADAM_EPSILON
        weight.mul_(1 - step * _broadcast(settings.weight_decay, weight))
        weight.sub_(step / corrections[0].to(weight.dtype) * first[name] / spread)
        copies[name].copy_(weight)


def _broadcast(column: Float[Tensor, " model"], weight: Tensor) -> Tensor:
    """Reshapes one number per member so that it broadcasts over the weight."""
    return column.to(weight.dtype).view(-1, *[1] * (weight.ndim - 1))


class GraphReplay:
    """Captures GPU work as a CUDA graph once for each shape of its inputs and replays it, without launch overhead.

    `work` takes tensors and changes those of `state` in place; the next call overwrites what it returns. Compiling
    makes faster kernels but takes many seconds for every shape; capturing takes a moment. So steps are captured if
    the training problems have several lengths.
    """

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], state: Sequence[dict[str, Tensor]]) -> None:
        self.work, self.state = work, state
        self.recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor, ...]]] = {}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        shape = tuple(tensor.shape for tensor in inputs)
        if shape not in self.recorded:
            self.recorded[shape] = self._record(inputs)
        graph, static, results = self.recorded[shape]
        for buffer, given in zip(static, inputs, strict=True):
            buffer.copy_(given)
        graph.replay()
        return results

    def _record(self, inputs: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor, ...]]:
        static, changed = [tensor.clone() for tensor in inputs], [t for table in self.state for t in table.values()]
        before = [tensor.detach().clone() for tensor in changed]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # warm-up: one-time setup must not be captured
                self.work(*static)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for tensor, kept in zip(changed, before, strict=True):
                tensor.copy_(kept)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.work(*static)
        return graph, static, results
