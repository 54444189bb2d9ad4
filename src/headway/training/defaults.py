"""The default settings of a run: one recipe per kind of task."""

from dataclasses import fields, replace
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.positions import build_index, find_positions, shape_of
from headway.positions.index import Coupled, Sequential
from headway.positions.positions import check_shapes
from headway.positions.sources import hash_sources
from headway.runs.config import LARGEST, ModelConfig, Overrides, RunConfig, TrainingConfig
from headway.tasks import Task, create_task, options_of

CLASSIFIER = TrainingConfig(steps=1000, batch=128, optimizer="muon", learning_rate=1e-3, muon_rate=0.02, warmup=100)
ADDER = replace(CLASSIFIER, steps=600, hard=0.5)
QUICK_CLASSIFIER = Overrides(steps=1000, layers=2, d_model=64, d_ff=128)  # small enough to run inside a page
RECIPES = {
    # what the published reports of the adder used; the answer's start token and its first digit stay as in every run
    "reports": Overrides(
        positions="sinusoidal", norm="post", optimizer="adam", learning_rate=1e-3, warmup=0, schedule="constant",
        dropout=0.1, stored=10_000, epochs=50, batch=64, hard=0.0,
    )
}  # fmt: skip

ADAMS = {"adamw": "AdamW", "adam": "Adam"}
# Overrides that would change nothing but the run's hash: the same run would be trained twice.
_NO_EFFECT = {
    "pooling": lambda kind, asked, data: kind != "classifier" and "only a classifier pools",
    "segments": lambda kind, asked, data: kind != "decoder" and "only a decoder reads one sequence",
    "decoder_layers": lambda kind, asked, data: kind != "encoder-decoder" and f"a {kind} has only `layers`",
    "muon_rate": lambda kind, asked, data: (
        asked.get("optimizer") in ADAMS and f"{ADAMS[asked['optimizer']]} uses `learning_rate`"
    ),
    "momentum": lambda kind, asked, data: asked.get("optimizer") in ADAMS and "only Muon uses it",
    "weight_decay": lambda kind, asked, data: asked.get("optimizer") == "adam" and "Adam has none; AdamW does",
    "hard": lambda kind, asked, data: data is not None and "the problems come from files",
    "stored": lambda kind, asked, data: data is not None and "the problems come from files",
}


def plan(
    task_name: str,
    overrides: Overrides,
    seed: int,
    options: dict[str, Any] | None = None,
    data: str | None = None,
    lengths: tuple[int, int] | None = None,
    rate: float = 1.0,
) -> RunConfig:
    """Builds the complete config of a run; rejects settings that are incompatible.

    `data` and `lengths` are the hash and the lengths of the training file, if there is one; `rate` multiplies the
    learning rates.
    """
    task = create_task(task_name, options)
    asked = _with_recipe(overrides, task)
    kind = asked.pop("model", "classifier" if task.classes else "encoder-decoder")
    if (kind == "classifier") != (task.classes is not None):
        raise HeadwayError(f"{task.name} answers with {'a class' if task.classes else 'a sequence'}; a {kind} cannot")
    for name, check in _NO_EFFECT.items():
        if name in asked and (reason := check(kind, asked, data)):
            raise HeadwayError(f"`{name}` has no effect here: {reason}; leave it out")
    asked.setdefault("positions", "sinusoidal" if task.classes else "learned")
    for_model, for_training = (
        {entry.name: asked[entry.name] for entry in fields(part) if entry.name in asked}
        for part in (ModelConfig, TrainingConfig)
    )
    digits, least_first = task.columns or (None, False)
    if kind == "classifier":
        for_model.setdefault("layers", 4)
    if kind == "decoder":  # otherwise it could not distinguish digits that share an index
        numbered = build_index(for_model.get("index", "sequential"), digits, least_first)
        for_model.setdefault("segments", isinstance(numbered, Coupled) and not numbered.own)
    recipe = CLASSIFIER if task.classes else ADDER
    if for_training.get("optimizer") == "adam":
        for_training["weight_decay"] = 0.0
    if "epochs" in asked:
        for_training["steps"] = _steps_of(asked, recipe.batch)
    if data is not None:
        for_training["hard"] = 0.0
    if 1 <= for_training.get("steps", recipe.steps) <= recipe.warmup:
        for_training.setdefault("warmup", max(1, for_training["steps"] // 10))
    longest = (lengths or task.lengths)[1]
    source, answer = task.source_tokens(longest), task.answer_tokens(longest)
    for_model |= {"start": None if task.classes else task.start, "end": task.end, "classes": task.classes}
    for_model |= {"digits": digits, "least_first": least_first}
    model = ModelConfig(kind, task.vocabulary, source + answer if kind == "decoder" else source, answer, **for_model)
    check_positions(model)
    training = replace(recipe, **for_training)
    if rate != 1:
        training = replace(training, learning_rate=training.learning_rate * rate, muon_rate=training.muon_rate * rate)
    own = hash_sources(task, task_name, model.positions)
    return RunConfig(task_name, model, training, seed, options_of(task), data, source=own)


def _with_recipe(overrides: Overrides, task: Task) -> dict[str, Any]:
    """Returns the settings that are given, on top of those of the recipe; rejects incompatible ones."""
    overrides.check_choices("recipe", "norm", "optimizer", "schedule")
    asked = overrides.to_dict()
    recipe = asked.pop("recipe", None)
    if recipe is not None and task.classes is not None:
        raise HeadwayError(f"the recipe {recipe!r} is for sums; {task.name} has no such recipe, so leave it out")
    if "steps" in asked and "epochs" in asked:
        raise HeadwayError("`steps` and `epochs` are both given; leave one of them out")
    base = {} if recipe is None else RECIPES[recipe].to_dict()
    if "steps" in asked:
        base.pop("epochs", None)
    if asked.get("optimizer", "adam") != "adam":
        base.pop("learning_rate", None)
    asked = base | asked
    if "stored" in asked and task.lengths[0] != task.lengths[1]:
        raise HeadwayError("`stored` problems must all have one length; leave it out, or choose one training length")
    if "epochs" in asked and "stored" not in asked:
        raise HeadwayError("`epochs` are passes through stored problems; set `stored`, or set `steps` instead")
    return asked


def _steps_of(asked: dict[str, Any], batch: int) -> int:
    """Returns the steps that the epochs take; a batch may span the end of an epoch."""
    for name in ("epochs", "stored", "batch"):
        if not 1 <= asked.get(name, 1) <= LARGEST:
            raise HeadwayError(f"{name} is {asked[name]}; it must lie between 1 and {LARGEST:,}")
    return -(-asked["epochs"] * asked["stored"] // asked.get("batch", batch))


def check_positions(model: ModelConfig) -> None:
    """Rejects invalid positions and indices, and combinations that are incompatible."""
    encoding, index = find_positions(model.positions), build_index(model.index, model.digits, model.least_first)
    if not encoding.kind.uses_index and not isinstance(index, Sequential):
        raise HeadwayError(f"{model.positions} uses no index; leave out `index={model.index}`")
    index.check_length(model.trained, model.trained_answer)
    with torch.random.fork_rng(devices=[]):
        made = encoding(shape_of(model, index, model.trained, causal=model.kind == "decoder"))
    if ":" in model.positions:
        check_shapes(model.positions, made)
        if buffers := [name for name, _ in made.named_buffers()]:
            raise HeadwayError(
                f"{model.positions} has the buffers {', '.join(buffers)}; compute them when needed, or use parameters"
            )
