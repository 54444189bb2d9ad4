"""A short training after heads were taken out: what the rest of the model can make good."""

from dataclasses import replace

from headway.evaluation.exact import Watch, device_of
from headway.models import Model
from headway.runs.config import RunConfig
from headway.tasks import create_task
from headway.training.batches import draw_batches
from headway.training.learner import Learner

RATE, WARMUP = 3e-4, 10


def recover(model: Model, config: RunConfig, steps: int, watch: Watch | None = None) -> float:
    """Trains the model in place, on problems that follow those it was trained on; gives the last loss.

    By AdamW alone: a site without heads has no matrix left for Muon.
    """
    training = replace(
        config.training, steps=steps, optimizer="adamw", learning_rate=RATE, warmup=min(WARMUP, steps), until=None
    )
    learner = Learner(model.train(), training)
    task = create_task(config.task, config.options)
    batches = draw_batches(task, training, [config.seed], None, config.training.steps, device_of(model))
    last = None
    for step in range(steps):
        last = learner.step(next(batches))
        if watch is not None:
            watch(step + 1, steps)
    model.eval()
    assert last is not None
    return float(last.loss)
