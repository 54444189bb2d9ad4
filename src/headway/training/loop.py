"""Training one run: from a config to a finished run folder.

A run killed at any moment goes on from its last checkpoint and ends with the same bytes as one never
killed: the problems of a step are a function of the seed and the step, and all other state is in the
checkpoint.
"""

import json
import math
from pathlib import Path

import torch

from headway.errors import BrokenRun, TrainingFailed
from headway.evaluation.exact import all_trainable_right
from headway.machine import environment
from headway.models import build_model
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder
from headway.tasks.data import Stored
from headway.training.batches import draw_batches
from headway.training.checkpoint import load_checkpoint, remove_checkpoints, save_checkpoint
from headway.training.learner import Learner, Step
from headway.training.session import CHECK_EVERY, LOG_EVERY, RunReport, Session, Watch, report_of
from headway.training.tracking import Log, Tracker, find_tracker


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
    session = RunSession(config, folder, device, checkpoint_every, watch, may_diverge)
    folder.begin(config, environment(device), resume)
    if folder.complete:
        folder.verified()
        remove_checkpoints(folder.checkpoints)
    else:
        with (tracker or find_tracker(None))(out, config.name) as session.track:
            session.run(stored)
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
        may_diverge: bool,
    ) -> None:
        super().__init__(config, device, checkpoint_every, watch)
        self.folder, self.seed, self.may_diverge = folder, config.seed, may_diverge
        self.learner = Learner(build_model(config.model, config.seed).to(device), config.training)
        self.track: Log | None = None
        self.diverged = self.perfect = False

    def run(self, stored: Stored | None) -> None:
        learner, steps = self.learner, self.training.steps
        self._resume()
        batches = draw_batches(self.task, self.training, [self.seed], stored, learner.steps, self.device)
        self.clock.start()
        while not self.diverged and not self._is_perfect() and learner.steps < steps:
            last = learner.step(next(batches))
            if self.is_due(learner.steps, LOG_EVERY):
                self._log(last)
            if not self.diverged and self.is_due(learner.steps, self.checkpoint_every):
                self.clock.stop()
                self._checkpoint()
                self.clock.start()
        self.clock.stop()
        self._finish()

    def _resume(self) -> None:
        if (found := load_checkpoint(self.folder.checkpoints)) is not None:
            state, pointer = found
            self.learner.restore(state, pointer.steps)
            self.clock.seconds = pointer.seconds
        self.folder.rewind_log(self.learner.steps)

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

    def _finish(self) -> None:
        entries = self.folder.log_lines()
        if not entries and not self.diverged:
            raise BrokenRun(f"{self.folder.log} is missing or empty; restore it or train again elsewhere")
        weights, loss = self.learner.model.state_dict(), None if self.diverged else entries[-1]["loss"]
        self.finish(self.folder, weights, self.learner.steps, self.clock.seconds, loss, self.perfect)
        remove_checkpoints(self.folder.checkpoints)
