"""Ten-digit addition by one layer of global rotary attention: trained, tested, and proved on all 10^20 pairs.

    headway certify recipes/ten_digits.py:build --digits 10                # the model in recipes/ten_digits: seed 0
    python recipes/ten_digits.py train --seed 0 --out runs/ten-digits      # weights.safetensors and run.json
    python recipes/ten_digits.py test runs/ten-digits                      # 1,000,000 uniform and 1,000,000 carry-heavy
    TEN_DIGITS=runs/ten-digits headway certify recipes/ten_digits.py:build --digits 10

Training has one term that other runs do not have: a hinge on the share of attention that goes elsewhere than to the
column that is written, the column to its right, and the tokens that are always the same. It rises from 0 after 40% of
the steps, when the sums are learned, and vanishes where the share is below e^-8. Nothing in the model is masked: every
token sees all tokens before it, as in any decoder.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.certify.digits import Adder
from headway.certify.digits.own import adder_of_run
from headway.evaluation.intervals import exact_interval
from headway.evaluation.verdicts import loss
from headway.models import Model, build_model
from headway.models.sites import Trace
from headway.runs.config import Overrides, RunConfig
from headway.tasks import Task, create_task
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner, schedule_factor

TASK = "headway.tasks.aligned:AlignedAddition"
CLOSED = 8.0  # the hinge: attention elsewhere is e^-8 of the rest, or less
ROWS = 500  # at a time


@dataclass(frozen=True)
class Train:
    """Trains one seed."""

    out: Path
    seed: int = 0
    digits: int = 10
    base: int = 10
    steps: int = 4000
    batch: int = 128
    d_model: int = 64
    heads: int = 4
    d_ff: int = 64
    positions: str = "rope+ntk=0.02"
    """wavelengths from 2π to a few hundred tokens: there are 32"""
    weight: float = 0.1
    """of the hinge"""
    begin: float = 0.4
    """the share of the steps before the hinge; it reaches its weight a fifth of the steps later"""

    def run(self) -> None:
        names = ("d_model", "heads", "d_ff", "positions", "steps", "batch")
        overrides = Overrides(model="decoder", layers=1, **{name: getattr(self, name) for name in names})
        config = plan(TASK, overrides, self.seed, {"digits": self.digits, "base": self.base})
        task, model = create_task(TASK, config.options), build_model(config.model, self.seed)
        learner, near, began = Learner(model, config.training, self.seed), near_tokens(self.digits), time.monotonic()
        batches = draw_batches(task, config.training, [self.seed], None, 0, torch.device("cpu"))
        while learner.steps < self.steps:
            problems, trace = next(batches), Trace()
            value = loss(model(problems.source, problems.answer, trace=trace), problems)
            hinge = attention_elsewhere(trace, near)
            rising = min(1.0, max(0.0, (learner.steps / self.steps - self.begin) / 0.2))
            (value + self.weight * rising * hinge).backward()
            for optimizer, peak, _ in learner.parts:
                for group in optimizer.param_groups:
                    group["lr"] = peak * schedule_factor(learner.steps, config.training)
                optimizer.step()
                optimizer.zero_grad()
            learner.steps += 1
            if learner.steps % 500 == 0:
                print(f"step {learner.steps}: loss {float(value):.5f}, hinge {float(hinge):.4f}", flush=True)
        self.out.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), self.out / "weights.safetensors")
        (self.out / "run.json").write_text(json.dumps(config.to_json()))
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"seed {self.seed}: {count:,} parameters, {time.monotonic() - began:.0f} s")


def near_tokens(digits: int) -> Tensor:
    """Returns the tokens that a query may attend to freely, query × place: both columns, plus, the start, itself."""
    first = 2 * digits + 1
    near = torch.zeros(digits + 1, first + digits + 1, dtype=torch.bool)
    for number in range(digits + 1):
        near[number, [digits, first, first + number]] = True
        for column in (number, number - 1):
            if 0 <= column < digits:
                near[number, [column, digits + 1 + column]] = True
    return near


def attention_elsewhere(trace: Trace, near: Tensor) -> Tensor:
    """Returns by how much the log-odds of attention elsewhere exceed −8, on average over heads and queries."""
    maps = next(iter(trace.maps.values()))[:, :, -len(near) :]  # batch head query key
    there, elsewhere = (maps * near).sum(-1), (maps * ~near).sum(-1)
    return ((elsewhere + 1e-12).log() - (there + 1e-12).log() + CLOSED).clamp(min=0).mean()


def load(folder: Path) -> tuple[Model, Task]:
    """Loads what `train` wrote."""
    config = RunConfig.from_json(json.loads((folder / "run.json").read_text()))
    model = build_model(config.model)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model.eval(), create_task(config.task, config.options)


def build() -> Adder:
    """Returns the adder in the folder that TEN_DIGITS names, or the one beside this file."""
    folder = os.environ.get("TEN_DIGITS", str(Path(__file__).with_suffix("")))
    return adder_of_run(*load(Path(folder)), folder)


@dataclass(frozen=True)
class Test:
    """Judges fresh sums: all in one pass, each digit given the right ones before it, which decides what greedy decoding
    writes; and the first of them also by decoding."""

    folder: tyro.conf.Positional[Path]
    examples: int = 1_000_000
    decoded: int = 10_000
    seed: int = 1_000_003

    @torch.no_grad()
    def run(self) -> None:
        model, task = load(self.folder)
        for probe in ("default", "carry-heavy"):
            wrong = decoded = differ = 0
            began = time.process_time()
            for chunk in range(-(-self.examples // ROWS)):
                count = min(ROWS, self.examples - chunk * ROWS)
                problems = task.independent(self.seed + chunk, count, probe=probe)
                forced = (model(problems.source, problems.answer).argmax(-1) == problems.answer).all(1)
                wrong += int((~forced).sum())
                if decoded < self.decoded:
                    right = (model.generate(problems.source, problems.answer.shape[1]) == problems.answer).all(1)
                    differ, decoded = differ + int((right != forced).sum()), decoded + count
            most = exact_interval(wrong, self.examples).high
            words = f"{probe}: {wrong} of {self.examples:,} wrong, so at most {most:.1e} of all (95%)"
            seconds = f"{time.process_time() - began:.0f} s of a core"
            print(f"{words}; {decoded:,} also decoded, {differ} differ; {seconds}", flush=True)


if __name__ == "__main__":
    tyro.cli(Train | Test).run()  # pyright: ignore
