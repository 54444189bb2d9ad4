"""A model being trained: its optimizers, its learning rate, one step at a time.

Hidden matrices learn by Muon where asked; embeddings, norms, biases and the output layer always by AdamW.
All its state is a flat table of tensors, which checkpoint.py keeps.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.errors import BrokenRun
from headway.evaluation.verdicts import loss, right
from headway.models import Attention, Model
from headway.models.blocks import FeedForward
from headway.runs.config import TrainingConfig
from headway.tasks import Problems
from headway.training.muon import Muon

ADAM_BETAS, ADAM_EPSILON = (0.9, 0.98), 1e-8
STATE = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum",)}
"""what an optimizer keeps of a weight that it has touched"""


@dataclass(frozen=True)
class Step:
    """What a step saw before it changed the weights; tensors, so that a GPU need not be waited for."""

    loss: Tensor
    exact_match: Tensor


def rate(step: int, config: TrainingConfig) -> float:
    """The learning rate's share of its peak: a linear rise, then half a cosine down to nothing."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def hidden_matrices(model: nn.Module) -> list[str]:
    """The names of the weights that Muon takes: the matrices inside attention and feed-forward."""
    owners = [(name, module) for name, module in model.named_modules() if isinstance(module, Attention | FeedForward)]
    return [f"{owner}.{name}" for owner, module in owners for name, p in module.named_parameters() if p.ndim >= 2]


class Learner:
    def __init__(self, model: Model, config: TrainingConfig) -> None:
        self.model, self.config, self.steps = model, config, 0
        parameters = dict(model.named_parameters())
        hidden = hidden_matrices(model) if config.optimizer == "muon" else []
        rest = [name for name in parameters if name not in set(hidden)]
        adamw = torch.optim.AdamW(
            [parameters[n] for n in rest], betas=ADAM_BETAS, eps=ADAM_EPSILON, weight_decay=config.weight_decay
        )
        self.parts: list[tuple[torch.optim.Optimizer, float, list[str]]] = [(adamw, config.learning_rate, rest)]
        if hidden:
            muon = Muon([parameters[n] for n in hidden], momentum=config.momentum, weight_decay=config.weight_decay)
            self.parts.append((muon, config.muon_rate, hidden))

    def step(self, problems: Problems) -> Step:
        logits = self.model(problems.source, problems.answer)
        value = loss(logits, problems)
        value.backward()
        share = rate(self.steps, self.config)
        for optimizer, peak, _ in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * share
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        return Step(value.detach(), right(logits.detach(), problems).float().mean())

    def finite(self) -> bool:
        """Whether every weight is a number."""
        with torch.no_grad():
            return bool(torch.stack([p.sum() for p in self.model.parameters()]).isfinite().all())

    def state(self) -> dict[str, Tensor]:
        """Everything the next step depends on."""
        table = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for optimizer, _, names in self.parts:
            entries = optimizer.state_dict()["state"]
            table |= {f"{names[at]}/{key}": value for at, entry in entries.items() for key, value in entry.items()}
        return {name: tensor.detach().cpu().contiguous() for name, tensor in table.items()}

    def restore(self, table: dict[str, Tensor], steps: int) -> None:
        """Goes on from a table; one is refused whose names, shapes or steps are not those of this model."""
        wanted = {f"model/{name}": tensor.shape for name, tensor in self.model.state_dict().items()}
        for optimizer, _, names in self.parts:
            for name, weight in zip(names, optimizer.param_groups[0]["params"], strict=True):
                shapes = {key: () if key == "step" else weight.shape for key in STATE[type(optimizer)]}
                own = {f"{name}/{key}": torch.Size(shape) for key, shape in shapes.items()}
                wanted |= own if own.keys() & table.keys() else {}  # a weight may be untouched yet
        for name in {**wanted, **table}:
            there = table.get(name)
            fits = there is not None and there.shape == wanted.get(name) and there.is_floating_point()
            if not fits or (name.endswith("/step") and not 1 <= float(table[name]) <= steps):
                raise BrokenRun(f"the checkpoint is of another model: {name} does not fit; delete it to begin again")
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
