"""The settings a run gets where nothing is asked for: one recipe a task, measured (see results/)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from headway.errors import HeadwayError
from headway.positions import find_index, find_positions
from headway.runs.config import ModelConfig, RunConfig, TrainingConfig
from headway.tasks import Task, create_task

ADDER = TrainingConfig(
    steps=600, batch=128, optimizer="muon", learning_rate=1e-3, muon_rate=0.02, momentum=0.8, warmup=100, hard=0.5
)
CLASSIFIER = TrainingConfig(
    steps=1000, batch=128, optimizer="muon", learning_rate=1e-3, muon_rate=0.02, momentum=0.8, warmup=100
)


@dataclass(frozen=True)
class Wishes:
    """What a person asked for; None leaves the default of the task."""

    model: Literal["encoder-decoder", "decoder", "classifier"] | None = None
    positions: str | None = None
    index: str | None = None
    pooling: Literal["mean", "max", "violation"] | None = None
    d_model: int | None = None
    heads: int | None = None
    d_ff: int | None = None
    layers: int | None = None
    decoder_layers: int | None = None
    steps: int | None = None
    batch: int | None = None
    optimizer: Literal["muon", "adamw"] | None = None
    learning_rate: float | None = None
    muon_rate: float | None = None
    weight_decay: float | None = None
    warmup: int | None = None
    hard: float | None = None
    until: Literal["perfect"] | None = None


QUICK_CLASSIFIER = Wishes(steps=500)


def plan(
    task_name: str, wishes: Wishes, seed: int, options: dict[str, Any] | None = None, data: str | None = None
) -> RunConfig:
    """The whole config of a run; refuses what does not fit together."""
    task = create_task(task_name, options)
    asked = {key: value for key, value in asdict(wishes).items() if value is not None}
    kind = asked.pop("model", "classifier" if task.classes else "encoder-decoder")
    if (kind == "classifier") != (task.classes is not None):
        raise HeadwayError(f"{task.name} answers with {'a class' if task.classes else 'a sequence'}; a {kind} cannot")
    asked.setdefault("positions", "sinusoidal" if task.classes else "learned")
    find_positions(asked["positions"])
    find_index(asked.get("index", "sequential"))
    for_model = {key: value for key, value in asked.items() if key in _names(ModelConfig)}
    if kind == "classifier":
        for_model.setdefault("layers", 4)
    for_training = {key: value for key, value in asked.items() if key in _names(TrainingConfig)}
    recipe = CLASSIFIER if task.classes else ADDER
    if for_training.get("steps", recipe.steps) <= recipe.warmup:
        for_training.setdefault("warmup", max(1, for_training["steps"] // 10))
    return RunConfig(
        task=task_name,
        model=ModelConfig(
            kind=kind,
            vocabulary=task.vocabulary,
            trained=trained_tokens(task, kind),
            start=None if task.classes else task.start,
            end=task.end,
            classes=task.classes,
            **for_model,
        ),
        training=TrainingConfig(**{**asdict(recipe), **for_training}),
        seed=seed,
        options={} if options is None else options,
        data=data,
    )


def trained_tokens(task: Task, kind: str) -> int:
    """The longest sequence that training shows the model."""
    longest = task.lengths[1]
    source, answer = task.source_tokens(longest), task.answer_tokens(longest)
    return source + answer if kind == "decoder" else max(source, answer)


def _names(kind: type) -> set[str]:
    return {entry.name for entry in fields(kind)}
