"""Training many runs as one stack: hundreds of seeds in the time of a few.

Every member ends as an ordinary run folder, the same as if it had been trained alone. While the population
trains, its state is one checkpoint in the folder that holds them all. A member that is perfect, where that was
asked for, or whose loss is no longer a number, ends at once and leaves the stack; none is left out.
"""

from __future__ import annotations

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

from headway.errors import HeadwayError
from headway.evaluation.examples import number_of_problems
from headway.evaluation.stacked import StackedModels, trainable_right
from headway.machine import environment
from headway.models import build_model
from headway.runs import disk
from headway.runs.config import RunConfig
from headway.runs.folder import RunFolder, difference
from headway.tasks import create_task
from headway.tasks.data import Stored
from headway.training.checkpoint import Pointer, load_checkpoint, remove_checkpoints, save_checkpoint
from headway.training.feed import feed
from headway.training.learner import Step
from headway.training.loop import CHECK_EVERY, CHECKPOINT_EVERY, LOG_EVERY, Clock, Report, Watch, report_of
from headway.training.stack import Stack

OWN = ("learning_rate", "muon_rate", "momentum", "weight_decay", "warmup")
"""the training settings in which members may differ"""
WRITERS = 8
UNHURRIED = 10
"""a checkpoint of a large stack is big: at least this many times as long as it takes lies between two"""
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
    checkpoint_every: int = CHECKPOINT_EVERY,
    stored: Stored | None = None,
    watch: Watch | None = None,
) -> list[Report]:
    """Trains the members as one; those that are complete already are not trained again.

    `home` is the folder that holds their folders, and the checkpoint while they train.
    """
    if checkpoint_every < 1:
        raise HeadwayError(f"checkpoint_every is {checkpoint_every}; it must be at least 1")
    check_alike([member.config for member in members])
    for member in members:
        member.folder.check(member.config, resume)
    if (home / "checkpoint" / "latest.json").exists() and not resume:
        raise HeadwayError(f"{home} holds an unfinished population; add --resume to go on, or choose another --out")
    left = [member for member in members if not member.folder.complete]
    kept = load_checkpoint(home / "checkpoint")
    begun = _begun(kept, left)
    groups = [group for group in (begun, [m for m in left if m not in begun]) if group]
    while groups:
        group = groups.pop(0)
        try:
            sitting = _Sitting(group, home, device, precision, checkpoint_every, watch)
            if group is begun and kept is not None:
                sitting.restore(*kept)
                kept = None
            sitting.run(stored)
        except torch.OutOfMemoryError:
            if len(group) == 1:
                raise
            half = (len(group) + 1) // 2
            print(f"{len(group):,} members do not fit into memory; going on with {half:,} at a time", file=sys.stderr)
            groups[:0] = [group[:half], group[half:]]
            torch.cuda.empty_cache()
    remove_checkpoints(home / "checkpoint")
    for member in members:
        member.folder.training()
    return [report_of(member.folder, member.config) for member in members]


def check_alike(configs: Sequence[RunConfig]) -> None:
    """Refuses members that cannot be stacked: they may differ in seed, rates, momentum, decay and warm-up."""
    first = configs[0]
    for config in configs[1:]:
        own = {name: getattr(first.training, name) for name in OWN}
        alike = replace(config, seed=first.seed, training=replace(config.training, **own))
        if alike != first:
            raise HeadwayError(
                f"a population has one shape: {difference(first, alike)}; only seed, {', '.join(OWN)} may differ"
            )


