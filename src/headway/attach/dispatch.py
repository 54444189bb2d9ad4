"""Attention that goes through transformers' AttentionInterface, gated there.

Our function is registered beside the library's own, with a mask function too: registering the first alone silently
drops the causal mask. It calls the family's own eager attention, so that softcaps, sinks and position biases are the
family's, and hands what the heads say, and their maps, to whoever listens. The implementation that a model had is put
back.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headway.attach.intervention import Hook, Intervention
from headway.models.sites import Site

NAME = "headway"
Listener = Callable[[nn.Module, Tensor, Tensor | None], Tensor]
"""Called with an attention module, z [batch, query, head, dim] and the map: what goes on in place of z."""
_LISTENING: list[Listener] = []
FAST = {"sdpa": "headway_sdpa"}
"""implementations that give what the heads say and no maps, faster, and what ours around them are called"""


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    z, maps = _eager_of(module)(module, query, key, value, attention_mask, **options)
    for listen in _LISTENING:
        z = listen(module, z, maps)
    return z, maps


def _around(implementation: str) -> Callable[..., tuple[Tensor, None]]:
    """One of the library's own, with listeners; it has no maps to tell."""
    from transformers import AttentionInterface

    attend = AttentionInterface()[implementation]

    def attention(module: nn.Module, *inputs: Any, **options: Any) -> tuple[Tensor, None]:
        z, _ = attend(module, *inputs, **options)
        for listen in _LISTENING:
            z = listen(module, z, None)
        return z, None

    return attention


def _eager_of(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The eager attention of the module's family, which stands next to its class."""
    for kind in type(module).__mro__:
        found = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    return _plain_attention


def _plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Eager attention for a family that has no function for it."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    for added in (position_bias, attention_mask):
        scores = scores if added is None else scores + added
    maps = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    maps = nn.functional.dropout(maps, p=dropout, training=module.training)
    return (maps @ value).transpose(1, 2).contiguous(), maps  # batch query head dim


def register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, AttentionMaskInterface()["eager"])
    for own, name in FAST.items():
        AttentionInterface.register(name, _around(own))
        AttentionMaskInterface.register(name, AttentionMaskInterface()[own])


def configs_of(model: nn.Module) -> list[Any]:
    """Every config in a model, each before those inside it."""
    found: dict[int, Any] = {}

    def add(config: Any) -> None:
        if config is not None and hasattr(config, "_attn_implementation") and id(config) not in found:
            found[id(config)] = config
            for name in config.sub_configs:
                add(getattr(config, name, None))

    for module in model.modules():
        add(getattr(module, "config", None))
    return list(found.values())


@contextmanager
def under(model: Any, implementation: str) -> Iterator[None]:
    """The model with another implementation of attention, until it is left."""
    before = [(config, config._attn_implementation) for config in configs_of(model)]
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        for config, own in before:
            config._attn_implementation = own


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers from telling what is only being tried."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def listening(listen: Listener) -> Iterator[None]:
    _LISTENING.append(listen)
    try:
        yield
    finally:
        _LISTENING.remove(listen)


def at_dispatch(model: nn.Module, sites: Mapping[nn.Module, Site], gated: set[Site]) -> Hook:
    """The hook that gates what attention modules dispatch; of a site gated elsewhere it only records the map."""
    register()

    @contextmanager
    def hook(intervention: Intervention) -> Iterator[None]:
        def listen(module: nn.Module, z: Tensor, maps: Tensor | None) -> Tensor:
            site = sites.get(module)
            if site is None:
                return z
            if site in gated:
                return intervention.through(site, z, maps)
            intervention.see(site, maps)
            return z

        own = {config._attn_implementation for config in configs_of(model)}
        fast = FAST.get(own.pop()) if len(own) == 1 and not intervention.sees else None
        with under(model, fast or NAME), listening(listen):
            yield

    return hook


@contextmanager
def attentions_on(model: nn.Module) -> Iterator[None]:
    """The model asked to return its maps, where its config allows that; hooks that it gives itself for it go."""
    asked, inside = [], [(module, set(module.__dict__), set(module._forward_hooks)) for module in model.modules()]
    try:
        for config in configs_of(model):
            before = config.output_attentions
            try:
                config.output_attentions = True
            except ValueError:  # not under this implementation
                continue
            asked.append((config, before))
        yield
    finally:
        for config, before in asked:
            config.output_attentions = before
        for module, names, hooks in inside:
            for name in set(module.__dict__) - names:
                if name == "forward" or "hooks" in name:
                    delattr(module, name)
            for hook in set(module._forward_hooks) - hooks:
                del module._forward_hooks[hook]
