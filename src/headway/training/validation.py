"""Validation while a run trains: the loss and accuracy on a fixed batch of held-out problems, now and then.

It changes nothing: no gradient, no random number of training is used, and what it finds never steers training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch

from headway.evaluation.verdicts import losses_of, right
from headway.models import Model
from headway.tasks import Problems, Task

VALIDATE_EVERY = 100  # steps; with so few problems it takes less than 2% of the time of training
PROBLEMS, LENGTHS = 256, 5  # in total, and different lengths at most: the shortest, the longest and some in between
DRAWN = 14  # problems drawn for each that is wanted: a tenth of all is held out
SEED = 1_234_567  # of the validation problems, the same in every run


class ValidationJson(TypedDict):
    validation_loss: float | None  # None where it is not finite
    validation_exact_match: float


@dataclass(frozen=True)
class Validation:
    batches: tuple[Problems, ...]  # one for each length

    @staticmethod
    def draw(task: Task, device: torch.device) -> Validation:
        """Draws the held-out problems; fewer, or none, where a task has hardly any."""
        shortest, longest = task.lengths
        count = min(LENGTHS, longest - shortest + 1)
        lengths = sorted({shortest + (longest - shortest) * place // max(1, count - 1) for place in range(count)})
        wanted, found = math.ceil(PROBLEMS / len(lengths)), []
        for length in lengths:
            drawn = task.testing(SEED, DRAWN * wanted, length=length)
            some = drawn[task.held_out(drawn).nonzero()[:wanted, 0]]
            found += [some.to(device)] if len(some) else []
        return Validation(tuple(found))

    def measure(self, model: Model) -> ValidationJson | None:
        """Returns the mean loss and the share of right answers; None if there are no held-out problems."""
        if not self.batches:
            return None
        was_training, device = model.training, self.batches[0].source.device
        model.eval()
        losses, verdicts = [], []
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            for batch in self.batches:
                logits = model(batch.source, batch.answer)
                losses.append(losses_of(logits, batch))
                verdicts.append(right(logits, batch))
        model.train(was_training)
        loss, correct = float(torch.cat(losses).mean()), float(torch.cat(verdicts).double().mean())
        return {"validation_loss": loss if math.isfinite(loss) else None, "validation_exact_match": correct}
