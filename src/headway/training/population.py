"""Training many runs as one stack: hundreds of seeds in the time of a few.

Every member ends as an ordinary run folder, the same as if it had been trained alone. While the population
trains, its state is one checkpoint in the folder that holds them all. A member that is perfect, where that was
asked for, or whose loss is no longer a number, ends at once and leaves the stack; none is left out.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from headway.errors import BrokenRun, HeadwayError
from headway.evaluation.examples import number_of_problems
from headway.evaluation.stacked import StackedModels, trainable_right
from headway.machine import environment
from headway.models import build_model
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder, difference
from headway.tasks import create_task
from headway.tasks.data import Stored
from headway.training.batches import feed
from headway.training.checkpoint import Pointer, load_checkpoint, remove_checkpoints, save_checkpoint
from headway.training.learner import Step
from headway.training.loop import CHECK_EVERY, CHECKPOINT_EVERY, LOG_EVERY, Clock, Report, Watch, report_of
from headway.training.stack import Stack

OWN = ("learning_rate", "muon_rate", "momentum", "weight_decay", "warmup")
"""the training settings in which members may differ"""
WRITERS = 8
UNHURRIED = 10
"""at least this many times as long as a checkpoint takes lies between two"""
WRITTEN_A_SECOND = 500e6


@dataclass(frozen=True)
class Member:
    config: RunConfig
    folder: RunFolder

    @property
    def identity(self) -> int:
        """A number that stands for the config, for a tensor of a checkpoint."""
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
) -> list[Report]:
    """Trains the members as one; those that are complete already are not trained again.

    `home` is the folder that holds their folders, and the checkpoint while they train. Where `checkpoint_every` is
    not given, checkpoints take a tenth of the time at most: those of a large stack are big.
    """
    if checkpoint_every is not None and checkpoint_every < 1:
        raise HeadwayError(f"checkpoint_every is {checkpoint_every}; it must be at least 1")
    check_alike([member.config for member in members])
    for member in members:
        member.folder.check(member.config, resume)
    for member in members:
        if member.folder.complete:
            member.folder.verified()
    groups = _groups(members, home, resume)
    while groups:
        group = [member for member in groups.pop(0) if not member.folder.complete]
        if not group or _trained(group, home, device, precision, checkpoint_every, stored, watch):
            continue
        group = [member for member in group if not member.folder.complete]
        half = (len(group) + 1) // 2
        print(f"{len(group):,} members do not fit into memory; going on with {half:,} at a time", file=sys.stderr)
        groups[:0] = [group[:half], group[half:]]
    remove_checkpoints(home / "checkpoint")
    return [report_of(member.folder, member.config) for member in members]


def _groups(members: Sequence[Member], home: Path, resume: bool) -> list[list[Member]]:
    """The members that are left to train: those that a checkpoint holds, then the others."""
    left = [member for member in members if not member.folder.complete]
    alone = next((member for member in left if (member.folder.checkpoints / "latest.json").exists()), None)
    if alone is not None:
        raise HeadwayError(
            f"{alone.folder.path} was begun by itself; finish it with --seed {alone.config.seed} --resume, or choose "
            "another --out"
        )
    found = load_checkpoint(home / "checkpoint")
    if found is None or not left:
        return [left]
    if not resume:
        raise HeadwayError(f"{home} holds an unfinished population; add --resume to go on, or choose another --out")
    _check_state(home, found[0])
    held, known = found[0]["members"].tolist(), {member.identity: member for member in members}
    if any(number not in known for number in held):
        raise HeadwayError(
            f"{home} holds an unfinished population of other members; go on with the command that began it, or choose "
            "another --out"
        )
    begun = set(held)
    return [[known[number] for number in held], [member for member in left if member.identity not in begun]]


def _check_state(home: Path, state: dict[str, Tensor]) -> None:
    """Refuses a checkpoint that is no population's: its members, its log, and a row of everything for each member."""
    rows = len(state["members"]) if "members" in state and state["members"].ndim == 1 else 0
    lists = all(name in state and state[name].ndim == 1 for name in ("log/step", "log/seconds", "precision"))
    tables = [tensor for name, tensor in state.items() if name.startswith(("model/", "first/", "second/"))]
    logged = all(
        name in state and state[name].ndim == 2 and state[name].shape[1] == rows for name in ("log/loss", "log/exact")
    )
    spent = "spent" in state and state["spent"].ndim == 0
    if not (rows and lists and logged and spent and all(tensor.shape[:1] == (rows,) for tensor in tables)):
        raise BrokenRun(f"{home / 'checkpoint'} holds no population; delete it to begin again")


