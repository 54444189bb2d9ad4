"""Training one run: from a config to a finished run folder; and what that has in common with a stack of runs, which
population.py trains: the clock, the log, the end.

A run killed at any moment goes on from its last checkpoint and ends with the same bytes as one never killed: the
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

LOG_EVERY = 20
CHECKPOINT_EVERY = 100
CHECK_EVERY = 50  # for runs that go on until perfect
RECOVERY_RATE, RECOVERY_WARMUP = 3e-4, 10
Watch = Callable[[int, int, str], None]  # told the steps done, the steps in all, and a line of words


@dataclass(frozen=True)
class RunReport:
    """What a run of `train` leaves behind, as in the JSON of the command."""

    run: str
    seed: int
    steps: int
    seconds: float
    parameters: int
    final_loss: float | None  # None where it is no number
    perfect: bool | None  # whether --until perfect got there; None where it was not asked for


def report_of(folder: RunFolder) -> RunReport:
    ended = folder.training()
    measured = (ended.steps, ended.seconds, ended.parameters, ended.final_loss, ended.perfect)
    return RunReport(str(folder.path), folder.config().seed, *measured)


class Clock:
    """Seconds spent training, over all sessions; stands still during checks and checkpoints."""

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
    """From the last checkpoint, if there is one, to the end of training."""

    def __init__(
        self, config: RunConfig, device: torch.device, checkpoint_every: int | None, watch: Watch | None
    ) -> None:
        if checkpoint_every is not None and checkpoint_every < 1:
            raise HeadwayError(f"checkpoint_every is {checkpoint_every}; it must be at least 1")
        self.task, self.training, self.device = create_task(config.task, config.options), config.training, device
        self.until_perfect = config.training.until == "perfect"
        if self.until_perfect:
            number_of_problems(self.task, "--until perfect")
        self.clock, self.watch = Clock(device), watch
        self.checkpoint_every = checkpoint_every or CHECKPOINT_EVERY

    def is_due(self, steps: int, every: int) -> bool:
        """Whether something done every so many steps, and at the end, is due."""
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
        """Writes the weights of a run, and how its training ended."""
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
    """Trains the run of `config` in the folder `out`; one that is there already is not trained again.

    A run whose loss is no number ends with an error; as one of many (`may_diverge`) it ends as it is.
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
        self.learner = Learner(build_model(config.model, config.seed).to(device), config.training)
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
                if learner.finite():
                    save_checkpoint(folder.checkpoints, learner.state(), learner.steps, self.clock.seconds)
                else:  # the last good checkpoint is worth more
                    self._fail(f"a weight is no number after step {learner.steps}")
                self.clock.start()
        self.clock.stop()
        entries = folder.log_lines()
        if not entries and not self.diverged:
            raise BrokenRun(f"{folder.log} is missing or empty; restore it or train again elsewhere")
        loss = None if self.diverged else entries[-1]["loss"]
        self.finish(folder, learner.model.state_dict(), learner.steps, self.clock.seconds, loss, self.perfect)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)

    def _is_perfect(self) -> bool:
        """Looked at between steps, so that a resumed run looks where the first one did; and at the end."""
        steps = self.learner.steps
        if self.until_perfect and steps and self.is_due(steps, CHECK_EVERY):
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
        disk.append_line(self.folder.log, json.dumps(self.log_entry(steps, loss, exact_match, seconds)))
        if self.track is not None:
            self.track(steps, {"loss": loss, "exact_match": exact_match})
        if self.watch is not None:
            speed = steps * self.training.batch / seconds
            words = f"loss {loss:.4f}  exact match {exact_match:.3f}  {speed:,.0f} examples/s"
            self.watch(steps, self.training.steps, words)

    def _fail(self, what: str) -> None:
        if self.may_diverge:
            self.diverged = True
            return
        found = load_checkpoint(self.folder.checkpoints)
        kept = f"the checkpoint of step {found[1].steps} is kept" if found else "there was no checkpoint yet"
        raise TrainingFailed(
            f"training stopped: {what}; {kept}. Lower --learning-rate or --muon-rate, with another --out"
        )


def recover(model: Model, config: RunConfig, steps: int, watch: Callable[[int, int], object] | None = None) -> float:
    """Trains a model on, in place, after heads were taken out: what can the rest make good? Gives the last loss.

    The problems follow those it was trained on. By AdamW alone: a site without heads has no matrix left for Muon.
    """
    recipe = {"optimizer": "adamw", "learning_rate": RECOVERY_RATE, "warmup": min(RECOVERY_WARMUP, steps)}
    training = replace(config.training, steps=steps, until=None, **recipe)
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
