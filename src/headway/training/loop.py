"""Training one run: from a config to a finished run folder.

A run killed at any moment goes on from its last checkpoint and ends with the same bytes as one never
killed: the problems of a step are a function of the seed and the step, and all other state is in the
checkpoint.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save

from headway.errors import BrokenRun, HeadwayError, TrainingFailed
from headway.evaluation.exact import all_trainable_right, number_of_problems
from headway.machine import environment
from headway.models import build_model
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.tasks import Task, create_task
from headway.tasks.data import Stored
from headway.training.batches import feed
from headway.training.checkpoint import load_checkpoint, remove_checkpoints, save_checkpoint
from headway.training.learner import Learner, Step
from headway.training.tracking import Track, Tracker, find_tracker

LOG_EVERY = 20
CHECKPOINT_EVERY = 100
CHECK_EVERY = 50  # for runs that go on until perfect

Watch = Callable[[int, int, str], None]
"""Told the steps done, the steps in all, and a line of words."""


@dataclass(frozen=True)
class Report:
    """What a run of `train` leaves behind, as in the JSON of the command."""

    run: str
    seed: int
    steps: int
    seconds: float
    parameters: int
    final_loss: float | None
    """None where it is no number"""
    perfect: bool | None
    """whether --until perfect got there; None where it was not asked for"""


def train_run(
    config: RunConfig,
    out: Path,
    *,
    device: torch.device,
    resume: bool = False,
    checkpoint_every: int = CHECKPOINT_EVERY,
    stored: Stored | None = None,
    watch: Watch | None = None,
    tracker: Tracker | None = None,
    may_diverge: bool = False,
) -> Report:
    """Trains the run of `config` in the folder `out`; one that is there already is not trained again.

    A run whose loss is no number ends with an error; as one of many (`may_diverge`) it ends as it is.
    """
    if checkpoint_every < 1:
        raise HeadwayError(f"checkpoint_every is {checkpoint_every}; it must be at least 1")
    task = create_task(config.task, config.options)
    if config.training.until == "perfect":
        number_of_problems(task, "--until perfect")
    folder = RunFolder(out)
    learner = Learner(build_model(config.model, config.seed).to(device), config.training)
    folder.begin(config, environment(device), resume)
    if folder.complete:
        folder.verified()
        remove_checkpoints(folder.checkpoints)
        return report_of(folder, config)
    with (tracker or find_tracker(None))(out, config.name) as track:
        return _Session(task, config, folder, learner, checkpoint_every, watch, track, may_diverge).run(stored)


class _Session:
    """One sitting at a run: from its last checkpoint, if any, to its end."""

    def __init__(
        self,
        task: Task,
        config: RunConfig,
        folder: RunFolder,
        learner: Learner,
        checkpoint_every: int,
        watch: Watch | None,
        track: Track | None,
        may_diverge: bool,
    ) -> None:
        self.task, self.config, self.folder, self.learner = task, config, folder, learner
        self.device = next(learner.model.parameters()).device
        self.checkpoint_every, self.watch, self.track = checkpoint_every, watch, track
        self.may_diverge, self.diverged = may_diverge, False
        self.perfect: bool | None = False if config.training.until == "perfect" else None
        self.clock = Clock(self.device)
        if (found := load_checkpoint(folder.checkpoints)) is not None:
            state, pointer = found
            self.learner.restore(state, pointer.steps)
            self.clock.seconds = pointer.seconds
        folder.rewind_log(self.learner.steps)

    def run(self, stored: Stored | None) -> Report:
        learner, steps = self.learner, self.config.training.steps
        batches = feed(self.task, self.config.training, [self.config.seed], stored, learner.steps, self.device)
        self.clock.start()
        while not self.diverged and not self._is_perfect() and learner.steps < steps:
            last = learner.step(next(batches))
            at_end = learner.steps == steps
            if at_end or learner.steps % LOG_EVERY == 0:
                self._log(last)
            if not self.diverged and (at_end or learner.steps % self.checkpoint_every == 0):
                self.clock.stop()
                self._checkpoint()
                self.clock.start()
        self.clock.stop()
        return self._finish()

    def _is_perfect(self) -> bool:
        """Looked at between steps, so that a resumed run looks where the first one did; and at the end."""
        steps = self.learner.steps
        if self.perfect is None or not (steps and (steps % CHECK_EVERY == 0 or steps == self.config.training.steps)):
            return False
        self.clock.stop()
        self.perfect = all_trainable_right(self.learner.model, self.task)
        self.clock.start()
        return self.perfect

    def _log(self, step: Step) -> None:
        """A line in the log and on the screen; stops where the loss is no number."""
        steps, loss, exact_match = self.learner.steps, float(step.loss), float(step.exact_match)
        if not math.isfinite(loss):
            self._fail(f"the loss is {loss} at step {steps}")
        seconds = self.clock.now()
        speed = steps * self.config.training.batch / seconds
        entry = {
            "step": steps,
            "loss": None if self.diverged else loss,
            "exact_match": exact_match,
            "seconds": round(seconds, 3),
            "examples_per_second": round(speed, 1),
        }
        disk.append_line(self.folder.log, json.dumps(entry))
        if self.track is not None:
            self.track(steps, {"loss": loss, "exact_match": exact_match})
        if self.watch is not None:
            words = f"loss {loss:.4f}  exact match {exact_match:.3f}  {speed:,.0f} examples/s"
            self.watch(steps, self.config.training.steps, words)

    def _checkpoint(self) -> None:
        """Keeps the state, unless a weight is broken: the last good checkpoint is worth more."""
        if not self.learner.finite():
            self._fail(f"a weight is no number after step {self.learner.steps}")
            return
        save_checkpoint(self.folder.checkpoints, self.learner.state(), self.learner.steps, self.clock.seconds)

    def _fail(self, what: str) -> None:
        if self.may_diverge:
            self.diverged = True
            return
        found = load_checkpoint(self.folder.checkpoints)
        kept = f"the checkpoint of step {found[1].steps} is kept" if found else "there was no checkpoint yet"
        raise TrainingFailed(
            f"training stopped: {what}; {kept}. Lower --learning-rate or --muon-rate, with another --out"
        )

    def _finish(self) -> Report:
        model, entries = self.learner.model, self.folder.log_lines()
        if not entries and not self.diverged:
            raise BrokenRun(f"{self.folder.log} is missing or empty; restore it or train again elsewhere")
        weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()})
        self.folder.finish(
            weights,
            steps=self.learner.steps,
            seconds=self.clock.seconds,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            final_loss=None if self.diverged else entries[-1]["loss"],
            perfect=self.perfect,
        )
        remove_checkpoints(self.folder.checkpoints)
        return report_of(self.folder, self.config)


class Clock:
    """Seconds spent training, over all sittings; stands still during checks and checkpoints."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self.since: float | None = None

    @property
    def running(self) -> bool:
        return self.since is not None

    def start(self) -> None:
        self.since = time.perf_counter()

    def stop(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds, self.since = self.now(), None

    def now(self) -> float:
        return self.seconds + (0.0 if self.since is None else time.perf_counter() - self.since)


def report_of(folder: RunFolder, config: RunConfig) -> Report:
    ended = folder.training()
    return Report(
        str(folder.path), config.seed, ended.steps, ended.seconds, ended.parameters, ended.final_loss, ended.perfect
    )
