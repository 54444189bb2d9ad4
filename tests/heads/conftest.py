"""Small models trained in a few seconds, for studies of their heads."""

from __future__ import annotations

import pytest
import torch

from headway.causes import roles
from headway.heads import study
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.training.defaults import plan
from headway.training.loop import train_run
from headway.training.population import Member, train_population
from small import small_model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Trains four small adders of one digit; the last one hardly at all."""
    home = tmp_path_factory.mktemp("few")
    members = [
        Member(small_adder(seed, 5 if seed == 3 else 400), RunFolder(home / f"seed-{seed}")) for seed in range(4)
    ]
    train_population(members[:3], home, device=torch.device("cpu"))  # as one stack, in half the time
    train_run(members[3].config, members[3].folder.path, device=torch.device("cpu"))
    return [member.folder for member in members]


def small_adder(seed: int, steps: int) -> RunConfig:
    overrides = Overrides(**small_model(decoder_layers=1, batch=64, steps=steps))
    return plan("addition", overrides, seed, {"digits": 1})


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs causal tests on fewer pairs in tests about something else."""
    monkeypatch.setattr(roles, "PAIRS", 10)
    monkeypatch.setattr(roles, "GROWN", 4)
    monkeypatch.setattr(roles, "RANDOM_SETS", 1)
    monkeypatch.setattr(study, "LOOKED_AT", 20)
