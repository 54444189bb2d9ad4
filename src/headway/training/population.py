"""Training many runs as one stack: hundreds of seeds in the time of a few.

Every member ends as an ordinary run folder, the same as if it had been trained alone. While the population trains, its
state is one checkpoint in the folder that holds them all. A member that becomes perfect, if that is the goal, or whose
loss is no longer finite, ends at once and leaves the stack; every member gets its folder.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.errors import BrokenRun, HeadwayError
from headway.evaluation.stacked import StackedModels, trainable_right
from headway.machine import environment, halve_on_out_of_memory
from headway.models import build_model
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder, difference
from headway.tasks.data import Stored
from headway.training.batches import draw_batches
from headway.training.checkpoint import load_checkpoint, save_checkpoint
from headway.training.learner import Step
from headway.training.loop import CHECK_EVERY, LOG_EVERY, Clock, RunReport, Session, Watch, report_of
from headway.training.stack import Stack

WRITERS = 8
CHECKPOINT_PAUSE = 10  # training time between two checkpoints, as a multiple of the time that one takes
BYTES_PER_SECOND = 500e6


@dataclass(frozen=True)
class Member:
    config: RunConfig
    folder: RunFolder

    @property
    def identity(self) -> int:
        """A number that identifies the config in a tensor of the checkpoint."""
        return int(self.config.digest[:15], 16)


def train_population(
    members: Sequence[Member],
    home: Path,
    *,
    device: torch.device,
    precision: torch.dtype | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    stored: Stored | None = None,
    watch: Watch | None = None,
) -> list[RunReport]:
    """Trains the members as one stack; finished members are not trained again.

    `home` is the folder that holds their folders, and the checkpoint while they train. Without `checkpoint_every`,
    checkpoints take a tenth of the time at most: those of a large stack are big.
    """
    first = shared_config(members[0].config)
    if others := [other for other in (shared_config(member.config) for member in members) if other != first]:
        raise HeadwayError(
            f"members of a population must have one shape: {difference(first, others[0])}; only seed, rates, momentum, "
            "weight_decay and warmup may differ"
        )
    for member in members:
        member.folder.check(member.config, resume)
        if member.folder.complete:
            member.folder.verify()

    for group in _groups(members, home, resume):

        def train(rows: slice, group: list[Member] = group) -> None:
            """Trains these members to their end, from their checkpoint if there is one."""
            some = group[rows]
            try:
                if left := [member for member in some if not member.folder.complete]:
                    StackSession(left, home, device, precision, checkpoint_every, watch, stored).run()
            except torch.OutOfMemoryError:
                if (count := len(some)) > 1:
                    notice = f"{count:,} members do not fit in memory; continuing with {(count + 1) // 2:,} at a time"
                    print(notice, file=sys.stderr)
                raise

        halve_on_out_of_memory(train, len(group))
    shutil.rmtree(home / "checkpoint", ignore_errors=True)
    return [report_of(member.folder) for member in members]


def _groups(members: Sequence[Member], home: Path, resume: bool) -> list[list[Member]]:
    """Groups the unfinished members: those in the checkpoint, then the others."""
    left = [member for member in members if not member.folder.complete]
    alone = next((member for member in left if (member.folder.checkpoints / "latest.json").exists()), None)
    if alone is not None:
        raise HeadwayError(
            f"{alone.folder.path} was started as a single run; finish it with `seed={alone.config.seed}` and "
            "`resume`, or choose another `out`"
        )
    found = load_checkpoint(home / "checkpoint")
    if found is None or not left:
        return [left]
    if not resume:
        raise HeadwayError(f"{home} holds an unfinished population; set `resume` to continue, or choose another `out`")
    _check_state(home, found[0])
    held, known = found[0]["members"].tolist(), {member.identity: member for member in members}
    if any(number not in known for number in held):
        raise HeadwayError(
            f"{home} holds an unfinished population of other members; resume it with the original settings, or choose "
            "another `out`"
        )
    begun = set(held)
    return [[known[number] for number in held], [member for member in left if member.identity not in begun]]


def _check_state(home: Path, state: dict[str, Tensor]) -> None:
    """Rejects a checkpoint that is not of a population: without members, a log, or a row of every table for each."""
    axes = {"members": 1, "precision": 1, "spent": 0, "log/step": 1, "log/seconds": 1, "log/loss": 2, "log/exact": 2}
    whole = all(name in state and state[name].ndim == count for name, count in axes.items())
    rows = len(state["members"]) if whole else 0
    tables = [tensor for name, tensor in state.items() if name.startswith(("model/", "first/", "second/"))]
    tables += [state[name].mT for name in ("log/loss", "log/exact") if whole]
    if not rows or any(tensor.shape[:1] != (rows,) for tensor in tables):
        raise BrokenRun(f"{home / 'checkpoint'} does not hold a population; delete it to start again")


def shared_config(config: RunConfig) -> RunConfig:
    """Returns a config without the settings that members may differ in: equal for all runs that can be stacked."""
    training = replace(config.training, learning_rate=1.0, muon_rate=1.0, momentum=0.0, weight_decay=0.0, warmup=0)
    return replace(config, seed=0, training=training)


class StackSession(Session):
    """Trains a stack of members."""

    def __init__(
        self,
        members: list[Member],
        home: Path,
        device: torch.device,
        precision: torch.dtype | None,
        checkpoint_every: int | None,
        watch: Watch | None,
        stored: Stored | None,
    ) -> None:
        super().__init__(members[0].config, device, checkpoint_every, watch)
        self.members, self.home, self.stored = members, home, stored
        configs = [member.config for member in members]
        models = [build_model(config.model, config.seed) for config in configs]
        shortest, longest = self.task.lengths if stored is None else stored.lengths()
        seeds, trainings = [config.seed for config in configs], [config.training for config in configs]
        self.stack = Stack(models, trainings, device, precision, shortest == longest, seeds)
        self.precision = str(precision or torch.float32).removeprefix("torch.")
        self.about = {**environment(device), "population": len(members), "precision": self.precision}
        self.alive = torch.ones(len(members), dtype=torch.bool)
        self.spent = 0.0  # seconds attributed to each member
        none = torch.zeros(0, dtype=torch.float64)
        lines = torch.zeros(0, len(members))  # line model
        self.log = {"step": none, "seconds": none, "loss": lines, "exact": lines}  # seconds are per member
        self.pause, self.checkpoint_at = CHECKPOINT_PAUSE if checkpoint_every is None else 0, 0.0
        size = sum(tensor.nbytes for table in self.stack.parts.values() for tensor in table.values())
        self.checkpoint_cost = size / BYTES_PER_SECOND  # an estimate until it is measured

    def run(self) -> None:
        self._resume()
        batches = None
        self.clock.start()
        while self.alive.any():
            if batches is None:  # the members have changed
                seeds = [member.config.seed for member in self.members]
                batches = draw_batches(self.task, self.training, seeds, self.stored, self.stack.steps, self.device)
            last, done = self.stack.step(next(batches)), self.stack.steps
            diverged = perfect = torch.zeros_like(self.alive)
            if self.is_due(done, LOG_EVERY):
                diverged = self._log(last)
            if self.until_perfect and self.is_due(done, CHECK_EVERY):
                self._stop_clock()
                perfect = self._find_perfect()
            ended = self.alive & (diverged | perfect | (done == self.training.steps))
            if ended.any():
                self._stop_clock()
                self._finish(ended, diverged, perfect)
                batches = None if self._compact() else batches
            since = self.clock.now() - self.checkpoint_at
            if self.alive.any() and done % self.checkpoint_every == 0 and since >= self.pause * self.checkpoint_cost:
                self._stop_clock()
                self._checkpoint()
            self.clock.start()

    def _find_perfect(self) -> Bool[Tensor, " model"]:
        """Finds the members that have every trainable problem right; skips those that have ended."""
        rows = self.alive.nonzero()[:, 0]
        models = StackedModels(self.stack.template, self.stack.weights, one_shape=False).select(rows.to(self.device))
        perfect = torch.zeros_like(self.alive)
        perfect[rows] = trainable_right(models, self.task).cpu()
        return perfect

    def _stop_clock(self) -> None:
        before = self.clock.seconds
        self.clock.stop()
        self.spent += (self.clock.seconds - before) / max(1, int(self.alive.sum()))

    def _log(self, step: Step) -> Bool[Tensor, " model"]:
        """Adds a log line and shows progress; returns which members have a loss or weight that is not finite."""
        losses, exact, seconds = step.loss.float().cpu(), step.exact_match.float().cpu(), self.clock.now()
        spent = self.spent + (seconds - self.clock.seconds) / max(1, int(self.alive.sum()))
        line = {"step": self.stack.steps, "seconds": spent, "loss": losses, "exact": exact}
        for key, before in self.log.items():
            self.log[key] = torch.cat((before, torch.as_tensor(line[key], dtype=before.dtype)[None]))
        if self.watch is not None:
            speed, median = len(self.members) * self.stack.steps / seconds, losses.nanmedian()
            words = f"loss {median:.4f} (median)  exact match {exact.mean():.3f}  {speed:,.0f} models × steps/s"
            self.watch(self.stack.steps, self.training.steps, words)
        return ~(losses.isfinite() & self.stack.finite().cpu())

    def _finish(self, ended: Tensor, diverged: Tensor, perfect: Tensor) -> None:
        """Writes the run folders of the members that have ended."""
        rows, log = ended.nonzero()[:, 0].tolist(), self.log
        weights = {name: weight[ended.to(weight.device)].cpu() for name, weight in self.stack.weights.items()}

        def write(place: int, row: int) -> None:
            folder = self.members[row].folder
            folder.begin(self.members[row].config, self.about, resume=True)
            columns = (log["step"].int(), log["loss"][:, row], log["exact"][:, row], log["seconds"])
            entries = [self.log_entry(*line) for line in zip(*(column.tolist() for column in columns), strict=True)]
            disk.write_bytes(folder.log, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
            own, loss = {name: weight[place] for name, weight in weights.items()}, entries[-1]["loss"]
            self.finish(folder, own, self.stack.steps, self.spent, None if diverged[row] else loss, bool(perfect[row]))

        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(write, range(len(rows)), rows))
        self.alive &= ~ended

    def _compact(self) -> bool:
        """Drops the members that have ended. On a GPU only when they are half of the stack: a stack of another size
        must be compiled, which takes longer than some steps of members that no longer count."""
        left = self.alive.nonzero()[:, 0]
        if not len(left) or (self.device.type != "cpu" and 2 * len(left) > len(self.members)):
            return False
        self.members, self.alive = [self.members[row] for row in left.tolist()], self.alive[left]
        self.stack.keep(left.to(self.device))
        self.log |= {key: self.log[key][:, left] for key in ("loss", "exact")}
        return True

    def _checkpoint(self) -> None:
        """Saves the stack, its members and the log so far."""
        timer = Clock(self.device)
        timer.start()
        state = {
            **self.stack.state(),
            **{f"log/{key}": lines for key, lines in self.log.items()},
            "members": torch.tensor([member.identity for member in self.members]),
            "spent": torch.tensor(self.spent, dtype=torch.float64),
            "precision": torch.tensor(list(self.precision.encode())),
        }
        save_checkpoint(self.home / "checkpoint", state, self.stack.steps, self.clock.seconds)
        timer.stop()
        self.checkpoint_cost, self.checkpoint_at = timer.seconds, self.clock.seconds

    def _resume(self) -> None:
        """Resumes from a checkpoint that holds these members; it may also hold some that have since ended."""
        if (found := load_checkpoint(self.home / "checkpoint")) is None:
            return
        state, pointer = found
        _check_state(self.home, state)
        place = {number: row for row, number in enumerate(state.pop("members").tolist())}
        if any(member.identity not in place for member in self.members):
            return
        precision = bytes(state.pop("precision").tolist()).decode()
        if precision != self.precision:
            raise HeadwayError(f"{self.home} was started with `precision={precision}`; resume with the same")
        rows = torch.tensor([place[member.identity] for member in self.members])
        lines = len(state["log/step"])
        log = {key: state.pop(f"log/{key}")[:lines] for key in self.log}
        self.log = log | {key: log[key][:, rows] for key in ("loss", "exact")}
        self.spent, self.clock.seconds = float(state.pop("spent")), pointer.seconds
        self.stack.restore({name: tensor[rows] for name, tensor in state.items()}, pointer.steps)
