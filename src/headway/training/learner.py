"""The learner: a model, its optimizers and its learning rate, trained one step at a time.

Hidden matrices use Muon if the config says so; embeddings, norms, biases and the output layer always use AdamW
(or Adam: the same without weight decay, with other betas).
All its state is a flat table of tensors, which checkpoint.py saves.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.errors import BrokenRun
from headway.evaluation.verdicts import loss, right
from headway.models import Attention, Model
from headway.models.blocks import FeedForward
from headway.models.dropout import Dropout, keys_of
from headway.runs.config import TrainingConfig
from headway.tasks import Problems
from headway.training.adamw import AdamW, spare_dynamo
from headway.training.muon import Muon

BETAS, ADAM_BETAS, ADAM_EPSILON = (0.9, 0.98), (0.9, 0.999), 1e-8
STATE = {AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum",)}
"""the state that an optimizer has for each weight it has updated"""


@dataclass(frozen=True)
class Step:
    """The loss and accuracy of a step before its update; tensors, so that nothing waits for the GPU."""

    loss: Tensor
    exact_match: Tensor


def schedule_factor(step: int, config: TrainingConfig) -> float:
    """Returns the learning rate as a fraction of its peak: linear warm-up, then cosine decay to 0 or no decay."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def betas_of(config: TrainingConfig) -> tuple[float, float]:
    return ADAM_BETAS if config.optimizer == "adam" else BETAS


def hidden_matrices(model: nn.Module) -> list[str]:
    """Returns the names of the weights that Muon updates: the matrices of attention and feed-forward layers."""
    owners = [(name, module) for name, module in model.named_modules() if isinstance(module, Attention | FeedForward)]
    return [f"{owner}.{name}" for owner, module in owners for name, p in module.named_parameters() if p.ndim >= 2]


class Learner:
    def __init__(self, model: Model, config: TrainingConfig, seed: int = 0) -> None:
        """`seed` decides what dropout drops."""
        self.model, self.config, self.steps, self.seed = model, config, 0, torch.tensor([seed])
        spare_dynamo()
        parameters = dict(model.named_parameters())
        hidden = hidden_matrices(model) if config.optimizer == "muon" else []
        rest = [name for name in parameters if name not in set(hidden)]
        adamw = AdamW(
            [parameters[n] for n in rest], betas=betas_of(config), eps=ADAM_EPSILON, weight_decay=config.weight_decay
        )
        self.parts: list[tuple[torch.optim.Optimizer, float, list[str]]] = [(adamw, config.learning_rate, rest)]
        if hidden:
            muon = Muon([parameters[n] for n in hidden], momentum=config.momentum, weight_decay=config.weight_decay)
            self.parts.append((muon, config.muon_rate, hidden))

    def step(self, problems: Problems) -> Step:
        logits = self.model(problems.source, problems.answer, dropout=self._dropout(problems.source.device))
        value = loss(logits, problems)
        value.backward()
        factor = schedule_factor(self.steps, self.config)
        for optimizer, peak, _ in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        return Step(value.detach(), right(logits.detach(), problems).float().mean())

    def _dropout(self, device: torch.device) -> Dropout | None:
        rate = self.config.dropout
        return Dropout(keys_of(self.seed, self.steps)[0].to(device), rate) if rate else None

    def is_finite(self) -> bool:
        """Returns whether every weight is finite."""
        with torch.no_grad():
            return bool(torch.stack([p.sum() for p in self.model.parameters()]).isfinite().all())

    def state(self) -> dict[str, Tensor]:
        """Returns everything that the next step depends on."""
        table = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for optimizer, _, names in self.parts:
            entries = optimizer.state_dict()["state"]
            table |= {f"{names[at]}/{key}": value for at, entry in entries.items() for key, value in entry.items()}
        return {name: tensor.detach().cpu().contiguous() for name, tensor in table.items()}

    def restore(self, table: dict[str, Tensor], steps: int) -> None:
        """Resumes from a table of tensors; rejects one whose names, shapes or steps do not match this model."""
        wanted = {f"model/{name}": tensor.shape for name, tensor in self.model.state_dict().items()}
        for optimizer, _, names in self.parts:
            for name, weight in zip(names, optimizer.param_groups[0]["params"], strict=True):
                shapes = {key: () if key == "step" else weight.shape for key in STATE[type(optimizer)]}
                own = {f"{name}/{key}": torch.Size(shape) for key, shape in shapes.items()}
                wanted |= own if own.keys() & table.keys() else {}  # a weight may not have been updated yet
        for name in {**wanted, **table}:
            there = table.get(name)
            fits = there is not None and there.shape == wanted.get(name) and there.is_floating_point()
            if not fits or (name.endswith("/step") and not 1 <= float(table[name]) <= steps):
                raise BrokenRun(f"the checkpoint is of another model: {name} does not match; delete it to start again")
        weights = {name.removeprefix("model/"): t for name, t in table.items() if name.startswith("model/")}
        self.model.load_state_dict(weights)
        for optimizer, _, names in self.parts:
            kept = {
                at: {key: table[f"{name}/{key}"] for key in STATE[type(optimizer)]}
                for at, name in enumerate(names)
                if f"{name}/{STATE[type(optimizer)][0]}" in table
            }
            optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
        self.steps = steps