def _trained(
    group: list[Member],
    home: Path,
    device: torch.device,
    precision: torch.dtype | None,
    checkpoint_every: int | None,
    stored: Stored | None,
    watch: Watch | None,
) -> bool:
    """Trains a group from its checkpoint, if any, to its end; says whether memory sufficed."""
    try:
        sitting = _Sitting(group, home, device, precision, checkpoint_every, stored, watch)
        sitting.resume(load_checkpoint(home / "checkpoint"))
        sitting.run()
        return True
    except torch.OutOfMemoryError:
        if len(group) == 1:
            raise
    sitting = None  # what it held is in cycles, which only the collector frees
    gc.collect()
    torch.cuda.empty_cache()
    return False


def alike(config: RunConfig, first: RunConfig | None = None) -> RunConfig:
    """A config with the seed, rates, momentum, decay and warm-up of `first`, or of nobody: the same for all members
    that can be stacked."""
    own = {"learning_rate": 1.0, "muon_rate": 1.0, "momentum": 0.0, "weight_decay": 0.0, "warmup": 0}
    if first is not None:
        own = {name: getattr(first.training, name) for name in OWN}
    return replace(config, seed=first.seed if first else 0, training=replace(config.training, **own))


def check_alike(configs: Sequence[RunConfig]) -> None:
    """Refuses members that cannot be stacked."""
    first = configs[0]
    for config in configs[1:]:
        if (same := alike(config, first)) != first:
            raise HeadwayError(
                f"a population has one shape: {difference(first, same)}; only seed, {', '.join(OWN)} may differ"
            )


def _given(*flags: Tensor | None) -> list[Tensor]:
    return [flag for flag in flags if flag is not None]


