"""Training one run, from a config to a finished run folder; and the clock, the log and the ending that it shares with
a stack of runs, which population.py trains.

A run killed at any moment resumes from its last checkpoint and ends with the same bytes as one never killed: the
problems of a step are a function of the seed and the step, and all other state is in the checkpoint.
"""

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from headway.errors import BrokenRun, HeadwayError, TrainingFailed
from headway.evaluation.exact import all_trainable_right, device_of
from headway.evaluation.examples import number_of_problems
from headway.machine import environment
from headway.models import Model, build_model
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import LogEntry, RunFolder
from headway.tasks import create_task
from headway.tasks.data import Stored
from headway.training.batches import draw_batches
from headway.training.checkpoint import load_checkpoint, save_checkpoint
from headway.training.learner import Learner, Step
from headway.training.tracking import Log, Tracker, find_tracker
from headway.training.validation import VALIDATE_EVERY, Validation, ValidationJson

LOG_EVERY = 20
CHECKPOINT_EVERY = 100
CHECK_EVERY = 50  # for runs that train until perfect
RECOVERY_RATE, RECOVERY_WARMUP = 3e-4, 10
Watch = Callable[[int, int, str], None]  # called with the steps done, the total, and a status line


@dataclass(frozen=True)
class RunReport:
    """The outcome of a training run, as in the JSON of the `train` command."""

    run: str
    seed: int
    steps: int
    seconds: float
    parameters: int
    final_loss: float | None  # None if it is not finite
    perfect: bool | None  # whether it became perfect; None unless trained until perfect


def report_of(folder: RunFolder) -> RunReport:
    ended = folder.training()
    measured = (ended.steps, ended.seconds, ended.parameters, ended.final_loss, ended.perfect)
    return RunReport(str(folder.path), folder.config().seed, *measured)


