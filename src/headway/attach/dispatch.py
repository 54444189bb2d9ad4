"""Gates for attention that goes through transformers' AttentionInterface.

Headway's attention function is registered beside the library's, together with a mask function: registering the first
alone silently drops the causal mask. It calls the model family's eager attention, so that softcaps, sinks and position
biases are the family's, and passes the heads' outputs and maps to listeners; changes of queries and masks are made
before it. The model's original implementation is
restored afterwards.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from headway.attach.intervention import Hook, Intervention
from headway.errors import HeadwayError
from headway.models.narrowed import narrow_mask
from headway.models.sites import Narrowing, Site

NAME = "headway"
Listener = Callable[[nn.Module, Tensor, Tensor | None, Callable[[Narrowing], Tensor]], Tensor]
"""Called with an attention module, z [batch, query, head, dim], the map, and a function that returns z where heads see
less; returns what replaces z."""
_LISTENERS: list[Listener] = []
Change = Callable[[nn.Module, Tensor, Tensor, Tensor | None, Mapping[str, Any]], tuple[Tensor, Tensor | None]]
"""Called with an attention module, its queries and keys [batch, head, token, dim], mask and options before it attends;
returns what replaces queries and mask."""
_CHANGES: list[Change] = []
WRAPPED = {"eager": NAME, "sdpa": "headway_sdpa"}
"""the name of Headway's wrapper of each implementation; only eager attention returns maps, the other is faster"""


def _wrap(attend: Callable[..., tuple[Tensor, Tensor | None]]) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Wraps an implementation of attention so that the changes are made before it and the listeners called after."""

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        for change in _CHANGES:
            query, attention_mask = change(module, query, key, attention_mask, options)
        z, maps = attend(module, query, key, value, attention_mask, **options)

        def narrow(narrowing: Narrowing) -> Tensor:
            """Returns what the family's own attention makes of the same queries, keys and values."""
            if query.shape[2] != key.shape[2]:
                raise HeadwayError(
                    f"{type(module).__name__} has {query.shape[2]} queries and {key.shape[2]} keys; heads are narrowed "
                    "in whole passes of self-attention, without a cache"
                )
            eager, causal = attend is family_attention, options.get("is_causal")
            causal = bool(getattr(module, "is_causal", True) if causal is None else causal) and not eager
            mask = narrow_mask(narrowing, attention_mask, key.shape[2], causal)
            if eager and mask.dtype == torch.bool:  # eager attention adds its mask to the scores
                least = torch.finfo(query.dtype).min
                mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(~mask, least)
            return attend(module, query, key, value, mask, **options)[0]

        for listen in _LISTENERS:
            z = listen(module, z, maps, narrow)
        return z, maps

    return attention


def family_attention(module: nn.Module, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Calls the eager attention of the module's family, which is defined in the file of its class."""
    found = [
        getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None) for kind in type(module).__mro__
    ]
    return next(filter(None, found), _plain_attention)(module, *inputs, **options)


def _plain_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Computes eager attention for a family that has no function for it."""
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

    for base, name in WRAPPED.items():
        AttentionInterface.register(name, _wrap(family_attention if base == "eager" else AttentionInterface()[base]))
        AttentionMaskInterface.register(name, AttentionMaskInterface()[base])


def configs_of(model: nn.Module) -> list[Any]:
    """Returns every config in a model, each before those nested in it."""

    def nested(config: Any) -> Iterator[Any]:
        if hasattr(config, "_attn_implementation"):
            yield config
            for name in config.sub_configs:
                yield from nested(getattr(config, name, None))

    found = (config for module in model.modules() for config in nested(getattr(module, "config", None)))
    return list({id(config): config for config in found}.values())


def wrapper_of(model: nn.Module) -> str:
    """Returns the name of Headway's wrapper of the attention that the model uses now; eager where they differ."""
    current = {config._attn_implementation for config in configs_of(model)}
    one = current.pop() if len(current) == 1 else ""
    return one if one in WRAPPED.values() else WRAPPED.get(one, NAME)


@contextmanager
def use_attention(
    model: Any, implementation: str, *listeners: Listener, changes: Sequence[Change] = ()
) -> Iterator[None]:
    """Switches the model to another implementation of attention, with these listeners and changes, inside the
    context."""
    before = [(config, config._attn_implementation) for config in configs_of(model)]
    _LISTENERS.extend(listeners)
    _CHANGES.extend(changes)
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        for config, original in before:
            config._attn_implementation = original
        for listen in listeners:
            _LISTENERS.remove(listen)
        for change in changes:
            _CHANGES.remove(change)


def dispatch_hook(model: nn.Module, sites: Mapping[nn.Module, Sequence[Site]], gated: set[Site]) -> Hook:
    """Returns the hook that gates dispatching attention modules; for a site gated elsewhere it only records the map."""

    def hook(intervention: Intervention) -> AbstractContextManager[None]:
        def listen(module: nn.Module, z: Tensor, maps: Tensor | None, narrow: Callable[[Narrowing], Tensor]) -> Tensor:
            if module not in sites:
                return z
            site = intervention.site_of_call(sites[module])
            if site in gated:
                return intervention.apply(site, z, maps, narrow)
            intervention.record_map(site, maps)
            return z

        return use_attention(model, wrapper_of(model) if intervention.trace is None else NAME, listen)

    return hook


@contextmanager
def request_maps(model: nn.Module) -> Iterator[None]:
    """Makes the model return its maps, where its config allows it; hooks that it adds to itself are removed at exit."""
    changed, inside = [], [(module, set(module.__dict__), set(module._forward_hooks)) for module in model.modules()]
    try:
        for config in configs_of(model):
            before = config.output_attentions
            with suppress(ValueError):  # this implementation does not return maps
                config.output_attentions = True
                changed.append((config, before))
        yield
    finally:
        for config, before in changed:
            config.output_attentions = before
        for module, names, hooks in inside:
            for name in set(module.__dict__) - names:
                if name == "forward" or "hooks" in name:
                    delattr(module, name)
            for hook in set(module._forward_hooks) - hooks:
                del module._forward_hooks[hook]
