"""Small models that a few seconds train, for studies of their heads."""

from __future__ import annotations

from typing import Any

import pytest

from headway.api import train
from headway.heads import roles, study
from headway.runs.folder import RunFolder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Four small adders of one digit; the last has hardly been trained."""
    home, found = tmp_path_factory.mktemp("few"), []
    for seed in range(4):
        wanted: dict[str, Any] = {
            "d_model": 16,
            "d_ff": 32,
            "heads": 2,
            "layers": 1,
            "decoder_layers": 1,
            "steps": 5 if seed == 3 else 400,
            "batch": 64,
        }
        train("addition", seed=seed, options={"digits": 1}, out=home / f"seed-{seed}", quiet=True, **wanted)
        found.append(RunFolder(home / f"seed-{seed}"))
    return found


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal tests on fewer pairs, where a test is about something else."""
    monkeypatch.setattr(roles, "PAIRS", 10)
    monkeypatch.setattr(roles, "GROWN", 4)
    monkeypatch.setattr(roles, "RANDOM_SETS", 1)
    monkeypatch.setattr(study, "LOOKED_AT", 20)
