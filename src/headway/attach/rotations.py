"""Rotary frequencies: read from a model's rotary modules, computed as transformers does, and set for a while.

A module has one set of frequencies, or one for each type of layer (Gemma 3). Only the sets of layers that see the whole
text are changed, unless every layer has a window. A model whose frequencies are already scaled by its config keeps that
scaling: a cure changes them by the ratio by which it would change the unscaled ones.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.attach.order import Setting

LIBRARY = {"interpolation": "linear", "ntk": "default", "dynamic-ntk": "dynamic", "yarn": "yarn"}
"""the rope_type of transformers for each cure"""
SHAM = "interpolation-in-range"
SCALED, MOVING = ("default", "linear", "llama3", "yarn"), ("dynamic", "longrope")
"""the rope_types with frequencies that a cure can start from, and those that change them with the length of the text"""
LOCAL = ("sliding", "chunked")
Parameters = dict[str, float | str]
"""rope parameters, as transformers names them"""
Entry = int | Parameters | dict[str, Parameters]
"""an entry of a config"""


@dataclass(frozen=True)
class Rotation:
    """One set of frequencies: of a rotary module, for one type of layer if it has several."""

    module: Any
    layer_type: str | None

    @property
    def _prefix(self) -> str:
        return "" if self.layer_type is None else f"{self.layer_type}_"

    @property
    def frequencies(self) -> Float[Tensor, " pair"]:
        return getattr(self.module, f"{self._prefix}inv_freq")

    @property
    def scaling(self) -> float:
        """The factor of the rotated queries and keys."""
        return getattr(self.module, f"{self._prefix}attention_scaling")

    @property
    def parameters(self) -> Parameters:
        every = self.module.config.rope_parameters
        return every if self.layer_type is None else every[self.layer_type]

    @property
    def rope_type(self) -> str:
        return str(self.parameters.get("rope_type", "default"))

    def set(self, frequencies: Tensor, scaling: float) -> None:
        """Sets the frequencies; `keep` restores them."""
        self.module._buffers[f"{self._prefix}inv_freq"] = frequencies.to(self.frequencies.device)
        setattr(self.module, f"{self._prefix}attention_scaling", scaling)

    def compute(
        self, parameters: Parameters, changed: Mapping[str, int], tokens: int | None = None
    ) -> tuple[Float[Tensor, " pair"], float]:
        """Computes frequencies and scaling with transformers, for other rope parameters and other config entries."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = copy.deepcopy(self.module.config)
        for name, value in changed.items():
            setattr(config, name, value)
        every = dict(parameters)
        config.rope_parameters = (
            every if self.layer_type is None else {**config.rope_parameters, self.layer_type: every}
        )
        kind = {} if self.layer_type is None else {"layer_type": self.layer_type}
        if every["rope_type"] == "default":
            return self.module.compute_default_rope_parameters(config, **kind)
        return ROPE_INIT_FUNCTIONS[str(every["rope_type"])](config, seq_len=tokens, **kind)


def find_rotations(module: nn.Module) -> list[Rotation]:
    """Returns the sets of frequencies that cures change; none if the module is not a rotary one."""
    if not hasattr(module, "config") or not hasattr(module, "rope_type"):
        return []
    if "inv_freq" in module._buffers:
        return [Rotation(module, None)]
    types = [
        name.removesuffix("_inv_freq")
        for name in module._buffers
        if name.endswith("_inv_freq") and "original" not in name
    ]
    return [Rotation(module, each) for each in types if not each.startswith(LOCAL)] or [
        Rotation(module, each) for each in types
    ]


def why_fixed(rotation: Rotation) -> str:
    """Returns why the frequencies cannot be changed, or nothing."""
    if rotation.rope_type in MOVING:
        return f"its frequencies already change with the length of the text (rope_type {rotation.rope_type})"
    if rotation.rope_type not in SCALED:
        return f"Headway does not know its rope_type, {rotation.rope_type}"
    try:
        made, _ = rotation.compute(rotation.parameters, {})
    except Exception as error:  # a family may describe its frequencies in its own way
        return f"transformers cannot compute its frequencies again ({type(error).__name__})"
    own = rotation.frequencies
    if made.shape != own.shape or not torch.allclose(made.float(), own.float().cpu(), rtol=1e-2):
        return "its frequencies are not those that transformers computes from its config"
    return ""


