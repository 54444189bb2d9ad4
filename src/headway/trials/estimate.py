"""What trials would cost, before they run: a few steps of some of their shapes are timed on this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headway.models import build_model
from headway.runs.config import RunConfig
from headway.tasks import create_task
from headway.training.batches import draw_batches
from headway.training.learner import Learner
from headway.training.population import alike
from headway.trials.trial import Trial

SHAPES = 8
"""so many are timed at most; the others take as long, a step, as the timed one next in size"""
WARM, TIMED, ENOUGH = 1, 8, 1.0


@dataclass(frozen=True)
class Estimate:
    seconds: float
    """of training, all trials one after another"""
    shapes: int
    timed: int

    @property
    def words(self) -> str:
        return f"by a few steps of {self.timed} of {self.shapes} shapes, training alone; studies come on top"


def estimate(trials: Sequence[Trial], device: torch.device) -> Estimate:
    """Seconds to train these."""
    shapes: dict[str, RunConfig] = {}
    of_trial = {}
    for trial in trials:
        key = alike(trial.config).digest
        shapes.setdefault(key, trial.config)
        of_trial[trial.address] = key
    sizes = {key: _size(config) for key, config in shapes.items()}
    ordered = sorted(shapes, key=sizes.__getitem__)
    count = min(SHAPES, len(ordered))
    chosen = {ordered[round(place * (len(ordered) - 1) / max(count - 1, 1))] for place in range(count)}
    timed = {key: _seconds_a_step(shapes[key], device) for key in chosen}

    def step(key: str) -> float:
        near = min(timed, key=lambda other: abs(sizes[other] - sizes[key]))
        return timed[near] * sizes[key] / sizes[near]

    seconds = sum(step(of_trial[trial.address]) * trial.config.training.steps for trial in trials)
    return Estimate(seconds, len(shapes), len(chosen))


def _size(config: RunConfig) -> float:
    """Roughly the work of a step: tokens times weights."""
    model = config.model
    layers = model.layers + (model.decoder_layers if model.kind == "encoder-decoder" else 0)
    weights = layers * (4 * model.d_model**2 + 2 * model.d_model * model.d_ff)
    return float(weights * config.training.batch * (model.trained + model.trained_answer))


def _seconds_a_step(config: RunConfig, device: torch.device) -> float:
    task = create_task(config.task, config.options)
    learner = Learner(build_model(config.model, config.seed).to(device), config.training)
    batches = draw_batches(task, config.training, [config.seed], None, 0, device)
    for _ in range(WARM):
        learner.step(next(batches))
    steps, began = 0, time.perf_counter()
    while steps < TIMED and time.perf_counter() - began < ENOUGH:
        learner.step(next(batches))
        steps += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps
