"""Attention that goes through transformers' AttentionInterface, gated there.

Our function is registered beside the library's own, with a mask function too: registering the first alone silently
drops the causal mask. It calls the family's own eager attention, so that softcaps, sinks and position biases are the
family's, and hands what the heads say, and their maps, to whoever listens. The implementation that a model had is put
back.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from headway.attach.intervention import Hook, Intervention
from headway.models.sites import Site

NAME = "headway"
Listener = Callable[[nn.Module, Tensor, Tensor | None], Tensor]
"""Called with an attention module, z [batch, query, head, dim] and the map: what goes on in place of z."""
_LISTENING: list[Listener] = []
OURS = {"eager": NAME, "sdpa": "headway_sdpa"}
"""implementations, and what ours around them are called; only the first gives maps, the others are faster"""


def _around(attend: Callable[..., tuple[Tensor, Tensor | None]]) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """An implementation of attention, with listeners."""

    def attention(module: nn.Module, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        z, maps = attend(module, *inputs, **options)
        for listen in _LISTENING:
            z = listen(module, z, maps)
        return z, maps

    return attention


def _eager_attention(module: nn.Module, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """The eager attention of the module's family, which stands next to its class."""
    found = [
        getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None) for kind in type(module).__mro__
    ]
    return next(filter(None, found), _plain_attention)(module, *inputs, **options)


def _plain_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Eager attention for a family that has no function for it."""
    groups, scaling, softcap = query.shape[1] // key.shape[1], options.get("scaling"), options.get("softcap")
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    for added in (options.get("position_bias"), attention_mask):
        scores = scores if added is None else scores + added
    maps = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    maps = nn.functional.dropout(maps, p=options.get("dropout", 0.0), training=module.training)
    return (maps @ value).transpose(1, 2).contiguous(), maps  # batch query head dim


def register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    for own, name in OURS.items():
        AttentionInterface.register(name, _around(_eager_attention if own == "eager" else AttentionInterface()[own]))
        AttentionMaskInterface.register(name, AttentionMaskInterface()[own])


def configs_of(model: nn.Module) -> list[Any]:
    """Every config in a model, each before those inside it."""

    def nested(config: Any) -> Iterator[Any]:
        if hasattr(config, "_attn_implementation"):
            yield config
            for name in config.sub_configs:
                yield from nested(getattr(config, name, None))

    found = (config for module in model.modules() for config in nested(getattr(module, "config", None)))
    return list({id(config): config for config in found}.values())


@contextmanager
def under(model: Any, implementation: str, *listeners: Listener) -> Iterator[None]:
    """The model with another implementation of attention, and whoever listens to ours, until it is left."""
    before = [(config, config._attn_implementation) for config in configs_of(model)]
    _LISTENING.extend(listeners)
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        for config, own in before:
            config._attn_implementation = own
        for listen in listeners:
            _LISTENING.remove(listen)


def at_dispatch(model: nn.Module, sites: Mapping[nn.Module, Site], gated: set[Site]) -> Hook:
    """The hook that gates what attention modules dispatch; of a site gated elsewhere it only records the map."""

    def hook(intervention: Intervention) -> AbstractContextManager[None]:
        def listen(module: nn.Module, z: Tensor, maps: Tensor | None) -> Tensor:
            site = sites.get(module)
            if site is not None and site in gated:
                return intervention.through(site, z, maps)
            if site is not None:
                intervention.see(site, maps)
            return z

        own = {config._attn_implementation for config in configs_of(model)}
        fast = len(own) == 1 and intervention.trace is None
        return under(model, OURS.get(own.pop(), NAME) if fast else NAME, listen)

    return hook


@contextmanager
def attentions_on(model: nn.Module) -> Iterator[None]:
    """The model asked to return its maps, where its config allows that; hooks that it gives itself for it go."""
    asked, inside = [], [(module, set(module.__dict__), set(module._forward_hooks)) for module in model.modules()]
    try:
        for config in configs_of(model):
            before = config.output_attentions
            with suppress(ValueError):  # not under this implementation
                config.output_attentions = True
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
