"""Makes run folders without training: only the files that describe a run and its results."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headway.runs.config import ModelConfig, RunConfig, TrainingConfig
from headway.runs.folder import RunFolder, Training
from headway.runs.seal import seal

MODEL = ModelConfig(kind="classifier", vocabulary=100, trained=16, trained_answer=1, d_model=64)
TRAINING = TrainingConfig(steps=100, batch=64, optimizer="muon", learning_rate=0.001)
OPTIONS = {"values": 100, "shortest": 8, "longest": 16}


def a_config(positions: str = "rope", seed: int = 0, **settings: Any) -> RunConfig:
    options = {**OPTIONS, **settings.pop("options", {})}
    own = {key: settings.pop(key) for key in list(settings) if key in ModelConfig.__dataclass_fields__}
    model, training = replace(MODEL, positions=positions, **own), replace(TRAINING, **settings)
    return RunConfig("sortedness", model, training, seed, options)


def make_run(
    path: Path,
    positions: str = "rope",
    seed: int = 0,
    *,
    complete: bool = True,
    loss: float | None = 0.5,
    evaluation: Any = None,
    reach: dict[str, int] | None = None,
    converged: bool = True,
    tested_to: int = 512,
    heads: Any = None,
    **settings: Any,
) -> RunFolder:
    path.mkdir(parents=True, exist_ok=True)
    config = a_config(positions, seed, **settings)
    (path / "config.json").write_text(json.dumps(config.to_json()))
    if complete:
        ended = Training(config.training.steps, 1.5, 1234, loss, None, "c", "w", "l")
        (path / "training.json").write_text(json.dumps(seal(asdict(ended))))
    if reach is not None:
        found = {"asked": {"lengths": [16, tested_to]}, "in_range": 0.99, "converged": converged, "reach": reach}
        (path / "lengths.json").write_text(json.dumps(found))
    for name, content in (("evaluation", evaluation), ("heads", heads)):
        if content is not None:
            (path / f"{name}.json").write_text(json.dumps(content))
    return RunFolder(path)


def exact(errors: int, examples: int = 1000) -> dict[str, Any]:
    return {"examples": examples, "errors": errors, "exact_match": 1 - errors / examples}