def cured_parameters(rotation: Rotation, cure: str, setting: "Setting") -> tuple[Parameters, dict[str, int]]:
    """Returns the rope parameters of a cure, as if the model had no scaling yet, and other entries of the config."""
    config, kept = rotation.module.config, ("rope_theta", "partial_rotary_factor")
    made: Parameters = {"rope_type": LIBRARY[cure]}
    made |= {name: rotation.parameters[name] for name in kept if name in rotation.parameters}
    changed: dict[str, int] = {}
    if getattr(config, "head_dim", 0) is None:  # Mixtral; some functions of transformers need it
        changed["head_dim"] = config.hidden_size // config.num_attention_heads
    width = 2 * len(rotation.frequencies)
    if "ntk" in cure and width <= 2:
        raise HeadwayError(f"{cure} needs more than 2 rotated numbers a head, and this model rotates {width}")
    if cure == "ntk":
        made["rope_theta"] = float(made["rope_theta"]) * setting.factor ** (width / (width - 2))
        return made, changed
    made["factor"] = setting.factor
    if cure == "dynamic-ntk":
        changed["max_position_embeddings"] = setting.trained
    if cure == "yarn":
        original = "original_max_position_embeddings"
        made[original] = setting.trained
        if hasattr(config, original):  # Phi-3 keeps it outside the rope parameters, and it wins there
            changed[original] = setting.trained
    return made, changed


def _change(rotation: Rotation, cure: str, setting: "Setting", tokens: int) -> tuple[Tensor, float]:
    """Returns the frequencies and the scaling of a cure for a text of so many tokens."""
    own, scaling = rotation.frequencies, rotation.scaling
    if cure == SHAM:
        turned = own * setting.trained >= 2 * math.pi
        return torch.where(turned, own / setting.factor, own), scaling
    parameters, changed = cured_parameters(rotation, cure, setting)
    made, temperature = rotation.compute(parameters, changed, tokens)
    if rotation.rope_type == "default":
        return made, temperature
    plain, _ = rotation.compute(
        {**parameters, "rope_type": "default", "rope_theta": rotation.parameters["rope_theta"]}, {}
    )
    return own * (made / plain).to(own.device), scaling * temperature


@contextmanager
def keep(module: nn.Module) -> Iterator[None]:
    """Restores the buffers and public attributes of a rotary module, also those that it changes by itself."""
    buffers = dict(module._buffers)
    attributes = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    try:
        yield
    finally:
        module._buffers.clear()
        module._buffers.update(buffers)
        for name in [name for name in vars(module) if not name.startswith("_") and name not in attributes]:
            del module.__dict__[name]
        module.__dict__.update(attributes)


@contextmanager
def change_rotations(model: nn.Module, modules: tuple[str, ...], cure: str, setting: "Setting") -> Iterator[None]:
    """Rotates queries and keys as a cure does, inside the context; `keep` restores the modules."""
    with ExitStack() as stack:
        for path in modules:
            module = model.get_submodule(path)
            rotations = find_rotations(module)
            if cure == "dynamic-ntk":
                hook = _follow_length(rotations, setting)
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
                continue
            for rotation in rotations:
                rotation.set(*_change(rotation, cure, setting, setting.length))
        yield


def _follow_length(rotations: list[Rotation], setting: "Setting") -> Callable[..., None]:
    """Returns a hook that sets the frequencies of dynamic NTK for the length of each text."""
    own = [(rotation.frequencies, rotation.scaling) for rotation in rotations]

    def hook(module: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        tokens = int((options["position_ids"] if "position_ids" in options else inputs[1]).max()) + 1
        for rotation, (frequencies, scaling) in zip(rotations, own, strict=True):
            rotation.set(frequencies, scaling)
            rotation.set(*_change(rotation, "dynamic-ntk", setting, tokens))

    return hook


def config_of(model: Any, modules: tuple[str, ...], cure: str, setting: "Setting") -> dict[str, Entry] | None:
    """Returns the config entries with which transformers loads the model with a cure; None if it has none for it."""
    found = [rotation for path in modules for rotation in find_rotations(model.get_submodule(path))]
    if any(rotation.rope_type not in ("default", "linear") for rotation in found):
        return None
    if any(rotation.rope_type == "linear" for rotation in found) and cure != "interpolation":
        return None
    entries: dict[str, Entry] = {}
    parameters = found[0].module.config.rope_parameters
    for rotation in found:
        made, changed = cured_parameters(rotation, cure, setting)
        if rotation.rope_type == "linear":
            made["factor"] = setting.factor * float(rotation.parameters["factor"])
        parameters = made if rotation.layer_type is None else {**parameters, rotation.layer_type: made}
        entries |= changed
    return {"rope_parameters": parameters, **entries}
