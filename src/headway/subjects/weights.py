"""The weights of a run folder, read only where they are those of the model that its config describes.

A file from elsewhere may say anything: its shapes are compared before anything of that size is made.
"""

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from headway.errors import BrokenRun
from headway.models import build_model
from headway.runs.config import ModelConfig
from headway.runs.folder import RunFolder

FLOATS = {"F64", "F32", "F16", "BF16"}


def read_weights(folder: RunFolder, config: ModelConfig) -> dict[str, Tensor]:
    """Every tensor by its name; refused where they are not those of this config."""
    try:
        with safe_open(folder.weights, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            kinds = {each.get_dtype() for each in slices.values()}
            shapes = {name: each.get_shape() for name, each in slices.items()}
        other = sorted(kinds - FLOATS)
        amiss = f"it has tensors of type {', '.join(other)}" if other else _amiss(config, shapes)
        if amiss is None:
            return load_file(folder.weights)
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        amiss = f"it cannot be read ({error})"
    where = f"{folder.weights} does not fit {folder.path / 'config.json'}"
    raise BrokenRun(f"{where}: {amiss}; restore both or train again elsewhere")


def _amiss(config: ModelConfig, shapes: dict[str, list[int]]) -> str | None:
    """The first difference between the tensors that are there and those that a model of this config has."""
    layers = config.layers + (config.decoder_layers if config.kind == "encoder-decoder" else 0)
    if layers > len(shapes):
        return f"{layers:,} layers, and {len(shapes):,} tensors"
    if ":" in config.positions:  # a user's own code need not run without numbers
        return None
    with torch.device("meta"):
        wanted = {name: list(tensor.shape) for name, tensor in build_model(config).state_dict().items()}
    for name in {**wanted, **shapes}:
        if wanted.get(name) != shapes.get(name):
            return f"{name} is {shapes.get(name, 'missing')} and should be {wanted.get(name, 'missing')}"
    return None