class Clock:
    """Seconds spent training, over all sessions; stopped during checks and checkpoints."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self.since: float | None = None

    def start(self) -> None:
        if self.since is None:
            self.since = time.perf_counter()

    def stop(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds, self.since = self.now(), None

    def now(self) -> float:
        return self.seconds + (0.0 if self.since is None else time.perf_counter() - self.since)


class Session:
    """One stretch of training: from the last checkpoint, if there is one, to the end."""

    def __init__(
        self, config: RunConfig, device: torch.device, checkpoint_every: int | None, watch: Watch | None
    ) -> None:
        if checkpoint_every is not None and checkpoint_every < 1:
            raise HeadwayError(f"checkpoint_every is {checkpoint_every}; it must be at least 1")
        self.task, self.training, self.device = create_task(config.task, config.options), config.training, device
        self.until_perfect = config.training.until == "perfect"
        if self.until_perfect:
            number_of_problems(self.task, "`until=perfect`")
        self.clock, self.watch = Clock(device), watch
        self.checkpoint_every = checkpoint_every or CHECKPOINT_EVERY

    def is_due(self, steps: int, every: int) -> bool:
        """Returns whether an action is due that happens every `every` steps and at the end."""
        return steps == self.training.steps or steps % every == 0

    def log_entry(self, steps: int, loss: float, exact_match: float, seconds: float) -> LogEntry:
        known = loss if math.isfinite(loss) else None
        took, speed = round(seconds, 3), round(steps * self.training.batch / seconds, 1)
        return {"step": steps, "loss": known, "exact_match": exact_match, "seconds": took, "examples_per_second": speed}

    def finish(
        self,
        folder: RunFolder,
        weights: dict[str, Tensor],
        steps: int,
        seconds: float,
        loss: float | None,
        perfect: bool,
    ) -> None:
        """Writes the weights of a run and the outcome of its training."""
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
        parameters = sum(tensor.numel() for tensor in weights.values())
        folder.finish(content, steps, seconds, parameters, loss, perfect if self.until_perfect else None)


def train_run(
    config: RunConfig,
    out: Path,
    *,
    device: torch.device,
    resume: bool = False,
    checkpoint_every: int | None = None,
    stored: Stored | None = None,
    watch: Watch | None = None,
    tracker: Tracker | None = None,
    may_diverge: bool = False,
) -> RunReport:
    """Trains the run of `config` in the folder `out`; a finished run is not trained again.

    A loss that is not finite raises an error; with `may_diverge`, as one of many runs, it ends the run instead.
    """
    folder = RunFolder(out)
    session = RunSession(config, folder, device, checkpoint_every, watch)
    folder.begin(config, environment(device), resume)
    if folder.complete:
        folder.verify()
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
    else:
        with (tracker or find_tracker(None))(out, config.name) as session.track:
            session.run(stored, may_diverge)
    return report_of(folder)


class RunSession(Session):
    """Trains one run."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        device: torch.device,
        checkpoint_every: int | None,
        watch: Watch | None,
    ) -> None:
        super().__init__(config, device, checkpoint_every, watch)
        self.folder, self.seed = folder, config.seed
        self.learner = Learner(build_model(config.model, config.seed).to(device), config.training, config.seed)
        self.validation = Validation.draw(self.task, device)
        self.track: Log | None = None
        self.diverged = self.perfect = False

    def run(self, stored: Stored | None, may_diverge: bool) -> None:
        learner, folder, self.may_diverge = self.learner, self.folder, may_diverge
        if (found := load_checkpoint(folder.checkpoints)) is not None:
            learner.restore(found[0], found[1].steps)
            self.clock.seconds = found[1].seconds
        folder.rewind_log(learner.steps)
        batches = draw_batches(self.task, self.training, [self.seed], stored, learner.steps, self.device)
        self.clock.start()
        while not self.diverged and not self._is_perfect() and learner.steps < self.training.steps:
            last = learner.step(next(batches))
            if self.is_due(learner.steps, LOG_EVERY):
                self._log(last)
            if not self.diverged and self.is_due(learner.steps, self.checkpoint_every):
                self.clock.stop()
                if learner.is_finite():
                    save_checkpoint(folder.checkpoints, learner.state(), learner.steps, self.clock.seconds)
                else:  # the last good checkpoint is worth more
                    self._fail(f"a weight is not finite after step {learner.steps}")
                self.clock.start()
        self.clock.stop()
        entries = folder.log_lines()
        if not entries and not self.diverged:
            raise BrokenRun(f"{folder.log} is missing or empty; restore it, or train again in another folder")
        loss = None if self.diverged else entries[-1]["loss"]
        self.finish(folder, learner.model.state_dict(), learner.steps, self.clock.seconds, loss, self.perfect)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)

    def _is_perfect(self) -> bool:
        """Checks every CHECK_EVERY steps and at the end, so that a resumed run checks at the same steps."""
        steps = self.learner.steps
        if self.until_perfect and steps and self.is_due(steps, CHECK_EVERY):
            self.clock.stop()
            self.perfect = all_trainable_right(self.learner.model, self.task)
            self.clock.start()
        return self.perfect

    def _log(self, step: Step) -> None:
        """Writes a log line and shows progress; stops if the loss is not finite."""
        steps, loss, exact_match = self.learner.steps, float(step.loss), float(step.exact_match)
        if not math.isfinite(loss):
            self._fail(f"the loss is {loss} at step {steps}")
        seconds, held_out = self.clock.now(), self._validate()
        line = {**self.log_entry(steps, loss, exact_match, seconds), **(held_out or {})}
        disk.append_line(self.folder.log, json.dumps(line))
        if self.track is not None:
            numbers = {"loss": loss, "exact_match": exact_match, **(held_out or {})}
            self.track(steps, {name: math.nan if value is None else value for name, value in numbers.items()})
        if self.watch is not None:
            speed = steps * self.training.batch / seconds
            words = f"loss {loss:.4f}  exact match {exact_match:.3f}  {speed:,.0f} examples/s"
            self.watch(steps, self.training.steps, words)

    def _validate(self) -> ValidationJson | None:
        """Measures the held-out problems where that is due, off the clock."""
        if not self.is_due(self.learner.steps, VALIDATE_EVERY):
            return None
        self.clock.stop()
        found = self.validation.measure(self.learner.model)
        self.clock.start()
        return found

    def _fail(self, what: str) -> None:
        if self.may_diverge:
            self.diverged = True
            return
        found = load_checkpoint(self.folder.checkpoints)
        kept = f"the checkpoint of step {found[1].steps} is kept" if found else "there was no checkpoint yet"
        raise TrainingFailed(
            f"training stopped: {what}; {kept}. Lower `learning_rate` or `muon_rate`, and choose another `out`"
        )


def recover(model: Model, config: RunConfig, steps: int, watch: Callable[[int, int], object] | None = None) -> float:
    """Trains a pruned model further, in place, so that the remaining heads can compensate; returns the last loss.

    The problems continue those of its training. Uses AdamW alone: a site without heads has no matrix left for Muon.
    """
    warmup = min(RECOVERY_WARMUP, steps)
    recipe = {"optimizer": "adamw", "learning_rate": RECOVERY_RATE, "warmup": warmup, "schedule": "cosine"}
    training = replace(config.training, steps=steps, until=None, dropout=0.0, **recipe)
    task = create_task(config.task, config.options)
    learner = Learner(model.train(), training)
    batches = draw_batches(task, training, [config.seed], None, config.training.steps, device_of(model))
    losses = torch.zeros(0)
    for step in range(steps):
        losses = learner.step(next(batches)).loss
        if watch is not None:
            watch(step + 1, steps)
    model.eval()
    return float(losses)