class _Sitting:
    """One sitting at a stack of members: from its checkpoint, if any, to its end."""

    def __init__(
        self,
        members: list[Member],
        home: Path,
        device: torch.device,
        precision: torch.dtype | None,
        checkpoint_every: int | None,
        stored: Stored | None,
        watch: Watch | None,
    ) -> None:
        self.stored = stored
        self.members, self.home, self.device, self.watch = members, home, device, watch
        first = members[0].config
        self.task, self.training = create_task(first.task, first.options), first.training
        if self.training.until == "perfect":
            number_of_problems(self.task, "--until perfect")
        models = [build_model(member.config.model, member.config.seed) for member in members]
        self.parameters = sum(parameter.numel() for parameter in models[0].parameters())
        shortest, longest = self.task.lengths if stored is None else stored.lengths()
        configs = [member.config.training for member in members]
        self.stack = Stack(models, configs, device, precision, one_shape=shortest == longest)
        self.precision = str(precision or torch.float32).removeprefix("torch.")
        self.about = {
            **environment(device),
            "population": len(members),
            "precision": self.precision,
        }
        self.alive = torch.ones(len(members), dtype=torch.bool)
        self.clock, self.spent = Clock(device), 0.0  # the latter: a member's share of the seconds
        self.log: list[dict[str, Any]] = []
        self.checkpoint_every, self.unhurried = checkpoint_every or CHECKPOINT_EVERY, checkpoint_every is None
        self.checkpoint_at = 0.0
        self.checkpoint_cost = self.stack.bytes / WRITTEN_A_SECOND  # until it was measured

    def run(self) -> None:
        steps, batches = self.training.steps, None
        self.clock.start()
        while self.alive.any():
            if batches is None:  # anew for every set of members
                seeds = [member.config.seed for member in self.members]
                batches = feed(self.task, self.training, seeds, self.stored, self.stack.steps, self.device)
            last, done = self.stack.step(next(batches)), self.stack.steps
            at_end, diverged, perfect = done == steps, None, None
            if at_end or done % LOG_EVERY == 0:
                diverged = self._logged(last)
            if self.training.until == "perfect" and (at_end or done % CHECK_EVERY == 0):
                self._stop_clock()
                perfect = self._perfect()
            ended = self.alive & torch.stack([torch.full_like(self.alive, at_end), *_given(diverged, perfect)]).any(0)
            if ended.any():
                self._stop_clock()
                self._finish(ended, diverged, perfect)
                batches = None if self._compact() else batches
            if self.alive.any() and done % self.checkpoint_every == 0 and self._may_checkpoint():
                self._stop_clock()
                self._checkpoint()
            if not self.clock.running:
                self.clock.start()

    def _perfect(self) -> Tensor:
        """Which members have every trainable problem right; those that have ended are not asked again."""
        rows = self.alive.nonzero()[:, 0]
        models = StackedModels(self.stack.template, self.stack.weights, one_shape=False).kept(rows.to(self.device))
        perfect = torch.zeros_like(self.alive)
        perfect[rows] = trainable_right(models, self.task).cpu()
        return perfect

    def _stop_clock(self) -> None:
        before = self.clock.seconds
        self.clock.stop()
        self.spent += (self.clock.seconds - before) / max(1, int(self.alive.sum()))

    def _logged(self, step: Step) -> Tensor:
        """A line for the log, and on the screen; says which members' loss is no number."""
        losses, exact = step.loss.float().cpu(), step.exact_match.float().cpu()
        seconds = self.clock.now()
        members = max(1, int(self.alive.sum()))
        spent = self.spent + (seconds - self.clock.seconds) / members
        self.log.append({"step": self.stack.steps, "loss": losses, "exact": exact, "seconds": spent})
        if self.watch is not None:
            speed = len(self.members) * self.stack.steps / seconds
            words = (
                f"loss {losses.nanmedian():.4f} (median)  exact match {exact.mean():.3f}  {speed:,.0f} models × steps/s"
            )
            self.watch(self.stack.steps, self.training.steps, words)
        return ~(losses.isfinite() & self.stack.finite().cpu())

    def _finish(self, ended: Tensor, diverged: Tensor | None, perfect: Tensor | None) -> None:
        """Writes the folders of members that have ended."""
        rows = ended.nonzero()[:, 0].tolist()
        weights = {name: weight[ended.to(weight.device)].cpu() for name, weight in self.stack.weights.items()}
        asked = self.training.until == "perfect"

        def write(place: int, row: int) -> None:
            member = self.members[row]
            member.folder.begin(member.config, self.about, resume=True)
            entries = [self._entry(line, row) for line in self.log]
            disk.write_bytes(member.folder.log, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
            member.folder.finish(
                save({name: weight[place] for name, weight in weights.items()}),
                steps=self.stack.steps,
                seconds=self.spent,
                parameters=self.parameters,
                final_loss=None if diverged is not None and diverged[row] else entries[-1]["loss"],
                perfect=bool(perfect is not None and perfect[row]) if asked else None,
            )

        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(write, range(len(rows)), rows))
        self.alive &= ~ended

    def _compact(self) -> bool:
        """Goes on without the members that have ended. On a GPU only when they are half: another size of the
        stack has to be compiled, which takes longer than some steps of members that no longer count."""
        left = self.alive.nonzero()[:, 0]
        if not len(left) or (self.device.type != "cpu" and 2 * len(left) > len(self.members)):
            return False
        self.members, self.alive = [self.members[row] for row in left.tolist()], self.alive[left]
        self.stack.keep(left.to(self.device))
        for line in self.log:
            line["loss"], line["exact"] = line["loss"][left], line["exact"][left]
        return True

    def _entry(self, line: dict[str, Any], row: int) -> dict[str, Any]:
        """A member's line of the log; the seconds are its share, the loss is null where it is no number."""
        loss, examples = line["loss"][row], line["step"] * self.training.batch
        return {
            "step": line["step"],
            "loss": loss.item() if loss.isfinite() else None,
            "exact_match": line["exact"][row].item(),
            "seconds": round(line["seconds"], 3),
            "examples_per_second": round(examples / line["seconds"], 1),
        }

    def _may_checkpoint(self) -> bool:
        since = self.clock.now() - self.checkpoint_at
        return not self.unhurried or since >= UNHURRIED * self.checkpoint_cost

    def _checkpoint(self) -> None:
        """Keeps the stack, whose it is, and the log so far."""
        timer = Clock(self.device)
        timer.start()
        state = self.stack.state()
        state["members"] = torch.tensor([member.identity for member in self.members])
        for key in ("loss", "exact"):
            state[f"log/{key}"] = torch.stack([line[key] for line in self.log] or [torch.zeros(len(self.members))])
        for key in ("step", "seconds"):
            state[f"log/{key}"] = torch.tensor([float(line[key]) for line in self.log], dtype=torch.float64)
        state["spent"] = torch.tensor(self.spent, dtype=torch.float64)
        state["precision"] = torch.tensor(list(self.precision.encode()))
        save_checkpoint(self.home / "checkpoint", state, self.stack.steps, self.clock.seconds)
        timer.stop()
        self.checkpoint_cost, self.checkpoint_at = timer.seconds, self.clock.seconds

    def resume(self, kept: tuple[dict[str, Tensor], Pointer] | None) -> None:
        """Goes on from a checkpoint that holds these members; it may also hold some that have ended since."""
        if kept is None:
            return
        state, pointer = kept
        _check_state(self.home, state)
        place = {number: row for row, number in enumerate(state.pop("members").tolist())}
        if any(member.identity not in place for member in self.members):
            return
        precision = bytes(state.pop("precision").tolist()).decode()
        if precision != self.precision:
            raise HeadwayError(f"{self.home} was begun with --precision {precision}; go on with that")
        rows = torch.tensor([place[member.identity] for member in self.members])
        log = {key: state.pop(f"log/{key}") for key in ("step", "seconds", "loss", "exact")}
        self.spent, self.clock.seconds = float(state.pop("spent")), pointer.seconds
        self.stack.restore({name: tensor[rows] for name, tensor in state.items()}, pointer.steps)
        self.log = [
            {"step": int(step), "seconds": float(seconds), "loss": loss[rows], "exact": exact[rows]}
            for step, seconds, loss, exact in zip(*log.values(), strict=False)
        ]
