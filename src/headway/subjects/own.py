"""Headway's runs as subjects: the task and the trained model of a run folder.

Weight files are not trusted: their shapes are compared with the config before any tensor of that size is allocated.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from headway.errors import BrokenRun, HeadwayError
from headway.models import Model, build_model, heads_of
from headway.positions.sources import hash_sources
from headway.runs.config import ModelConfig, RunConfig
from headway.runs.folder import RunFolder
from headway.subjects.drawing import examples_of_task
from headway.subjects.naming import PRETRAINED, find_runs
from headway.subjects.runner import HeadwayRunner
from headway.subjects.subject import Subject
from headway.tasks import Task, create_task

CHUNK = 50_000  # problems in one piece when all of them are enumerated
SETS_SEED, SETS_ROWS = 1_001, 500
"""the seed and the size of the evaluation sets that the doctor checks"""


@dataclass(frozen=True)
class Run:
    """A finished run with its task and its model loaded."""

    folder: RunFolder
    config: RunConfig
    task: Task
    model: Model

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def writable(self) -> bool:
        """Whether results may be written to its folder; runs that ship with the package are read-only."""
        return not self.path.resolve().is_relative_to(PRETRAINED.resolve())

    def _repr_html_(self) -> str:
        return f"<b>{self.config.name}</b> in {self.path}"


def open_run(folder: RunFolder, device: torch.device | str = "cpu") -> Run:
    """Loads a finished run; raises where its files have changed since training."""
    config = folder.verify()
    task = create_task(config.task, config.options)
    _check_sources(folder, config, task)
    weights = _load_weights(folder, config.model)
    model = build_model(config.model)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise BrokenRun(f"{folder.weights} does not fit {folder.path / 'config.json'}: {error}") from error
    return Run(folder, config, task, model.to(device).eval())


def _check_sources(folder: RunFolder, config: RunConfig, task: Task) -> None:
    """Raises where the user's code that a run was trained with has changed since. Older runs do not say what it was."""
    if config.source is not None and config.source != hash_sources(task, config.task, config.model.positions):
        names = " or ".join(name for name in (config.task, config.model.positions) if ":" in name)
        raise HeadwayError(
            f"the code of {names} has changed since {folder.path} was trained, so its weights belong to other code; "
            "restore that code, or train again in another folder"
        )


def _load_weights(folder: RunFolder, config: ModelConfig) -> dict[str, Tensor]:
    """Loads every tensor by name; raises where names, types or shapes do not match the config."""
    try:
        with safe_open(folder.weights, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            kinds = {each.get_dtype() for each in slices.values()}
            shapes = {name: each.get_shape() for name, each in slices.items()}
        other = sorted(kinds - {"F64", "F32", "F16", "BF16"})
        mismatch = f"it has tensors of type {', '.join(other)}" if other else _find_mismatch(config, shapes)
        if mismatch is None:
            return load_file(folder.weights)
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        mismatch = f"it cannot be read ({error})"
    where = f"{folder.weights} does not fit {folder.path / 'config.json'}"
    raise BrokenRun(f"{where}: {mismatch}; restore both or train again elsewhere")


def _find_mismatch(config: ModelConfig, shapes: dict[str, list[int]]) -> str | None:
    """Describes the first difference between the tensors in a file and those of a model with this config."""
    layers = config.layers + (config.decoder_layers if config.kind == "encoder-decoder" else 0)
    if layers > len(shapes):
        return f"the config has {layers:,} layers, the file only {len(shapes):,} tensors"
    if ":" in config.positions:  # a user's encoding may not support the meta device
        return None
    with torch.device("meta"):
        expected = {name: list(tensor.shape) for name, tensor in build_model(config).state_dict().items()}
    for name in {**expected, **shapes}:
        if expected.get(name) != shapes.get(name):
            return f"{name} has shape {shapes.get(name, 'missing')}, expected {expected.get(name, 'missing')}"
    return None


def subject_of(run: Run) -> Subject:
    """Returns a run as a Subject; its examples have the longest training length."""
    task, model, device = run.task, run.model, next(run.model.parameters()).device
    draw = partial(task.independent, device=device)
    return Subject(
        model,
        examples=examples_of_task(task, device),
        name=run.config.name,
        heads=tuple(heads_of(model)),
        every=None if task.count is None else lambda: task.every(CHUNK, device),
        count=task.count,
        even=task.draws_evenly,
        strata=task.strata,
        spelled=task.spelled,
        problem=lambda written: task.read(written, device),
        start=None if task.classes is not None else task.start,
        layout=task.layout,
        contrasts=None if (pairs := task.contrasts) is None else lambda count, seed: pairs(count, seed, device),
        decode=model.decode if model.decodes else None,
        generate=(lambda given: model.generate(given.source, given.answer.shape[1])) if model.decodes else None,
        sets=lambda: {probe: draw(SETS_SEED, SETS_ROWS, probe=probe) for probe in task.probes},
        held_out=task.held_out,
        untrained=lambda problems: model.untrained(problems.source.shape[1], problems.answer.shape[1]),
        folder=run.folder if run.writable else None,
        opened=HeadwayRunner(model, run.config.name),
        about={"task": run.config.task, "seed": run.config.seed, "positions": run.config.model.positions},
    )


def can_be_stacked(folders: Sequence[RunFolder]) -> bool:
    """Returns whether these runs have the same task and the same model shape."""
    first, *others = ((each.task, each.options, each.model) for each in (folder.config() for folder in folders))
    return all(other == first for other in others)


def open_stack(folders: Sequence[RunFolder], device: torch.device | str) -> tuple[list[Run], dict[str, Tensor]]:
    """Loads runs of one shape and stacks their weights along a leading axis `model`.

    All runs share one model object, which serves as the template: its own weights belong to none of them.
    """

    def read(folder: RunFolder) -> tuple[RunConfig, dict[str, Tensor]]:
        config = folder.verify()
        return config, _load_weights(folder, config.model)

    with ThreadPoolExecutor(8) as readers:  # hashing and reading are limited by the disk
        opened = list(readers.map(read, folders))
    config = opened[0][0]
    task, model = create_task(config.task, config.options), build_model(config.model).to(device).eval()
    runs = [Run(folder, config, task, model) for folder, (config, _) in zip(folders, opened, strict=True)]
    weights = {name: torch.stack([table[name] for _, table in opened]).to(device) for name in model.state_dict()}
    return runs, weights


def open_one(subject: str | Path, device: torch.device | str = "cpu") -> Run:
    folders = find_runs(subject)
    if len(folders) > 1:
        raise HeadwayError(f"{subject} holds {len(folders)} runs; name one of them, such as {folders[0].path}")
    return open_run(folders[0], device)