def _begun(kept: tuple[dict[str, Tensor], Pointer] | None, members: Sequence[Member]) -> list[Member]:
    """The members that a checkpoint holds, in its order."""
    if kept is None:
        return []
    known = {member.identity: member for member in members}
    return [known[number] for number in kept[0]["members"].tolist() if number in known]


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
        checkpoint_every: int,
        watch: Watch | None,
    ) -> None:
        self.members, self.home, self.device, self.watch = members, home, device, watch
        first = members[0].config
        self.task, self.training = create_task(first.task, first.options), first.training
        if self.training.until == "perfect":
            number_of_problems(self.task, "--until perfect")
        models = [build_model(member.config.model, member.config.seed) for member in members]
        self.parameters = sum(parameter.numel() for parameter in models[0].parameters())
        self.stack = Stack(models, [member.config.training for member in members], device, precision)
        self.about = {
            **environment(device),
            "population": len(members),
            "precision": str(precision or torch.float32).removeprefix("torch."),
        }
        self.alive = torch.ones(len(members), dtype=torch.bool)
        self.clock, self.spent = Clock(device), 0.0  # the latter: a member's share of the seconds
        self.log: list[dict[str, Any]] = []
        self.checkpoint_every, self.checkpoint_at = checkpoint_every, 0.0
        self.checkpoint_cost = self.stack.bytes / WRITTEN_A_SECOND  # until it was measured

    def run(self, stored: Stored | None) -> None:
        steps, batches = self.training.steps, None
        self.clock.start()
        while self.alive.any():
            if batches is None:  # anew for every set of members
                seeds = [member.config.seed for member in self.members]
                batches = feed(self.task, self.training, seeds, stored, self.stack.steps, self.device)
            last, done = self.stack.step(next(batches)), self.stack.steps
            at_end, diverged, perfect = done == steps, None, None
            if at_end or done % LOG_EVERY == 0:
                diverged = self._logged(last)
            if self.training.until == "perfect" and (at_end or done % CHECK_EVERY == 0):
                self._stop_clock()
                perfect = trainable_right(StackedModels(self.stack.template, self.stack.weights), self.task).cpu()
            ended = self.alive & torch.stack([torch.full_like(self.alive, at_end), *_given(diverged, perfect)]).any(0)
            if ended.any():
                self._stop_clock()
                self._finish(ended, perfect)
                batches = None if self._compact() else batches
            elif done % self.checkpoint_every == 0 and self._unhurried():
                self._stop_clock()
                self._checkpoint()
            if not self.clock.running:
                self.clock.start()

    def _stop_clock(self) -> None:
        before = self.clock.seconds
        self.clock.stop()
        self.spent += (self.clock.seconds - before) / max(1, int(self.alive.sum()))

    def _logged(self, step: Step) -> Tensor:
        """A line for the log, and on the screen; says which members' loss is no number."""
        losses, exact = step.loss.float().cpu(), step.exact_match.float().cpu()
        seconds = self.clock.now()
        self.log.append({"step": self.stack.steps, "loss": losses, "exact": exact, "seconds": seconds})
        if self.watch is not None:
            speed = len(self.members) * self.stack.steps / seconds
            words = (
                f"loss {losses.nanmedian():.4f} (median)  exact match {exact.mean():.3f}  {speed:,.0f} models × steps/s"
            )
            self.watch(self.stack.steps, self.training.steps, words)
        return ~(losses.isfinite() & self.stack.finite().cpu())

    def _finish(self, ended: Tensor, perfect: Tensor | None) -> None:
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
                final_loss=entries[-1]["loss"],
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
        """A member's line of the log, as one trained alone has it; the loss is null where it is no number."""
        loss, examples = line["loss"][row], line["step"] * self.training.batch
        return {
            "step": line["step"],
            "loss": loss.item() if loss.isfinite() else None,
            "exact_match": line["exact"][row].item(),
            "seconds": round(line["seconds"], 3),
            "examples_per_second": round(examples / line["seconds"], 1),
        }

    def _unhurried(self) -> bool:
        return self.clock.now() - self.checkpoint_at >= UNHURRIED * self.checkpoint_cost

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
        save_checkpoint(self.home / "checkpoint", state, self.stack.steps, self.clock.seconds)
        timer.stop()
        self.checkpoint_cost, self.checkpoint_at = timer.seconds, self.clock.seconds

    def restore(self, state: dict[str, Tensor], pointer: Pointer) -> None:
        """Goes on from a checkpoint, which may also hold members that have ended since."""
        place = {number: row for row, number in enumerate(state.pop("members").tolist())}
        rows = torch.tensor([place[member.identity] for member in self.members])
        log = {key: state.pop(f"log/{key}") for key in ("step", "seconds", "loss", "exact")}
        self.spent, self.clock.seconds = float(state.pop("spent")), pointer.seconds
        self.stack.restore({name: tensor[rows] for name, tensor in state.items()}, pointer.steps)
        self.log = [
            {"step": int(step), "seconds": float(seconds), "loss": loss[rows], "exact": exact[rows]}
            for step, seconds, loss, exact in zip(*log.values(), strict=False)
        ]
