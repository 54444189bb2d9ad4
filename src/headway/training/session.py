"""What training has in common, be it of one run or of a stack of them: its clock, its log, its end.

A session goes from the last checkpoint, if there is one, to the end of training. loop.py has that of one run,
population.py that of many as one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.examples import number_of_problems
from headway.runs.config import RunConfig
from headway.runs.folder import LogEntry, RunFolder
from headway.tasks import create_task

LOG_EVERY = 20
CHECKPOINT_EVERY = 100
CHECK_EVERY = 50  # for runs that go on until perfect

Watch = Callable[[int, int, str], None]
"""Told the steps done, the steps in all, and a line of words."""


@dataclass(frozen=True)
class RunReport:
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


def report_of(folder: RunFolder) -> RunReport:
    ended = folder.training()
    seed = folder.config().seed
    return RunReport(
        str(folder.path), seed, ended.steps, ended.seconds, ended.parameters, ended.final_loss, ended.perfect
    )


class Clock:
    """Seconds spent training, over all sessions; stands still during checks and checkpoints."""

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


class Session:
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
        return {
            "step": steps,
            "loss": loss if math.isfinite(loss) else None,
            "exact_match": exact_match,
            "seconds": round(seconds, 3),
            "examples_per_second": round(steps * self.training.batch / seconds, 1),
        }

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
        folder.finish(
            save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}),
            steps=steps,
            seconds=seconds,
            parameters=sum(tensor.numel() for tensor in weights.values()),
            final_loss=loss,
            perfect=perfect if self.until_perfect else None,
        )
